"""The images and networks of the experiments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from torchtangent.lab.models import lenet, mlp, resnet18_plain, seeded, vgg11
from torchtangent.lab.runner import Context

_MEAN, _DEVIATION = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)  # of CIFAR-10, as in the released code
_TRAINED_ON = 40_000


@dataclass(frozen=True)
class Images:
    """Images to train and to test on."""

    x: Float[Tensor, "n c h w"]
    y: Int[Tensor, " n"]
    x_test: Float[Tensor, "m c h w"]
    y_test: Int[Tensor, " m"]


def images(context: Context) -> Images:
    """The first `train` samples to train on and all to test on, as networks are given them."""
    data, count, device = split(context), context.config["train"], context.device
    return Images(
        prepared(context, data.x[:count]),
        data.y[:count].to(device),
        prepared(context, data.x_test),
        data.y_test.to(device),
    )


def split(context: Context) -> Images:
    """The configured data set as it is.

    Of CIFAR-10 the first 40,000 training images are to train on and the other 10,000 to test on: all have C-scores.
    """
    data = context.data(context.config["data"])
    x, y = data.x_train, data.y_train
    if context.config["data"] == "cifar10":
        return Images(x[:_TRAINED_ON], y[:_TRAINED_ON], x[_TRAINED_ON:], y[_TRAINED_ON:])
    return Images(x, y, data.x_test, data.y_test)


def prepared(context: Context, x: Float[Tensor, "n c H W"]) -> Float[Tensor, "n c h w"]:
    """Images as networks are given them: CIFAR-10's standardized, others shrunk to `side` pixels."""
    if context.config["data"] != "cifar10":
        return F.adaptive_avg_pool2d(x.to(context.device), context.config["side"])
    mean, deviation = (torch.tensor(values, device=context.device).view(3, 1, 1) for values in (_MEAN, _DEVIATION))
    return (x.to(context.device) - mean) / deviation


def network(context: Context, x: Float[Tensor, "n c h w"], outputs: int = 10) -> nn.Module:
    """The configured network for such images, initialized from the configured seed."""
    config, shape = context.config, x.shape[1:]
    builders: dict[str, Any] = {
        "MLP": lambda: mlp([shape.numel(), *config["widths"], outputs]),
        "LeNet": lambda: lenet((shape[0], shape[1], shape[2]), outputs=outputs),
        "VGG11": lambda: vgg11(shape[0], config["base"], outputs),
        "ResNet18": lambda: resnet18_plain(shape[0], outputs, config["base"]),
    }
    return seeded(builders[config["network"]], config["seed"]).to(context.device)
