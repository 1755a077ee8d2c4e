"""What the experiments share: networks and inputs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchtangent.lab.models import init_lecun, lenet, resnet18
from torchtangent.lab.runner import Context

GELU = partial(nn.GELU, approximate="tanh")

NETWORKS = "with GELU (tanh), one output and flax's initialization; BatchNorm stays at its initial statistics"
"""The networks in words, for the descriptions of experiments."""


def network(name: str, shape: tuple[int, ...], config: Mapping[str, Any]) -> nn.Module:
    """LeNet or ResNet18 with GELU and one output at the configured seed, BatchNorm at its initial statistics."""
    channels, height, width = shape
    if name == "LeNet":
        model: nn.Module = lenet((channels, height, width), GELU)
    elif name == "ResNet18":
        model = resnet18(channels, GELU, base=config["base"])
    else:
        raise ValueError(f"no network {name!r}; there are: LeNet, ResNet18")
    return init_lecun(model, torch.Generator().manual_seed(config["seed"])).eval()


def images(context: Context) -> tuple[Float[Tensor, "N c h w"], Float[Tensor, " N"]]:
    """The first training images, each channel standardized, with labels 1 for the classes 0–4 and −1 for 5–9.

    The standardization is that of the whole training set; the labels are those of CIFAR2. In float64.
    """
    data = context.data(context.config["data"])
    deviation, mean = torch.std_mean(data.x_train, (0, 2, 3), keepdim=True)
    chosen = slice(context.config["samples"])
    x = (data.x_train[chosen] - mean) / deviation
    y = torch.where(data.y_train[chosen] <= 4, 1.0, -1.0)
    return x.double().to(context.device), y.double().to(context.device)


def image_shape(config: Mapping[str, Any]) -> tuple[int, int, int]:
    """Of images on which directions are studied: one channel, as in the paper."""
    return (1, config["side"], config["side"])


def gaussian(shape: tuple[int, ...], count: int, seed: int, like: Tensor) -> Float[Tensor, "N *shape"]:
    """Standard normal inputs, of the dtype and on the device of another tensor."""
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(seed)).to(like)


def unit_vectors(count: int, size: int, seed: int) -> Float[Tensor, "count size"]:
    """Rows drawn uniformly from the unit sphere, in float64."""
    rows = torch.randn(count, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return rows / rows.norm(dim=1, keepdim=True)
