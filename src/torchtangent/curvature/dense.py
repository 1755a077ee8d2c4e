"""The whole Fisher matrix, or one dense block of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from torchtangent.curvature.representation import Accumulator, Blocks, Layers, Representation, Scope, in_a_row
from torchtangent.jacobians.together import side_by_side
from torchtangent.operators import DenseOperator, Space, memory
from torchtangent.operators.symmetric import add_gram, reflect

_INSTEAD = "Choose parameters with params=, or KFAC, EKFAC, LowRank or Implicit, which are smaller."


@dataclass(frozen=True)
class Dense(Representation):
    """F = (1/N) Σ Jᵀ Λ J as a P × P matrix."""

    def start(self, scope: Scope) -> Accumulator:
        return DenseSum(scope.space, scope.names)


class DenseSum(Accumulator):
    """Σ JᵀJ over some parameters."""

    def __init__(self, space: Space, names: Sequence[str]) -> None:
        self.names, self.place = names, in_a_row(space, names)
        self.total: Tensor | None = None

    def update(self, layers: Layers) -> None:
        own = [layers[name] for name in self.names]
        if self.total is None:
            P, like = sum(layer.shape.numel() for layer in own), own[0].d
            memory.require("A dense block of F", (P, P), like.dtype, like.device, _INSTEAD)
        J = side_by_side(own).flatten(0, 1)
        if self.total is None:
            self.total = memory.zeros((P, P), J.dtype, J.device)
        add_gram(self.total, J)

    def finish(self, n: int) -> Blocks:
        assert self.total is not None
        return [(self.place, DenseOperator(reflect(self.total.div_(n))))]
