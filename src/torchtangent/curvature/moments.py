"""Sums of outer products Σ r rᵀ, kept as the rows r while these are few."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.operators import DenseOperator, LowRankOperator, Operator
from torchtangent.operators.product import product
from torchtangent.operators.symmetric import add_gram, reflect

_SMALL = 256  # rows of a matrix that is summed in float64
_QUICK = 1 << 22  # multiplications: with fewer, its products are in float64, too, as some directions may be zero
_ROWS = 1 << 16  # at a time


class Moment:
    """Σ_r r rᵀ over rows r of length n, one such sum for each of G groups.

    With one group and at most n/2 rows, the rows themselves are kept: they are smaller than the matrix, which has low
    rank, and its eigenvectors cost R²n instead of n³ for R rows.
    """

    def __init__(self, thin: bool = True) -> None:
        self.thin = thin  # whether rows may be kept
        self.rows: list[Tensor] = []
        self.total: Tensor | None = None
        self.dtype: torch.dtype  # of the rows

    def add(self, rows: Float[Tensor, "G R I"]) -> None:
        G, R, I = rows.shape
        if self.thin and self.total is None and G == 1 and sum(map(len, self.rows)) + R <= I // 2:
            self.rows.append(rows[0].clone())  # they may be views of inputs, and a loader may reuse its buffer
            return
        self._add(self._matrix(rows), rows)

    def add_matrix(self, product: Float[Tensor, "G I I"]) -> None:
        """Add a product rowsᵀ rows that is already formed."""
        self._matrix(product).add_(product)

    def _matrix(self, like: Float[Tensor, "G _ I"]) -> Float[Tensor, "G I I"]:
        """The sum as a matrix, of which only the lower triangle is filled; rows kept so far are added to it."""
        if self.total is None:
            n, self.dtype = like.shape[2], like.dtype
            self.total = like.new_zeros(like.shape[0], n, n, dtype=torch.float64 if n <= _SMALL else like.dtype)
        for old in self.rows:
            self._add(self.total, old.unsqueeze(0))
        self.rows = []
        return self.total

    @staticmethod
    def _add(total: Float[Tensor, "G I I"], rows: Float[Tensor, "G R I"]) -> None:
        """total += rowsᵀ rows."""
        if total.dtype == rows.dtype:
            add_gram(total[0] if len(total) == 1 else total, rows[0] if len(total) == 1 else rows)
        elif rows.shape[2] * rows.numel() > _QUICK:
            total += product(rows.mT, rows)
        else:
            for part in rows.split(_ROWS, 1):
                total += part.double().mT @ part.double()

    def rows_or_lower(self, scale: float | Tensor) -> Float[Tensor, "G _ I"]:
        """`scale` times the sum: either its rows r or, once it is a matrix, its lower triangle. Uses up the sum."""
        total, self.total = self.total, None
        if total is None:
            rows, self.rows = self.rows, []
            return (torch.cat(rows) * scale**0.5).unsqueeze(0)
        return total.mul_(scale).to(self.dtype)

    def operators(self, scale: float) -> list[Operator]:
        """`scale` times the sum, as one operator per group. Uses up the sum."""
        few = self.total is None
        scaled = self.rows_or_lower(scale)
        if few:
            return [LowRankOperator(scaled[0])]
        return [DenseOperator(reflect(matrix)) for matrix in scaled]
