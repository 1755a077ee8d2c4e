"""The networks of the studies."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn


def convnet_1001(outputs: int = 10) -> nn.Sequential:
    """The 1,001-parameter convolutional network for 28×28 images of the NNGeometry timing notebook.

    Convolutions 1→5 (3×3), 5→6 (4×4), 6→7 (3×3), each with ReLU and 2×2 max-pooling, then 7→10.

    >>> sum(p.numel() for p in convnet_1001().parameters())
    1001
    """
    return nn.Sequential(
        nn.Conv2d(1, 5, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(5, 6, 4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 7, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(7, outputs),
    )


def mlp(widths: Sequence[int], activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers of these widths, an activation between them; inputs are flattened.

    >>> [tuple(p.shape) for p in mlp([4, 3, 2]).parameters()]
    [(3, 4), (3,), (2, 3), (2,)]
    """
    layers: list[nn.Module] = [nn.Flatten()]
    for i, (wide, narrow) in enumerate(pairwise(widths)):
        layers += [activation()] if i else []
        layers.append(nn.Linear(wide, narrow))
    return nn.Sequential(*layers)


def vgg11(channels: int = 3, base: int = 64, outputs: int = 10) -> nn.Sequential:
    """VGG11 for 32×32 images without normalization: eight 3×3 convolutions, five poolings, one linear layer.

    Args:
        channels: Of the input.
        base: Channels of the first layer (64 in the original); all others scale with it.
        outputs: Classes.

    >>> vgg11(base=4)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    layers: list[nn.Module] = []
    for width in (1, 0, 2, 0, 4, 4, 0, 8, 8, 0, 8, 8, 0):
        if width == 0:
            layers.append(nn.MaxPool2d(2))
            continue
        layers += [nn.Conv2d(channels, width * base, 3, padding=1), nn.ReLU()]
        channels = width * base
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels, outputs))


def init_kaiming(model: nn.Module, generator: torch.Generator, biases: bool = False) -> nn.Module:
    """Kaiming-normal (fan-in) weights, in place; biases zero, or PyTorch's uniform default if `biases`."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            fan_in = module.weight[0].numel()
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu", generator=generator)
            if module.bias is not None and biases:
                nn.init.uniform_(module.bias, -(fan_in**-0.5), fan_in**-0.5, generator=generator)
            elif module.bias is not None:
                nn.init.zeros_(module.bias)
    return model


def seeded(build: object, seed: int) -> nn.Module:
    """Call a constructor under a seed, leaving the global random state as it was."""
    if not callable(build):
        raise TypeError(f"{build!r} does not build a model")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()
