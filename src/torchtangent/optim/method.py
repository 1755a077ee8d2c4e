"""What an optimizer does with the second moments of its layers: the one place where KFAC and EKFAC differ."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from torchtangent.optim.layer import Layer, Parts, Passes

State = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Task:
    """A layer whose gradient is to be preconditioned.

    Attributes:
        layer: The layer.
        state: What is kept of its second moments.
        raw: Its gradient without weight decay.
        full: Its gradient; the same mapping if there is no weight decay.
        damping: ε.
        passes: Each sample's gradient, where `raw` may be a multiple of their mean.
        project: (left, right) ↦ `raw` in a Kronecker basis, and the mean of squared per-sample gradients there.
    """

    layer: Layer
    state: State
    raw: Parts
    full: Parts
    damping: float
    passes: Passes
    project: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class Method(ABC):
    """From second moments to preconditioned gradients, without memory of its own.

    Attributes:
        kind: Its name.
        fresh: Whether per-sample gradients are needed at every step, not only for decompositions.
        by_rows: Whether it decomposes second moments that are known by a few rows.
    """

    kind: str
    fresh: bool
    by_rows: bool

    @abstractmethod
    def options(self) -> dict[str, Any]:
        """Its options, by the names that the optimizer takes them under."""

    @abstractmethod
    def decompose(self, layer: Layer, B: Tensor, A: Tensor, damping: float) -> State:
        """What is kept of a layer's second moments until the next decomposition."""

    @abstractmethod
    def solve(self, tasks: Sequence[Task], n: int) -> list[tuple[dict[str, Tensor], State]]:
        """(F_layer + ε)⁻¹ full by parameter and the new state of each layer, from n samples."""

    @abstractmethod
    def scale(self, values: Tensor, raw: Tensor, squares: Callable[[], Tensor], n: int) -> Tensor:
        """The numbers to divide by, from the last ones, the mean gradient and the mean of squared per-sample ones."""
