"""What an optimizer does with the second moments of its layers: the one place where KFAC and EKFAC differ."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from torch import Tensor

from torchtangent.optim.layer import Layer

State = dict[str, Tensor]
Squares = Callable[..., Tensor]


class Method(ABC):
    """From second moments to preconditioned gradients, without memory of its own.

    Attributes:
        kind: Its name.
        fresh: Whether per-sample gradients are needed at every step, not only for decompositions.
    """

    kind: str
    fresh: bool

    @abstractmethod
    def decompose(self, layer: Layer, B: Tensor, A: Tensor, damping: float) -> State:
        """What is kept of a layer's second moments until the next decomposition."""

    @abstractmethod
    def solve(
        self, layer: Layer, state: State, raw: Tensor, full: Tensor, damping: float, squares: Squares, n: int
    ) -> tuple[Tensor, State]:
        """(F_layer + ε)⁻¹ full and the new state, from n samples.

        `raw` is the gradient without weight decay (the same tensor if there is none), and `squares(left, right)` the
        mean of squared per-sample gradients in a Kronecker basis.
        """

    @abstractmethod
    def scale(self, values: Tensor, raw: Tensor, squares: Squares, n: int) -> Tensor:
        """The eigenvalues to divide by, from the last ones and from what this step knows."""
