"""A symmetric matrix that is stored whole."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.operators.base import Operator
from torchtangent.operators.product import product
from torchtangent.operators.scale import largest_eigenvalue
from torchtangent.operators.space import Space
from torchtangent.operators.spectrum import (
    NOISE,
    Factorization,
    Spectrum,
    dense_spectrum,
    indefinite,
    rounding,
    singular,
    square_sum,
)

_STEPS = 4  # of the power method that finds a zero eigenvalue: all others are far from it


@final
@dataclass(frozen=True, eq=False, repr=False)
class DenseOperator(Operator):
    """M = matrix.

    Solves use a Cholesky decomposition, P³/3 multiplications each time (`inverse` keeps it). If the matrix
    is not positive definite they use an LU decomposition; if it is singular up to rounding, and the damping
    is within rounding as well, the eigendecomposition, with a warning.

    Args:
        matrix: (P, P), symmetric. Products and LU decompositions read all of it, the others its lower triangle.

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
        return product(self.matrix, V)

    def _factorize(self, damping: float) -> Factorization:
        if self.dtype in (torch.float16, torch.bfloat16):  # torch decomposes none of these
            wide = DenseOperator(self.matrix.float())._factorize(damping)
            return Factorization(lambda V: wide.solve(V.float()).to(V.dtype), lambda: wide.logdet().to(self.dtype))
        A = self.matrix.clone()
        A.diagonal().add_(damping)
        L, info = torch.linalg.cholesky_ex(A)
        if info == 0:
            definite = Factorization(lambda V: torch.cholesky_solve(V, L), lambda: 2 * L.diagonal().log().sum())
            if not self._lost(definite, L.diagonal().square(), damping, definite=True):
                return definite
        else:
            LU, pivots, info = torch.linalg.lu_factor_ex(A)
            other = Factorization(lambda V: torch.linalg.lu_solve(LU, pivots, V), lambda: self._no_logdet(damping))
            if info == 0 and not self._lost(other, LU.diagonal(), damping, definite=False):
                return other
        if damping == 0:
            raise singular(repr(self), damping)
        return self._spectrum.factorization(damping, repr(self))

    def _decompose(self) -> Spectrum:
        return dense_spectrum(self.matrix)

    def _diagonal(self) -> Float[Tensor, " P"]:
        return self.matrix.diagonal().clone()

    def _power_trace(self, power: int) -> Float[Tensor, ""]:
        return self.matrix.trace() if power == 1 else square_sum(self.matrix)

    def _lost(self, factors: Factorization, pivots: Float[Tensor, " P"], damping: float, *, definite: bool) -> bool:
        """Whether the damped matrix is singular up to rounding.

        Pivots tell in most cases. In the others, the smallest eigenvalue is estimated by some solves: rounding may
        leave pivots of a singular matrix that are much larger than it.
        """
        if not self.size:
            return False
        sizes, noise = pivots.abs(), rounding(self.dtype, NOISE)
        damped = abs(damping) > noise * float(torch.linalg.matrix_norm(self.matrix.detach()))
        if bool(sizes.min() <= (noise if damped else rounding(self.dtype, self.size)) * sizes.max()):
            return True
        if damped and definite and damping > 0 and bool(sizes.min() > torch.finfo(self.dtype).eps ** 0.5 * sizes.max()):
            return False
        with torch.no_grad():
            condition = [largest_eigenvalue(times, pivots, _STEPS) for times in (self.matrix.matmul, factors.solve)]
        return noise * condition[0] * condition[1] >= 1

    def _no_logdet(self, damping: float) -> Tensor:
        raise indefinite(repr(self), float(self._spectrum.values.min()) + damping, "log-determinant")
