"""One dense block for each module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchtangent.curvature.dense import DenseSum
from torchtangent.curvature.representation import Accumulator, Representation, Side, by_module
from torchtangent.operators import Space


@dataclass(frozen=True)
class BlockDiagonal(Representation):
    """The blocks of F that belong to one module each (its weight and bias together), as dense matrices."""

    def start(self, space: Space, names: Sequence[str]) -> Accumulator:
        return Side([DenseSum(space, own) for own in by_module(names).values()])
