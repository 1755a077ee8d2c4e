"""ResNets of two-convolution blocks (He et al., 2016), with BatchNorm or without any normalization."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from torchtangent.lab.models.plain import Activation


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions around a shortcut, which is projected where the shape changes.

    Args:
        channels: Of the input.
        width: Channels of the output.
        stride: Of the first convolution and of the shortcut.
        activation: Makes the activations.
        norm: Whether a BatchNorm follows every convolution; if not, the convolutions have biases.
    """

    def __init__(self, channels: int, width: int, stride: int, activation: Activation, *, norm: bool = True) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            *_convolution(channels, width, 3, stride, norm=norm),
            activation(),
            *_convolution(width, width, 3, 1, norm=norm),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != width:
            self.shortcut = nn.Sequential(*_convolution(channels, width, 1, stride, norm=norm))
        self.activation = activation()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.activation(self.shortcut(x) + self.branch(x))


def resnet18(
    channels: int = 3, activation: Activation = nn.ReLU, outputs: int = 1, base: int = 64, *, norm: bool = True
) -> nn.Sequential:
    """ResNet18 for 32×32 images: a 3×3 stem, four stages of two blocks, global average pooling, one linear layer.

    Args:
        channels: Of the input.
        activation: Makes the activations.
        outputs: Of the network.
        base: Channels of the first stage (64 in the original); the others double.
        norm: Whether a BatchNorm follows every convolution; if not, the convolutions have biases.

    >>> sum(p.numel() for p in resnet18().parameters())
    11169345
    """
    stem = [*_convolution(channels, base, 3, 1, norm=norm), activation()]
    return nn.Sequential(*stem, *_stages((2, 2, 2, 2), base, outputs, activation, norm=norm))


def resnet34(
    channels: int = 3, activation: Activation = nn.ReLU, outputs: int = 10, base: int = 64, *, norm: bool = True
) -> nn.Sequential:
    """ResNet34 for 32×32 images: stages of 3, 4, 6 and 3 blocks; all else, and the arguments, as of `resnet18`.

    >>> sum(p.numel() for p in resnet34().parameters())
    21282122
    """
    stem = [*_convolution(channels, base, 3, 1, norm=norm), activation()]
    return nn.Sequential(*stem, *_stages((3, 4, 6, 3), base, outputs, activation, norm=norm))


def resnet18_plain(channels: int = 3, outputs: int = 10, base: int = 64) -> nn.Sequential:
    """ResNet18 as for ImageNet (a 7×7 stem of stride 2, 3×3 max-pooling), but without normalization.

    The convolutions have biases. Their weights are Kaiming-normal with fan-out, all else is PyTorch's default, as in
    the study of George et al. (2022).

    Args:
        channels: Of the input.
        outputs: Of the network.
        base: Channels of the first stage; the others double.

    >>> sum(p.numel() for p in resnet18_plain().parameters())
    11176842
    """
    stem = [*_convolution(channels, base, 7, 2, norm=False), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
    model = nn.Sequential(*stem, *_stages((2, 2, 2, 2), base, outputs, nn.ReLU, norm=False))
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model


def _convolution(channels: int, width: int, kernel: int, stride: int, *, norm: bool) -> list[nn.Module]:
    """A padded convolution with its BatchNorm, or with a bias."""
    layer = nn.Conv2d(channels, width, kernel, stride, padding=kernel // 2, bias=not norm)
    return [layer, nn.BatchNorm2d(width)] if norm else [layer]


def _stages(blocks: Sequence[int], base: int, outputs: int, activation: Activation, *, norm: bool) -> list[nn.Module]:
    """All behind the stem: stages of so many blocks, each after the first of half the size and twice the width."""
    layers: list[nn.Module] = []
    before = base
    for stage, count in enumerate(blocks):
        for block in range(count):
            stride = 2 if stage and not block else 1
            layers.append(ResidualBlock(before, base * 2**stage, stride, activation, norm=norm))
            before = base * 2**stage
    return [*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, outputs)]
