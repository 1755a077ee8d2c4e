"""The Fisher matrix as one dense block per module."""

from __future__ import annotations

from dataclasses import dataclass

from torchtangent.curvature.dense import DenseSum
from torchtangent.curvature.representation import Accumulator, Representation, Scope, Side


@dataclass(frozen=True)
class BlockDiagonal(Representation):
    """The blocks of F that belong to one module each (its weight and bias together), as dense matrices."""

    def start(self, scope: Scope) -> Accumulator:
        return Side([DenseSum(scope.space, own) for own in scope.modules().values()])
