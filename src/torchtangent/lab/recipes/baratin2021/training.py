"""What the experiments on images share: images, networks, and training that halts at chosen steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from torchtangent.lab.data import noisy_labels
from torchtangent.lab.models import init_kaiming, mlp, resnet18, vgg19
from torchtangent.lab.runner import Context
from torchtangent.lab.train import Descent, batches

CLASSES = 10
_EVALUATED = 1000  # samples in a forward pass


@dataclass(frozen=True, eq=False)
class Images:
    """Images to train on and to test on, on the device, each channel standardized as those to train on."""

    x: Float[Tensor, "N c h w"]
    y: Int[Tensor, " N"]
    x_test: Float[Tensor, "M c h w"]
    y_test: Int[Tensor, " M"]


def images(context: Context) -> Images:
    """The first training and test images of the configured data set."""
    config = context.config
    data = context.data(config["data"])
    x, x_test = (a[: config[key]].to(context.device) for a, key in ((data.x_train, "train"), (data.x_test, "test")))
    y, y_test = (a[: config[key]].to(context.device) for a, key in ((data.y_train, "train"), (data.y_test, "test")))
    x, x_test = standardized(x, x_test, config["side"])
    return Images(x, y, x_test, y_test)


def standardized(x: Tensor, x_test: Tensor, side: int) -> tuple[Tensor, Tensor]:
    """Both sets with the mean and deviation of the first, averaged to a square of this side if they are larger."""
    deviation, mean = torch.std_mean(x, (0, 2, 3), keepdim=True)
    small, small_test = (F.adaptive_avg_pool2d((a - mean) / deviation, side) for a in (x, x_test))
    return small, small_test


def with_random_labels(y: Int[Tensor, " N"], share: float, seed: int) -> Int[Tensor, " N"]:
    """Labels of which a share is drawn uniformly from all classes, the true one included, as in the released code."""
    generator = torch.Generator().manual_seed(seed)
    return noisy_labels(y, share, classes=CLASSES, generator=generator, different=False)[0]


def network(config: Mapping[str, Any], shape: Sequence[int], seed: int) -> nn.Module:
    """The configured network for images of this shape: Kaiming-normal weights, zero biases."""
    name, channels = config["network"], shape[0]
    if name == "MLP":
        model: nn.Module = mlp([math.prod(shape), *[config["width"]] * (config["depth"] - 1), CLASSES])
    elif name == "VGG19":
        model = vgg19(channels, config["base"], CLASSES)
    elif name == "ResNet18":
        model = resnet18(channels, outputs=CLASSES, base=config["base"])
    elif name == "ConvNet":
        model = convnet(channels, config["base"])
    else:
        raise ValueError(f"no network {name!r}; there are: MLP, VGG19, ResNet18, ConvNet")
    return init_kaiming(model, torch.Generator().manual_seed(seed))


def convnet(channels: int, base: int) -> nn.Sequential:
    """A VGG for 8×8 images: 3×3 convolutions of base, 2·base and 4·base channels, each pooled, and a linear layer."""
    layers: list[nn.Module] = []
    for width in (base, 2 * base, 4 * base):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        channels = width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels, CLASSES))


def halts(steps: int, most: int) -> list[int]:
    """0, the last step, and between them steps 5·⌊1.15ᵏ⌋ as in the released code, thinned out evenly in k.

    >>> halts(60, 5)
    [0, 5, 25, 50, 60]
    """
    released = sorted({5 * math.floor(1.15**k) for k in range(math.ceil(math.log(steps, 1.15)) + 1)})
    inside = [step for step in released if step < steps]
    chosen = np.unique(np.linspace(0, len(inside) - 1, max(1, most - 2)).round().astype(int))
    return [0, *(inside[i] for i in chosen if inside), steps]


def descend(
    model: nn.Module, x: Tensor, y: Tensor, *, lr: float, batch: int, seed: int, stops: Sequence[int]
) -> Iterator[tuple[int, float]]:
    """Train by SGD with momentum 0.9 on the cross-entropy, in place, to the last of the stops.

    Yields:
        At every stop the step, and the mean loss of the batches since the stop before (0 at step 0).
    """
    descent = Descent(model, F.cross_entropy, lr=lr)
    order = torch.Generator().manual_seed(seed)
    index = chain.from_iterable(batches(len(x), batch, order, x.device) for _ in count())
    total, done = torch.zeros((), device=x.device), 0
    for stop in stops:
        total.zero_()
        for _ in range(stop - done):
            chosen = next(index)
            total += descent(x[chosen], y[chosen])
        yield stop, float(total) / max(1, stop - done)
        done = stop


@torch.no_grad()
def scores(model: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float]:
    """The mean cross-entropy and the accuracy, in eval mode; the mode is as before afterwards."""
    training = model.training
    model.eval()
    f = torch.cat([model(part) for part in x.split(_EVALUATED)])
    model.train(training)
    return float(F.cross_entropy(f, y)), float((f.argmax(1) == y).float().mean())
