"""Networks that were trained before: on other classes of the same data set, or on ImageNet."""

from __future__ import annotations

from pathlib import Path

import torch
from jaxtyping import Float, Int
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from torchtangent.lab.data import DataError, root_folder
from torchtangent.lab.models import mlp, resnet18, seeded
from torchtangent.lab.recipes.george2022.scaled import exact
from torchtangent.lab.recipes.george2022.setting import MOMENTUM
from torchtangent.lab.runner import Context
from torchtangent.lab.train import Descent, batches

WEIGHTS = "resnet18.tv_in1k/model.safetensors"
_URL = "https://huggingface.co/timm/resnet18.tv_in1k"
_INSIDE = {
    "branch.0": "conv1",
    "branch.1": "bn1",
    "branch.3": "conv2",
    "branch.4": "bn2",
    "shortcut.0": "downsample.0",
    "shortcut.1": "downsample.1",
}
"""The layers of a block, here and in the file."""


def resnet18_imagenet(channels: int = 3, outputs: int = 1000, base: int = 64) -> nn.Sequential:
    """ResNet18 as for ImageNet: a 7×7 stem of stride 2, 3×3 max-pooling, BatchNorm.

    >>> sum(p.numel() for p in resnet18_imagenet().parameters())
    11689512
    """
    stem = [nn.Conv2d(channels, base, 7, 2, padding=3, bias=False), nn.BatchNorm2d(base), nn.ReLU()]
    stages = list(resnet18(channels, nn.ReLU, outputs, base))[len(stem) :]
    return nn.Sequential(*stem, nn.MaxPool2d(3, 2, padding=1), *stages)


def from_imagenet(root: Path | None) -> nn.Sequential:
    """ResNet18 trained on ImageNet, from the data folder.

    Raises:
        DataError: The file is absent, or not that of this network.
    """
    path = root_folder(root) / WEIGHTS
    if not path.exists():
        raise DataError(f"{WEIGHTS} is not in the data folder {path.parents[1]}. Put it there (it comes from {_URL}).")
    model = resnet18_imagenet()
    found = load_file(path)
    try:
        state = {name: found[published_name(name)] for name in model.state_dict() if "num_batches" not in name}
        model.load_state_dict(state, strict=False)
    except (KeyError, RuntimeError) as error:
        raise DataError(f"{WEIGHTS} is not that of a ResNet18 ({error}). Fetch it again from {_URL}") from error
    return model


def published_name(name: str) -> str:
    """What an entry of the state dict of `resnet18_imagenet` is called in the file.

    >>> [published_name(name) for name in ("0.weight", "1.bias", "6.shortcut.1.weight", "14.bias")]
    ['conv1.weight', 'bn1.bias', 'layer2.0.downsample.1.weight', 'fc.bias']
    """
    number, _, rest = name.partition(".")
    block = int(number) - 4  # behind the stem and its pooling
    if block < 0:
        return ("conv1.", "bn1.")[int(number)] + rest
    if block >= 8:
        return "fc." + rest
    layer, _, kind = rest.rpartition(".")
    return f"layer{1 + block // 2}.{block % 2}.{_INSIDE[layer]}.{kind}"


def on_other_classes(context: Context, x: Float[Tensor, "n c h w"], y: Int[Tensor, " n"]) -> nn.Sequential:
    """The configured network after some epochs of training on these samples."""
    config = context.config
    if config["network"] == "MLP":
        model = seeded(lambda: mlp([x[0].numel(), *config["widths"], 10]), config["seed"])
    else:
        model = seeded(lambda: resnet18_imagenet(x.shape[1], 10, config["base"]), config["seed"])
    assert isinstance(model, nn.Sequential)
    model.to(context.device).train()
    order = torch.Generator().manual_seed(config["seed"])
    with exact():
        descent = Descent(model, F.cross_entropy, lr=config["before_lr"], momentum=MOMENTUM)
        for _ in range(config["before"]):
            for index in batches(len(x), config["batch"], order, context.device):
                descent(x[index], y[index])
    return model


def with_new_head(model: nn.Sequential, seed: int) -> nn.Sequential:
    """The network with a last layer of one output, newly drawn, in eval mode: BatchNorm keeps its statistics."""
    last = model[-1]
    assert isinstance(last, nn.Linear)
    head = seeded(lambda: nn.Linear(last.in_features, 1), seed).to(last.weight.device)
    return nn.Sequential(*list(model)[:-1], head).eval()
