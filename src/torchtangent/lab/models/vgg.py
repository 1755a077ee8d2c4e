"""VGG for 32×32 images: a stack of 3×3 convolutions and one linear layer (Simonyan and Zisserman, 2015)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

_POOL = 0
# The widths of the convolutions over that of the first.
_VGG11 = (1, _POOL, 2, _POOL, 4, 4, _POOL, 8, 8, _POOL, 8, 8, _POOL)
_VGG19 = (1, 1, _POOL, 2, 2, _POOL, 4, 4, 4, 4, _POOL, 8, 8, 8, 8, _POOL, 8, 8, 8, 8, _POOL)


def vgg11(channels: int = 3, base: int = 64, outputs: int = 10, *, norm: bool = False) -> nn.Sequential:
    """VGG11 for 32×32 images: eight 3×3 convolutions, five poolings, one linear layer.

    Args:
        channels: Of the input.
        base: Channels of the first layer (64 in the original); all others scale with it.
        outputs: Classes.
        norm: Whether a BatchNorm follows every convolution.

    >>> import torch
    >>> vgg11(base=4)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    return _vgg(_VGG11, channels, base, outputs, norm)


def vgg19(channels: int = 3, base: int = 64, outputs: int = 10, *, norm: bool = False) -> nn.Sequential:
    """VGG19 for 32×32 images: sixteen 3×3 convolutions, five poolings, one linear layer; arguments as of `vgg11`.

    >>> sum(isinstance(layer, nn.Conv2d) for layer in vgg19(base=4))
    16
    """
    return _vgg(_VGG19, channels, base, outputs, norm)


def _vgg(widths: Sequence[int], channels: int, base: int, outputs: int, norm: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in widths:
        if width == _POOL:
            layers.append(nn.MaxPool2d(2))
            continue
        layers.append(nn.Conv2d(channels, width * base, 3, padding=1))
        layers += [nn.BatchNorm2d(width * base), nn.ReLU()] if norm else [nn.ReLU()]
        channels = width * base
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels, outputs))
