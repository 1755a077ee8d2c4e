"""Operators given by their eigendecomposition in a Kronecker-factored basis (EKFAC)."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, final

from jaxtyping import Float
from torch import Tensor

from torchtangent.operators.base import Operator
from torchtangent.operators.basis import Basis, KroneckerBasis, as_basis
from torchtangent.operators.checks import check_alike
from torchtangent.operators.space import Space
from torchtangent.operators.spectrum import Factorization, Spectrum, rounding


@final
@dataclass(frozen=True, eq=False, repr=False)
class EigenOperator(Operator):
    """M = (Q_L ⊗ Q_R) diag(values) (Q_L ⊗ Q_R)ᵀ, acting on (O, I) matrices flattened in row-major order.

    In matrix form V ↦ Q_L (values ∘ (Q_Lᵀ V Q_R)) Q_Rᵀ. Bases may be thin; vectors orthogonal to them
    have eigenvalue zero. With `left = Identity(1)` it is the eigendecomposition of any P × P matrix.

    Args:
        left: Q_L (O, rL), a `Basis` or a matrix with orthonormal columns.
        right: Q_R (I, rR), likewise.
        values: (rL, rR), the eigenvalues.

    Example:
        >>> import torch
        >>> from torchtangent.operators import Identity
        >>> M = EigenOperator(Identity(2), Identity(2), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        >>> M.diag()
        tensor([1., 2., 3., 4.])
    """

    left: Basis | Tensor
    right: Basis | Tensor
    values: Tensor
    space: Space | None = field(default=None, kw_only=True)

    keeps_factorization: ClassVar[bool] = True

    def __post_init__(self) -> None:
        left, right = self._bases
        if tuple(self.values.shape) != (left.rank, right.rank):
            raise ValueError(
                f"EigenOperator with bases of ranks {left.rank} and {right.rank} needs values of shape "
                f"({left.rank}, {right.rank}), got {tuple(self.values.shape)}."
            )
        check_alike([left, right, self.values])
        self._describe(left.size * right.size, like=self.values)

    @cached_property
    def _bases(self) -> tuple[Basis, Basis]:
        return as_basis(self.left), as_basis(self.right)

    def _matmat(self, V: Float[Tensor, "P K"]) -> Float[Tensor, "P K"]:
        return self._spectrum.matmat(V)

    def _factorize(self, damping: float) -> Factorization:
        tolerance = rounding(self.dtype, max(basis.size for basis in self._bases))
        return self._spectrum.factorization(damping, repr(self), tolerance)

    def _decompose(self) -> Spectrum:
        return Spectrum(self.values.reshape(-1), KroneckerBasis(*self._bases))

    def _diagonal(self) -> Float[Tensor, " P"]:
        return self._spectrum.diagonal()

    def _power_trace(self, power: int) -> Float[Tensor, ""]:
        return self._spectrum.power_trace(power)
