"""How second moments become preconditioned gradients: the one place where KFAC and EKFAC differ."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from torchtangent.optim.layer import Layer, Parts, PerSample

BlockState = dict[str, Tensor]
Solved = list[tuple[dict[str, Tensor], BlockState]]
"""For each layer its preconditioned gradient, by parameter, and its new state."""


@dataclass(frozen=True, eq=False)
class System:
    """The system (F_layer + ε) u = ∇ of one layer, to be solved for u.

    Attributes:
        layer: The layer.
        state: What is kept of its second moments.
        raw: Its gradient without weight decay.
        full: Its gradient with weight decay; the same object as `raw` if there is none.
        damping: ε.
        per_sample: The per-sample gradients, if `raw` may be a multiple of their mean; empty if it is not.
        project: (left, right) ↦ `raw` in this Kronecker basis, and the mean of squared per-sample gradients in it.
    """

    layer: Layer
    state: BlockState
    raw: Parts
    full: Parts
    damping: float
    per_sample: PerSample
    project: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class Method(ABC):
    """Turns second moments into preconditioned gradients. It is stateless.

    Attributes:
        kind: The name of the optimizer.
        fresh: Whether per-sample gradients are needed at every step, not only for decompositions.
        by_rows: Whether `decompose` also takes a second moment Σ r rᵀ as its few rows r.
    """

    kind: str
    fresh: bool
    by_rows: bool

    @abstractmethod
    def options(self) -> dict[str, Any]:
        """Its options, by the names that they have as arguments of the optimizer."""

    @abstractmethod
    def decompose(self, layer: Layer, B: Tensor, A: Tensor, damping: float) -> BlockState:
        """What is kept of a layer's second moments until the next decomposition."""

    @abstractmethod
    def solve(self, systems: Sequence[System], n: int) -> Solved:
        """(F_layer + ε)⁻¹ `full` of each layer. n is the number of samples."""

    @abstractmethod
    def scale(self, last: Tensor | None, raw: Tensor, squares: Callable[[], Tensor], n: int) -> Tensor:
        """The new diagonal, from the last one unless it is due, and from the gradient and squares of samples' ones."""
