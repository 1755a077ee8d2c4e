"""Kronecker products of two operators (KFAC)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.operators.base import Operator
from torchtangent.operators.basis import KroneckerBasis, both_sides
from torchtangent.operators.checks import check_alike
from torchtangent.operators.space import Space
from torchtangent.operators.spectrum import Factorization, Spectrum


@final
@dataclass(frozen=True, eq=False, repr=False)
class KroneckerOperator(Operator):
    """M = left ⊗ right: on row-major vec of (O, I) matrices, V ↦ left V right.

    Damped solves are exact, in the eigenbasis of both factors, which are decomposed once; thin factors
    (`LowRankOperator`) stay thin.

    Args:
        left: acts on rows, size O.
        right: acts on columns, size I.

    Example:
        >>> import torch
        >>> from torchtangent.operators import DenseOperator, DiagonalOperator
        >>> A = DenseOperator(torch.tensor([[2.0, 1.0], [1.0, 2.0]]))
        >>> M = KroneckerOperator(DiagonalOperator(torch.tensor([1.0, 10.0])), A)
        >>> (M @ torch.tensor([1.0, 0.0, 0.0, 1.0])).view(2, 2)
        tensor([[ 2.,  1.],
                [10., 20.]])
        >>> M.trace()  # 11 · 4
        tensor(44.)
    """

    left: Operator
    right: Operator
    space: Space | None = field(default=None, kw_only=True)

    keeps_factorization: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_alike([self.left, self.right])
        self._describe(self.left.size * self.right.size, like=self.left)

    def _matmat(self, V: Float[Tensor, "P K"]) -> Float[Tensor, "P K"]:
        return both_sides(self.left._matmat, self.right._matmat, V, (self.left.size, self.right.size))

    def _factorize(self, damping: float) -> Factorization:
        if damping != 0:
            return self._spectrum.factorization(damping, repr(self))
        left, right = self.left._factorize(0.0), self.right._factorize(0.0)
        return Factorization(
            lambda V: both_sides(left.solve, right.solve, V, (self.left.size, self.right.size)),
            lambda: self._spectrum.logdet(0.0, repr(self)),
        )

    def _decompose(self) -> Spectrum:
        left, right = self.left._spectrum.completed(), self.right._spectrum.completed()
        values = torch.outer(left.values, right.values)
        return Spectrum(values.reshape(-1), KroneckerBasis(left.basis, right.basis), noise=left.noise + right.noise)

    def _diagonal(self) -> Float[Tensor, " P"]:
        return torch.outer(self.left.diag(), self.right.diag()).reshape(-1)

    def _power_trace(self, power: int) -> Float[Tensor, ""]:
        return self.left._power_trace(power) * self.right._power_trace(power)
