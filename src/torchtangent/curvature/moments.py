"""Sums of outer products Σ r rᵀ, kept as their rows while these are few."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.operators import DenseOperator, LowRankOperator, Operator
from torchtangent.operators.symmetric import add_gram, reflect


class Moment:
    """Σ_r r rᵀ for rows of length n; G groups have one each.

    While there are at most n/2 rows (one group), the rows themselves are the smaller and the better form: the
    matrix then has low rank, and its eigenvectors cost R²n instead of n³.
    """

    def __init__(self, thin: bool = True) -> None:
        self.thin = thin  # whether rows may be kept
        self.rows: list[Tensor] = []
        self.total: Tensor | None = None

    def add(self, rows: Float[Tensor, "G R I"]) -> None:
        G, R, I = rows.shape
        if self.thin and self.total is None and G == 1 and sum(map(len, self.rows)) + R <= I // 2:
            self.rows.append(rows[0].clone())  # they may be the user's inputs, of which a loader refills the buffer
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
        """The sum as a matrix (its lower triangle); rows that were kept go into it."""
        if self.total is None:
            self.total = like.new_zeros(like.shape[0], like.shape[2], like.shape[2])
        for old in self.rows:
            add_gram(self.total[0], old)
        self.rows = []
        return self.total

    def rows_or_lower(self, scale: float | Tensor) -> Float[Tensor, "G _ I"]:
        """`scale` times the sum: the rows r of which it is Σ r rᵀ, or itself, of which the lower triangle counts."""
        if self.total is None:
            return (torch.cat(self.rows) * scale**0.5).unsqueeze(0)
        return self.total.mul_(scale)

    def operators(self, scale: float) -> list[Operator]:
        """`scale` times the sum, one operator for each group; the sum is given away."""
        found = self.rows_or_lower(scale)
        if self.total is None:
            return [LowRankOperator(found[0])]
        return [DenseOperator(reflect(matrix)) for matrix in found]
