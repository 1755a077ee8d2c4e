"""Sums of outer products Σ r rᵀ, kept as the rows r while these are few."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.operators import DenseOperator, LowRankOperator, Operator
from torchtangent.operators.symmetric import add_gram, reflect


class Moment:
    """Σ_r r rᵀ over rows r of length n, one such sum for each of G groups.

    With one group and at most n/2 rows, the rows themselves are kept: they are smaller than the matrix, which has low
    rank, and its eigenvectors cost R²n instead of n³ for R rows.
    """

    def __init__(self, thin: bool = True) -> None:
        self.thin = thin  # whether rows may be kept
        self.rows: list[Tensor] = []
        self.total: Tensor | None = None

    def add(self, rows: Float[Tensor, "G R I"]) -> None:
        G, R, I = rows.shape
        if self.thin and self.total is None and G == 1 and sum(map(len, self.rows)) + R <= I // 2:
            self.rows.append(rows[0].clone())  # they may be views of inputs, and a loader may reuse its buffer
            return
        total = self._matrix(rows)
        if G == 1:
            add_gram(total[0], rows[0])
        else:
            add_gram(total, rows)

    def add_matrix(self, product: Float[Tensor, "G I I"]) -> None:
        """Add a product rowsᵀ rows that is already formed."""
        self._matrix(product).add_(product)

    def _matrix(self, like: Float[Tensor, "G _ I"]) -> Float[Tensor, "G I I"]:
        """The sum as a matrix, of which only the lower triangle is filled; rows kept so far are added to it."""
        if self.total is None:
            self.total = like.new_zeros(like.shape[0], like.shape[2], like.shape[2])
        for old in self.rows:
            add_gram(self.total[0], old)
        self.rows = []
        return self.total

    def rows_or_lower(self, scale: float | Tensor) -> Float[Tensor, "G _ I"]:
        """`scale` times the sum: either its rows r or, once it is a matrix, its lower triangle. Uses up the sum."""
        if self.total is None:
            return (torch.cat(self.rows) * scale**0.5).unsqueeze(0)
        return self.total.mul_(scale)

    def operators(self, scale: float) -> list[Operator]:
        """`scale` times the sum, as one operator per group. Uses up the sum."""
        scaled = self.rows_or_lower(scale)
        if self.total is None:
            return [LowRankOperator(scaled[0])]
        return [DenseOperator(reflect(matrix)) for matrix in scaled]
