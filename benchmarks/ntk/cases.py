"""The kernels that every library computes: a network with its outputs and its width, and a number of samples."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.cases import ResidualBlock, resnet18


@dataclass(frozen=True)
class Case:
    """The kernel of `samples` random inputs; `width` multiplies the hidden widths."""

    network: str
    samples: int
    outputs: int = 1
    width: float = 1.0

    def model(self) -> nn.Module:
        """The network in eval mode, with torch's initial weights from a fixed seed."""
        torch.manual_seed(0)
        return NETWORKS[self.network][0](self.outputs, self.width).eval()

    def save(self, path: Path) -> None:
        """Writes the case, its layers, weights and inputs, for every library the same, into one `.npz`."""
        model = self.model()
        x = torch.randn(self.samples, *NETWORKS[self.network][1], generator=torch.Generator().manual_seed(1))
        about = json.dumps({"case": asdict(self), "layers": layers(model)})
        np.savez(path, about=about, x=x.numpy(), **{name: p.numpy() for name, p in model.state_dict().items()})


def load(data: Mapping[str, np.ndarray]) -> tuple[nn.Module, Tensor]:
    """The network and the inputs that `Case.save` wrote."""
    model = Case(**json.loads(str(data["about"]))["case"]).model()
    model.load_state_dict({name: torch.from_numpy(data[name]) for name in model.state_dict()})
    return model, torch.from_numpy(data["x"])


def mlp(outputs: int, width: float) -> nn.Module:
    """3072-100-100-outputs with ReLU."""
    hidden = int(100 * width)
    return nn.Sequential(
        nn.Linear(3072, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs)
    )


def lenet(outputs: int, width: float) -> nn.Module:
    """LeNet-5 for CIFAR: valid 5x5 convolutions, ReLU, average pooling."""
    a, b, c, d = (int(n * width) for n in (6, 16, 120, 84))
    return nn.Sequential(
        nn.Conv2d(3, a, 5),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(a, b, 5),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(25 * b, c),
        nn.ReLU(),
        nn.Linear(c, d),
        nn.ReLU(),
        nn.Linear(d, outputs),
    )


def _resnet18(outputs: int, width: float) -> nn.Module:
    if width != 1:
        raise ValueError(f"the ResNet18 of the benchmark has one width, got {width} times it")
    return resnet18(outputs)


NETWORKS = {"mlp": (mlp, (3072,)), "lenet": (lenet, (3, 32, 32)), "resnet18": (_resnet18, (3, 32, 32))}


class Row(NamedTuple):
    """A row of the table, and how many times the best peer we have to be."""

    title: str
    case: Case
    target: float


TABLE = {
    "mlp": Row("MLP 3072-100-100-1", Case("mlp", 2000), 4),
    "mlp-10": Row("MLP 3072-100-100-10, full C×C", Case("mlp", 300, outputs=10), 4),
    "lenet": Row("LeNet, 1 output", Case("lenet", 2000), 6),
    "lenet-10": Row("LeNet, 10 outputs, full C×C", Case("lenet", 300, outputs=10), 6),
    "resnet18": Row("ResNet18 (CIFAR stem, no norm), 1 output", Case("resnet18", 48), 3),
}


@dataclass(frozen=True)
class Curve:
    """How cost grows with one field of a case; every library keeps the setting that was best for the table's case."""

    base: str
    axis: str
    values: tuple[float, ...]
    samples: int

    def cases(self) -> list[Case]:
        """One case per value."""
        at = replace(TABLE[self.base].case, samples=self.samples)
        return [replace(at, **{self.axis: value}) for value in self.values]


CURVES = tuple(
    curve
    for network in ("mlp", "lenet")
    for curve in (
        Curve(network, "samples", (250, 500, 1000, 2000), 2000),
        Curve(f"{network}-10", "outputs", (1, 2, 5, 10, 20), 100),
        Curve(network, "width", (0.5, 1, 2, 4), 500),
    )
)


def layers(module: nn.Module, name: str = "") -> list[list[Any]]:
    """The network as data, for libraries outside torch: kind, name of the parameters, what else it takes.

    >>> layers(nn.Sequential(nn.Linear(2, 3), nn.ReLU()))
    [['linear', '0'], ['relu']]
    """
    match module:
        case nn.Sequential():
            return [found for child, part in module.named_children() for found in layers(part, _join(name, child))]
        case nn.Linear():
            return [["linear", name]]
        case nn.Conv2d():
            return [["conv", name, list(module.stride), list(module.padding)]]
        case nn.ReLU():
            return [["relu"]]
        case nn.AvgPool2d():
            return [["average", module.kernel_size]]
        case nn.Flatten():
            return [["flatten"]]
        case nn.Identity():
            return []
        case ResidualBlock():
            parts = {part: layers(getattr(module, part), _join(name, part)) for part, _ in module.named_children()}
            return [["sum", parts["conv1"] + parts["relu1"] + parts["conv2"], parts["shortcut"]], *parts["relu2"]]
    raise TypeError(f"no description of {type(module).__name__} {name!r}: add it here and in peers/neural_tangents.py")


def _join(name: str, child: str) -> str:
    return f"{name}.{child}" if name else child
