"""The whole Fisher matrix, or one dense block of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtangent.curvature.representation import Accumulator, Blocks, Layers, Representation, Scope, in_a_row
from torchtangent.operators import DenseOperator, Space
from torchtangent.operators.memory import require
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
        if self.total is None:
            size, like = sum(layers[name].shape.numel() for name in self.names), layers[self.names[0]].d
            require("A dense block of F", (size, size), like.dtype, like.device, _INSTEAD)
        J = torch.cat([layers[name].flat() for name in self.names], 2).flatten(0, 1)
        if self.total is None:
            self.total = J.new_zeros(J.shape[1], J.shape[1])
        add_gram(self.total, J)

    def finish(self, n: int) -> Blocks:
        assert self.total is not None
        return [(self.place, DenseOperator(reflect(self.total.div_(n))))]
