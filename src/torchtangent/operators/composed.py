"""Sums, multiples, shifts and inverses of operators whose structure cannot absorb them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.operators.base import Operator
from torchtangent.operators.checks import check_alike
from torchtangent.operators.columns import column_squares
from torchtangent.operators.krylov import iterative
from torchtangent.operators.space import Space
from torchtangent.operators.spectrum import EXACT_LIMIT, Factorization, Spectrum, dense_spectrum, rounding

_PRODUCTS = 1000  # after which conjugate gradients give up
_LEFT = 0.01  # of ‖M‖² + ‖s I‖²: if ‖M + s I‖² is less, too much has cancelled to expand the square


@final
@dataclass(frozen=True, eq=False, repr=False)
class SumOperator(Operator):
    """M = Σ terms, for terms of different structure.

    Solves use the dense matrix up to a size of 4096 and conjugate gradients beyond, which warn
    (`ConvergenceWarning`) if they do not reach rounding accuracy.

    Example:
        >>> import torch
        >>> from torchtangent.operators import DiagonalOperator, LowRankOperator
        >>> M = DiagonalOperator(torch.ones(2)) + LowRankOperator(torch.ones(1, 2))
        >>> M.dense()
        tensor([[2., 1.],
                [1., 2.]])
    """

    terms: Sequence[Operator]
    space: Space | None = field(default=None, kw_only=True)

    products_only: ClassVar[bool] = True

    def __post_init__(self) -> None:
        sizes = sorted({term.size for term in self.terms})
        if len(sizes) != 1:
            raise ValueError(f"SumOperator needs terms of one size, got {sizes}.")
        check_alike(self.terms)
        self._describe(sizes[0], like=self.terms[0])

    def _matmat(self, V: Float[Tensor, "P K"]) -> Float[Tensor, "P K"]:
        out = self.terms[0]._matmat(V)
        for term in self.terms[1:]:
            out = out + term._matmat(V)
        return out

    def _factorize(self, damping: float) -> Factorization:
        from torchtangent.operators.dense import DenseOperator

        if self.size <= EXACT_LIMIT:
            return DenseOperator(self.dense())._factorize(damping)
        return by_iterations(self, damping)

    def _decompose(self) -> Spectrum:
        check_exact(self, "All eigenvalues", "eigh(k) finds the k largest; for all add operators of one structure")
        return dense_spectrum(self.dense())

    def _diagonal(self) -> Float[Tensor, " P"]:
        return torch.stack([term.diag() for term in self.terms]).sum(0)

    def _power_trace(self, power: int) -> Float[Tensor, ""]:
        if power == 1:
            return torch.stack([term.trace() for term in self.terms]).sum()
        check_exact(self, "The exact norm", "add operators of one structure")
        return column_squares(self)


@final
@dataclass(frozen=True, eq=False, repr=False)
class ScaledOperator(Operator):
    """factor · base, for a base whose structure cannot absorb the factor.

    Example:
        >>> import torch
        >>> from torchtangent.operators import LowRankOperator
        >>> (-2.0 * LowRankOperator(torch.ones(1, 2))).dense()
        tensor([[-2., -2.],
                [-2., -2.]])
    """

    base: Operator
    factor: float
    space: Space | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        self._describe(self.base.size, like=self.base)

    def _matmat(self, V: Float[Tensor, "P K"]) -> Float[Tensor, "P K"]:
        return self.base._matmat(V) * self.factor

    def _factorize(self, damping: float) -> Factorization:
        if self.factor > 0:
            inner = self.base._factorize(damping / self.factor)
            shift = self.size * math.log(self.factor)
            return Factorization(lambda V: inner.solve(V) / self.factor, lambda: inner.logdet() + shift)
        return spectral_or_iterative(self, damping)

    def _decompose(self) -> Spectrum:
        return self.base._spectrum.map(lambda values: self.factor * values)

    def _diagonal(self) -> Float[Tensor, " P"]:
        return self.factor * self.base.diag()

    def _power_trace(self, power: int) -> Float[Tensor, ""]:
        return self.factor**power * self.base._power_trace(power)


@final
@dataclass(frozen=True, eq=False, repr=False)
class ShiftedOperator(Operator):
    """base + shift · I.

    Example:
        >>> import torch
        >>> from torchtangent.operators import LowRankOperator
        >>> LowRankOperator(torch.ones(1, 2)).damped(1.0).dense()
        tensor([[2., 1.],
                [1., 2.]])
    """

    base: Operator
    shift: float
    space: Space | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        self._describe(self.base.size, like=self.base)

    def _matmat(self, V: Float[Tensor, "P K"]) -> Float[Tensor, "P K"]:
        return self.base._matmat(V).add(V, alpha=self.shift)

    def _factorize(self, damping: float) -> Factorization:
        return self.base._factorize(self.shift + damping)

    def _decompose(self) -> Spectrum:
        return self.base._spectrum.map(lambda values: values + self.shift)

    def _diagonal(self) -> Float[Tensor, " P"]:
        return self.base.diag() + self.shift

    def _power_trace(self, power: int) -> Float[Tensor, ""]:
        if power == 1:
            return self.base.trace() + self.size * self.shift
        apart = self.base._power_trace(2) + self.size * self.shift**2
        total = apart + 2 * self.shift * self.base.trace().double()
        if bool(total >= _LEFT * apart):
            return total
        return column_squares(self) if self.size <= EXACT_LIMIT else self._spectrum.power_trace(2)


@final
@dataclass(frozen=True, eq=False, repr=False)
class InverseOperator(Operator):
    """(base + damping · I)⁻¹, which factorizes its base once.

    Example:
        >>> import torch
        >>> from torchtangent.operators import DenseOperator
        >>> M = DenseOperator(torch.tensor([[2.0, 1.0], [1.0, 2.0]])).inverse()
        >>> (M @ torch.tensor([3.0, 3.0])).round(decimals=4)
        tensor([1., 1.])
    """

    base: Operator
    damping: float
    space: Space | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        self._describe(self.base.size, like=self.base)

    @property
    def _factor(self) -> Factorization:
        return self._once("_kept_factor", lambda: self.base._factorize(self.damping))

    def _matmat(self, V: Float[Tensor, "P K"]) -> Float[Tensor, "P K"]:
        return self._factor.solve(V)

    def _factorize(self, damping: float) -> Factorization:
        if damping != 0:
            return spectral_or_iterative(self, damping)
        return Factorization(lambda V: self.base._matmat(V).add(V, alpha=self.damping), lambda: -self._factor.logdet())

    def _decompose(self) -> Spectrum:
        self._factor  # noqa: B018  # raises if the base is singular
        return self.base._spectrum.inverse(self.damping, repr(self.base))

    def _diagonal(self) -> Float[Tensor, " P"]:
        return self._spectrum.diagonal()

    def _power_trace(self, power: int) -> Float[Tensor, ""]:
        return self._spectrum.power_trace(power)


def spectral_or_iterative(operator: Operator, damping: float) -> Factorization:
    """A factorization by eigendecomposition, or by conjugate gradients if the operator is large and matrix-free."""
    if operator.matrix_free and operator.size > EXACT_LIMIT:
        return by_iterations(operator, damping)
    return operator._spectrum.factorization(damping, repr(operator), rounding(operator.dtype, operator.size))


def by_iterations(operator: Operator, damping: float) -> Factorization:
    """Conjugate gradients, close to rounding accuracy, in the place of a factorization."""
    return iterative(operator, damping, rtol=20 * torch.finfo(operator.dtype).eps ** 0.75, max_iter=_PRODUCTS)


def check_exact(operator: Operator, what: str, advice: str) -> None:
    """Refuse to compute what would need the dense matrix of a large operator."""
    if operator.size > EXACT_LIMIT:
        raise ValueError(
            f"{what} of {operator!r} would need its dense matrix, which is formed up to a size of "
            f"{EXACT_LIMIT}: {advice}."
        )
