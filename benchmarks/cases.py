"""The problems that every library gets: a network and a batch of labelled inputs, from a fixed seed."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Problem:
    """A network in eval mode, its inputs and integer labels, and how many samples a library takes at a time."""

    model: nn.Module
    x: Tensor
    y: Tensor
    batch: int

    @property
    def size(self) -> int:
        """Number of parameters."""
        return sum(p.numel() for p in self.model.parameters())

    def batches(self) -> list[tuple[Tensor, Tensor]]:
        """The data in batches of at most `batch` samples."""
        return list(zip(self.x.split(self.batch), self.y.split(self.batch), strict=True))


@dataclass(frozen=True)
class Case:
    """How to make a problem."""

    name: str
    title: str
    network: Callable[[], nn.Module]
    shape: tuple[int, ...]
    samples: int
    convolutional: bool

    def problem(self, batch: int | None = None) -> Problem:
        """The problem, the same at every call; `batch=None` takes all samples at once."""
        torch.manual_seed(0)
        model = self.network().eval()
        x = torch.randn(self.samples, *self.shape)
        y = torch.randint(10, (self.samples,))
        return Problem(model, x, y, batch or self.samples)


def mlp() -> nn.Module:
    """784-512-512-10 with ReLU: 669,706 parameters."""
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


def lenet() -> nn.Module:
    """LeNet-5 with ReLU and max pooling: 44,426 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, without normalization."""

    def __init__(self, width_in: int, width: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, 1, bias=False)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        same = stride == 1 and width_in == width
        self.shortcut = nn.Identity() if same else nn.Conv2d(width_in, width, 1, stride, bias=False)
        self.relu2 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """relu(conv2(relu(conv1(x))) + shortcut(x))."""
        y = self.conv2(self.relu1(self.conv1(x)))
        return self.relu2(y + self.shortcut(x))


def resnet18(outputs: int = 10) -> nn.Module:
    """ResNet18 with the CIFAR stem and no normalization: 11,164,352 weights of convolutions and 5,130 of the head."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.ReLU()]
    width_in = 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [ResidualBlock(width_in, width, stride), ResidualBlock(width, width, 1)]
        width_in = width
    return nn.Sequential(*layers, nn.AvgPool2d(4), nn.Flatten(), nn.Linear(512, outputs))


def tiny() -> nn.Module:
    """One convolution and one linear layer: loads every library's code before memory is measured."""
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))


CASES = {
    case.name: case
    for case in (
        Case("mlp", "MLP 784-512-512-10, 512 samples", mlp, (784,), 512, False),
        Case("lenet", "LeNet-5, 512 samples", lenet, (1, 28, 28), 512, True),
        Case("resnet18", "ResNet18 (CIFAR stem, no norm), 64 samples", resnet18, (3, 32, 32), 64, True),
    )
}
TINY = Case("tiny", "warm-up", tiny, (3, 8, 8), 4, True)
