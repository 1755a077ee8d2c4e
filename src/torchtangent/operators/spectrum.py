"""Eigendecompositions, and functions of a symmetric matrix by means of them.

With orthonormal columns Q (P, R), and the eigenvalue ρ of all vectors orthogonal to them,

    f(M) = Q f(Λ) Qᵀ + f(ρ) (I − Q Qᵀ)

so damped solves, square roots and log-determinants are the same few lines for every operator.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import forward_ad

from torchtangent.notice import warn
from torchtangent.operators.basis import Basis, Columns, Identity, pick
from torchtangent.operators.symmetric import eigh

EXACT_LIMIT = 4096
"""The largest size at which an operator without structure is turned into a dense matrix implicitly."""

_LONG = 1 << 14  # rows of a matrix that LAPACK decomposes at a time

NOISE = 10
"""A decomposition finds a zero eigenvalue within this many roundings of the largest one (measured: up to 6)."""


class Eigh(NamedTuple):
    """Eigenpairs, M = Q diag(values) Qᵀ.

    Attributes:
        values: (R,), in descending order.
        vectors: the basis Q; `vectors.dense()` is the (P, R) matrix.
    """

    values: Float[Tensor, " R"]
    vectors: Basis


class Factorization(NamedTuple):
    """What a factorization of A = M + damping·I provides.

    Attributes:
        solve: V (P, K) ↦ A⁻¹ V.
        logdet: () ↦ log det A; a ValueError if A is not positive definite.
    """

    solve: Callable[[Tensor], Tensor]
    logdet: Callable[[], Tensor]


@dataclass(frozen=True, eq=False)
class Spectrum:
    """All eigenvalues of a symmetric matrix, in any order.

    Attributes:
        values: (R,), the eigenvalues of the columns of the basis.
        basis: Q (P, R), with R < P if it is thin.
        rest: ρ, the eigenvalue of the orthogonal complement of a thin basis.
        noise: how far rounding may have moved a zero eigenvalue, relative to the largest.
    """

    values: Float[Tensor, " R"]
    basis: Basis
    rest: float = 0.0
    noise: float = 0.0

    @property
    def missing(self) -> int:
        """P − R, the dimension of the orthogonal complement."""
        return self.basis.size - self.basis.rank

    def map(self, function: Callable[[Tensor], Tensor]) -> Spectrum:
        """The spectrum of f(M) for an entrywise f."""
        rest = float(function(torch.tensor(self.rest, dtype=torch.float64, device="cpu"))) if self.missing else 0.0
        return Spectrum(function(self.values), self.basis, rest)

    def matmat(self, V: Float[Tensor, "P K"]) -> Float[Tensor, "P K"]:
        """M V = Q Λ Qᵀ V + ρ (V − Q Qᵀ V)."""
        values, C = self.values.unsqueeze(1), self.basis.project(V)
        if self.rest == 0:
            return self.basis.lift(values * C)
        # Rounding leaves a part of Q in the complement, which ρ, perhaps 1/damping, would amplify:
        # project once more.
        W = V - self.basis.lift(C)
        D = self.basis.project(W)
        return self.basis.lift(values * (C + D) - self.rest * D).add_(W, alpha=self.rest)

    def diagonal(self) -> Float[Tensor, " P"]:
        """The diagonal of M, (Q ∘ Q)(Λ − ρ) + ρ."""
        if self.rest == 0:
            return self.basis.lift_squared(self.values[:, None])[:, 0]
        return self.basis.lift_squared((self.values - self.rest)[:, None])[:, 0] + self.rest

    def power_trace(self, power: int) -> Float[Tensor, ""]:
        """The trace of M (power 1) or M² (power 2)."""
        total = self.values.sum() if power == 1 else square_sum(self.values)
        return total + self.missing * self.rest**power if self.missing else total

    def inverse(self, damping: float, name: str, tolerance: float = 0.0) -> Spectrum:
        """The spectrum of (M + damping·I)⁻¹; an error if an eigenvalue is zero.

        Args:
            damping: added to every eigenvalue.
            name: the operator's name, for the error.
            tolerance: if damping is zero, eigenvalues below tolerance · max |λ| count as zero.
        """
        shifted, _ = self.shifted(damping, name, tolerance)
        rest = 1 / (self.rest + damping) if self.missing else 0.0
        return Spectrum(shifted.reciprocal_(), self.basis, rest)

    def logdet(self, damping: float, name: str, tolerance: float = 0.0) -> Float[Tensor, ""]:
        """log det(M + damping·I); an error if that is not positive definite."""
        shifted, smallest = self.shifted(damping, name, tolerance)
        if smallest < 0:
            raise indefinite(name, smallest, "log-determinant")
        return shifted.log_().sum() + (self.missing * math.log(self.rest + damping) if self.missing else 0.0)

    def factorization(self, damping: float, name: str, tolerance: float = 0.0) -> Factorization:
        """Damped solves and log-determinants from the eigenvalues."""
        return Factorization(
            self.inverse(damping, name, tolerance).matmat,
            lambda: self.logdet(damping, name, tolerance),
        )

    def root(self, name: str) -> Spectrum:
        """The spectrum of M^½; an error if M has an eigenvalue more negative than rounding explains."""
        values = [*self._extremes.tolist(), self.rest] if self.values.numel() else [self.rest]
        largest, smallest = max(map(abs, values)), min(values)
        # In practice rounding grows like √P; a factor P would excuse anything for large float32 operators.
        if smallest < -rounding(self.values.dtype, 10 * math.isqrt(self.basis.size)) * largest:
            raise indefinite(name, smallest, "square root")
        return self.map(lambda values: values.clamp(min=0).sqrt())

    def completed(self) -> Spectrum:
        """The same spectrum with ρ = 0: a thin basis with ρ ≠ 0 is completed to a full one."""
        if not self.missing or self.rest == 0:
            return self
        if self.basis.size > EXACT_LIMIT:
            raise ValueError(
                f"{self.missing} of the {self.basis.size} eigenvalues are all equal to {self.rest:.3g}, and "
                f"their eigenvectors are formed only up to a size of {EXACT_LIMIT}. Ask the operator "
                "before the shift or inverse for its eigenvectors: they are the same."
            )
        Q = self.basis.dense()
        complement = torch.linalg.qr(Q, mode="complete").Q[:, self.basis.rank :]
        values = torch.cat([self.values, self.values.new_full((self.missing,), self.rest)])
        return Spectrum(values, Columns(torch.cat([Q, complement], dim=1)))

    def without_noise(self) -> Spectrum:
        """The same spectrum, in which eigenvalues that rounding may have made of zero are zero."""
        sizes = self.values.abs()
        lost = sizes <= self.noise * sizes.amax() if sizes.numel() else sizes > 0
        return replace(self, values=torch.where(lost, 0, self.values))

    def leading(self, k: int | None) -> Eigh:
        """The k largest eigenvalues (all if None) in descending order, without the zeros of the complement."""
        full = self.completed()
        values, index = full.values.sort(descending=True)
        if k is not None:
            # In this order, the zeros of the complement come right before the negative eigenvalues.
            place = torch.arange(len(values), device=values.device) + full.missing * (values < 0)
            values, index = values[place < k], index[place < k]
        return Eigh(values, pick(full.basis, index))

    def shifted(self, damping: float, name: str, tolerance: float = 0.0) -> tuple[Float[Tensor, " R"], float]:
        """λ + damping, and the smallest of these and ρ + damping; an error if one is zero, a warning if it is noise."""
        shifted = self.values + damping
        if not self.values.numel():
            if self.missing and self.rest + damping == 0:
                raise singular(name, damping)
            return shifted, self.rest + damping
        smallest, largest = (self._extremes + damping).tolist()
        closest, size = smallest if smallest > 0 else float(shifted.abs().min()), max(abs(smallest), abs(largest))
        threshold = tolerance * size if damping == 0 else 0.0
        noise = rounding(self.values.dtype, NOISE)
        cancelled = False
        if damping != 0 and min(smallest - damping, damping) < -noise * max(size, abs(damping)):
            # Eigenvalues may cancel the damping, up to the rounding of the largest one if they had to be found.
            given = isinstance(self.basis, Identity)
            sizes = self.values.abs().clamp(min=abs(damping)) if given else max(size, abs(damping))
            cancelled = bool((shifted.abs() <= noise * sizes).any())
        if cancelled or closest <= threshold or (self.missing and self.rest + damping == 0):
            raise singular(name, damping, smallest - damping, or_wider(self.values.dtype))
        if damping > 0 and closest <= self.noise * size:
            warn(
                f"damping={damping:g} is within what rounding makes of zero eigenvalues of {name}, up to about "
                f"{self.noise * size:.0e}, so that solutions may be mostly rounding. Pass a damping of at least "
                f"{10 * self.noise * size:.0e}{or_wider(self.values.dtype)}."
            )
        return shifted, min(smallest, self.rest + damping) if self.missing else smallest

    @cached_property
    def _extremes(self) -> Float[Tensor, " 2"]:
        """The smallest and the largest of `values`, computed once for all dampings."""
        return torch.stack(self.values.aminmax())


def dense_spectrum(matrix: Float[Tensor, "P P"]) -> Spectrum:
    """The eigendecomposition of a symmetric matrix; eigenvalues that are negative only by rounding become zero."""
    values, vectors = eigh(matrix)
    noise = rounding(matrix.dtype, NOISE)
    largest = values.abs().amax() if values.numel() else 0.0
    negative = (values < 0) & (values >= -noise * largest)
    return Spectrum(torch.where(negative, 0, values), Columns(vectors), noise=noise)


def thin_spectrum(rows: Float[Tensor, "R P"]) -> Spectrum:
    """The eigendecomposition of rowsᵀ rows.

    For R < P it takes a QR decomposition of rowsᵀ and the eigenvectors of an R × R matrix, so that no
    P × P matrix is formed and the basis is orthonormal to machine precision.
    """
    tall = rows.shape[0] >= rows.shape[1]
    half = rows.dtype in (torch.float16, torch.bfloat16)
    Q, R = (None, rows.T) if tall else _qr((rows.float() if half else rows).T)
    R = R.double()  # or the rounding of squares would swamp small eigenvalues
    values, vectors = (t.to(rows.dtype) for t in eigh(R @ R.T))
    vectors = vectors if Q is None else (Q @ vectors.to(Q.dtype)).to(rows.dtype)
    return Spectrum(values.clamp(min=0), Columns(vectors))  # negative by rounding only


def _qr(M: Float[Tensor, "P R"]) -> tuple[Float[Tensor, "P R"], Float[Tensor, "R R"]]:
    """The thin QR decomposition; in parts if M is long, for LAPACK's sums of many float32 numbers lose three digits."""
    if (torch.is_grad_enabled() and M.requires_grad) or forward_ad._current_level >= 0:
        Q, R = torch.linalg.qr(M.double())  # in one: a part with fewer independent columns would have no derivative
        return Q.to(M.dtype), R
    length = max(_LONG, 4 * M.shape[1])
    if len(M) <= length or M.device.type != "cpu":
        return torch.linalg.qr(M)
    Qs, Rs = zip(*map(torch.linalg.qr, M.split(length)), strict=True)
    Q, R = _qr(torch.cat(Rs))
    return torch.cat([one @ part for one, part in zip(Qs, Q.split([len(r) for r in Rs]), strict=True)]), R


