"""Low-rank matrices, given by a factor."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, final

from jaxtyping import Float
from torch import Tensor

from torchtangent.operators.base import Operator
from torchtangent.operators.product import product
from torchtangent.operators.space import Space
from torchtangent.operators.spectrum import Factorization, Spectrum, rounding, square_sum, thin_spectrum


@final
@dataclass(frozen=True, eq=False, repr=False)
class LowRankOperator(Operator):
    """M = rowsᵀ rows. If there are fewer rows than columns, nothing of size P × P is ever formed.

    Args:
        rows: (R, P), for instance the rows of a Jacobian over √N.

    Example:
        >>> import torch
        >>> M = LowRankOperator(torch.tensor([[3.0, 4.0]]))
        >>> (26 * M.solve(torch.tensor([3.0, 4.0]), damping=1.0)).round(decimals=4)
        tensor([3., 4.])
        >>> M.eigh().values.round(decimals=4)
        tensor([25.])
    """

    rows: Tensor
    space: Space | None = field(default=None, kw_only=True)

    keeps_factorization: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.rows.ndim != 2:
            raise ValueError(f"LowRankOperator needs rows of shape (R, P), got {tuple(self.rows.shape)}.")
        self._describe(self.rows.shape[1], like=self.rows)

    def _matmat(self, V: Float[Tensor, "P K"]) -> Float[Tensor, "P K"]:
        return product(self.rows.T, product(self.rows, V))

    def _factorize(self, damping: float) -> Factorization:
        return self._spectrum.factorization(damping, repr(self), rounding(self.dtype, max(self.rows.shape)))

    def _decompose(self) -> Spectrum:
        return thin_spectrum(self.rows)

    def _diagonal(self) -> Float[Tensor, " P"]:
        return self.rows.square().sum(0)

    def _power_trace(self, power: int) -> Float[Tensor, ""]:
        if power == 1:
            return self.rows.square().sum()
        R, P = self.rows.shape
        rows = self.rows if R <= P else self.rows.T
        return square_sum(product(rows, rows.T))
