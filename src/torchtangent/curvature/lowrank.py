"""The Fisher matrix as the rows that span it: F = RᵀR."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtangent.curvature.representation import Accumulator, Blocks, Layers, Representation, Scope, in_a_row
from torchtangent.jacobians.together import side_by_side
from torchtangent.operators import LowRankOperator, Space


@dataclass(frozen=True)
class LowRank(Representation):
    """F = RᵀR with the N·M rows u_mnᵀ J_n / √N: exact, and small when P is much larger than N·M."""

    def start(self, scope: Scope) -> Accumulator:
        return RowList(scope.space, scope.names)


class RowList(Accumulator):
    """All rows u_mnᵀ J_n."""

    def __init__(self, space: Space, names: Sequence[str]) -> None:
        self.names, self.place = names, in_a_row(space, names)
        self.rows: list[Tensor] = []

    def update(self, layers: Layers) -> None:
        self.rows.append(side_by_side([layers[name] for name in self.names]).flatten(0, 1))

    def finish(self, n: int) -> Blocks:
        return [(self.place, LowRankOperator(torch.cat(self.rows) / n**0.5))]