def square_sum(t: Tensor) -> Float[Tensor, ""]:
    """Σ t² in float64, where squares of float32 numbers neither overflow nor underflow."""
    return torch.linalg.vector_norm(t, dtype=torch.float64).square()


def rounding(dtype: torch.dtype, size: int) -> float:
    """The relative error that a decomposition of this size may leave on a zero eigenvalue."""
    return size * torch.finfo(dtype).eps


def or_wider(dtype: torch.dtype) -> str:
    """The advice to use float64, as the end of a sentence; empty if that is the dtype already."""
    return "" if dtype == torch.float64 else ", or make the operator in float64 (model.double())"


def singular(name: str, damping: float, smallest: float = 0.0, wider: str = "") -> torch.linalg.LinAlgError:
    """The error for a system that has no unique solution; `smallest` is the matrix's smallest eigenvalue."""
    if smallest < 0 < damping:
        return torch.linalg.LinAlgError(
            f"{name} with damping={damping:g} is singular: its eigenvalues go down to {smallest:.3g}. In a Fisher "
            f"matrix those below zero are rounding: pass a damping that is much larger{wider}."
        )
    advice = "Pass a positive damping, e.g. damping=1e-3." if damping == 0 else "Pass another damping."
    return torch.linalg.LinAlgError(f"{name} with damping={damping:g} is singular. {advice}")


def indefinite(name: str, smallest: float, what: str) -> ValueError:
    """The error for a function that is not real at a negative eigenvalue."""
    return ValueError(
        f"{name} is indefinite (smallest eigenvalue {smallest:.3g}), so its {what} is not real. Add enough damping to "
        "make it positive definite. (A matrix that was computed in a narrower dtype has its rounding.)"
    )
