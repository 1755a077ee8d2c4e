"""A symmetric matrix that is stored whole."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.operators.base import Operator
from torchtangent.operators.space import Space
from torchtangent.operators.spectrum import (
    Factorization,
    Spectrum,
    dense_spectrum,
    indefinite,
    rounding,
    singular,
)


@final
@dataclass(frozen=True, eq=False, repr=False)
class DenseOperator(Operator):
    """M = matrix.

    Solves are by Cholesky decomposition, P³/3 multiplications each time (`inverse` keeps it); a matrix
    that is not positive definite is solved by LU decomposition.

    Args:
        matrix: (P, P), symmetric; only its lower triangle enters solves and eigendecompositions.

    Example:
        >>> import torch
        >>> M = DenseOperator(torch.tensor([[2.0, 1.0], [1.0, 2.0]]))
        >>> M.solve(torch.tensor([3.0, 3.0])).round(decimals=4)
        tensor([1., 1.])
        >>> M.eigh().values.round(decimals=4)
        tensor([3., 1.])
    """

    matrix: Tensor
    space: Space | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.matrix.ndim != 2 or self.matrix.shape[0] != self.matrix.shape[1]:
            raise ValueError(f"DenseOperator needs a square matrix, got {tuple(self.matrix.shape)}.")
        self._describe(len(self.matrix), like=self.matrix)

    def _matmat(self, V: Float[Tensor, "P K"]) -> Float[Tensor, "P K"]:
        return torch.mm(self.matrix, V)

    def _factorize(self, damping: float) -> Factorization:
        A = self.matrix.clone()
        A.diagonal().add_(damping)
        L, info = torch.linalg.cholesky_ex(A)
        if info == 0:
            self._check_pivots(L.diagonal().square(), damping)
            return Factorization(lambda V: torch.cholesky_solve(V, L), lambda: 2 * L.diagonal().log().sum())
        LU, pivots, info = torch.linalg.lu_factor_ex(A)
        if info != 0:
            raise singular(repr(self), damping)
        self._check_pivots(LU.diagonal(), damping)
        return Factorization(lambda V: torch.linalg.lu_solve(LU, pivots, V), lambda: self._no_logdet(damping))

    def _decompose(self) -> Spectrum:
        return dense_spectrum(self.matrix)

    def _diagonal(self) -> Float[Tensor, " P"]:
        return self.matrix.diagonal().clone()

    def _power_trace(self, power: int) -> Float[Tensor, ""]:
        return self.matrix.trace() if power == 1 else self.matrix.square().sum()

    def _check_pivots(self, pivots: Tensor, damping: float) -> None:
        """Refuse a matrix that is singular up to rounding, unless damping was asked for."""
        sizes = pivots.abs()
        if damping == 0 and bool(sizes.min() <= rounding(self.dtype, self.size) * sizes.max()):
            raise singular(repr(self), damping)

    def _no_logdet(self, damping: float) -> Tensor:
        raise indefinite(repr(self), float(self._spectrum.values.min()) + damping, "log-determinant")
