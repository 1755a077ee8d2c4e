"""The tiles of a kernel: blocks of samples against samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from jaxtyping import Float
from torch import Tensor

Key = tuple[int, int]


@dataclass(frozen=True)
class Tile:
    """A block of the kernel: samples `rows` of the first axis against samples `cols` of the second."""

    i: int
    j: int
    rows: slice = field(hash=False)  # a slice has no hash before Python 3.12
    cols: slice = field(hash=False)

    @property
    def key(self) -> Key:
        """Its row and column among the tiles."""
        return self.i, self.j

    @property
    def shape(self) -> tuple[int, int]:
        """The number of samples along each axis."""
        return self.rows.stop - self.rows.start, self.cols.stop - self.cols.start

    @property
    def pairs(self) -> int:
        """How many pairs of samples it holds."""
        return math.prod(self.shape)


def tiles_of(edges1: Sequence[int], edges2: Sequence[int], symmetric: bool) -> list[Tile]:
    """All tiles, row by row; of a symmetric kernel those on and below the diagonal.

    Args:
        edges1: Where tiles begin along the first axis, and where the last one ends.
        edges2: The same along the second.
        symmetric: Whether K[n, m, c, e] = K[m, n, e, c].

    Returns:
        The tiles.

    >>> [tile.key for tile in tiles_of([0, 4, 6], [0, 4, 6], symmetric=True)]
    [(0, 0), (1, 0), (1, 1)]
    >>> left, right = tiles_of([0, 6], [0, 4, 5], symmetric=False)
    >>> right
    Tile(i=0, j=1, rows=slice(0, 6, None), cols=slice(4, 5, None))
    >>> left.pairs, right.pairs
    (24, 6)
    """
    if symmetric and list(edges1) != list(edges2):
        raise ValueError(f"A symmetric kernel needs the same edges1 and edges2, got {edges1} and {edges2}.")
    rows, cols = ([slice(*ends) for ends in pairwise(edges)] for edges in (edges1, edges2))
    return [Tile(i, j, r, c) for i, r in enumerate(rows) for j, c in enumerate(cols[: i + 1] if symmetric else cols)]


def mirror(block: Float[Tensor, "N M *C"]) -> Float[Tensor, "M N *E"]:
    """The block on the other side of the diagonal, K[m, n, e, c] for K[n, m, c, e]; a view."""
    block = block.transpose(0, 1)
    return block.transpose(2, 3) if block.dim() == 4 else block
