"""The diagonal of the Fisher matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtangent.curvature.representation import Accumulator, Blocks, Layers, Representation, Scope, in_a_row
from torchtangent.operators import DiagonalOperator, Space


@dataclass(frozen=True)
class Diagonal(Representation):
    """diag(F) = (1/N) Σ_nm (J_nᵀ u_mn)²."""

    def start(self, scope: Scope) -> Accumulator:
        return DiagonalSum(scope.space, scope.names)


class DiagonalSum(Accumulator):
    """Σ J² over some parameters."""

    def __init__(self, space: Space, names: Sequence[str]) -> None:
        self.place = in_a_row(space, names)
        self.total: dict[str, Tensor | float] = dict.fromkeys(names, 0.0)

    def update(self, layers: Layers) -> None:
        for name in self.total:
            self.total[name] = self.total[name] + layers[name].square_sum()

    def finish(self, n: int) -> Blocks:
        values = torch.cat([t.flatten() for t in self.total.values() if isinstance(t, Tensor)])
        return [(self.place, DiagonalOperator(values.div_(n)))]
