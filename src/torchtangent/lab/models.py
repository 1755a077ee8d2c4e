"""The networks of the studies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import nn

Activation = Callable[[], nn.Module]

_CUT_DEVIATION = 0.87962566103423978  # of a standard normal variable cut at ±2


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


def lenet(
    shape: tuple[int, int, int] = (3, 32, 32), activation: Activation = nn.ReLU, outputs: int = 1
) -> nn.Sequential:
    """LeNet with padded 5×5 convolutions (6 and 16 channels), average pooling and layers of 120 and 84.

    Args:
        shape: Of an input: channels, height, width, the latter divisible by 4.
        activation: Makes the activations.
        outputs: Of the network.

    >>> sum(p.numel() for p in lenet().parameters())
    136121
    """
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5, padding=2),
        activation(),
        nn.AvgPool2d(2),
        nn.Conv2d(6, 16, 5, padding=2),
        activation(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * (height // 4) * (width // 4), 120),
        activation(),
        nn.Linear(120, 84),
        activation(),
        nn.Linear(84, outputs),
    )


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions with BatchNorm around a shortcut, which is projected where the shape changes."""

    def __init__(self, channels: int, width: int, stride: int, activation: Activation) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(channels, width, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            activation(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, width, 1, stride, bias=False),
                nn.BatchNorm2d(width),
            )
        self.activation = activation()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.activation(self.shortcut(x) + self.branch(x))


def resnet18(channels: int = 3, activation: Activation = nn.ReLU, outputs: int = 1, base: int = 64) -> nn.Sequential:
    """ResNet18 for 32×32 images: a 3×3 stem, four stages of two blocks, global average pooling, one linear layer.

    Args:
        channels: Of the input.
        activation: Makes the activations.
        outputs: Of the network.
        base: Channels of the first stage (64 in the original); the others double.

    >>> sum(p.numel() for p in resnet18().parameters())
    11169345
    """
    layers: list[nn.Module] = [
        nn.Conv2d(channels, base, 3, padding=1, bias=False),
        nn.BatchNorm2d(base),
        activation(),
    ]
    before = base
    for stage in range(4):
        width = base * 2**stage
        layers.append(ResidualBlock(before, width, 2 if stage else 1, activation))
        layers.append(ResidualBlock(width, width, 1, activation))
        before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, outputs))


def init_lecun(model: nn.Module, generator: torch.Generator) -> nn.Module:
    """flax's defaults, in place: weights of variance 1/fan-in, normal and cut at two deviations; biases zero.

    Running statistics of BatchNorm start at 0 and 1, its scale at 1, but at 0 in the last one of a residual branch.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            deviation = module.weight[0].numel() ** -0.5 / _CUT_DEVIATION
            nn.init.trunc_normal_(module.weight, 0.0, deviation, -2 * deviation, 2 * deviation, generator=generator)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm2d):
            module.reset_parameters()
    for module in model.modules():
        if isinstance(module, ResidualBlock):
            nn.init.zeros_(module.branch[-1].weight)  # type: ignore[arg-type]
    return model


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
