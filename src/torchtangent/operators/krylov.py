"""Solves and leading eigenpairs from products alone, with a warning if they miss the accuracy asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.notice import TangentWarning, dtype_name, warn
from torchtangent.operators.basis import Columns
from torchtangent.operators.derivative import linear
from torchtangent.operators.lanczos import leading_pairs
from torchtangent.operators.scale import scale_of
from torchtangent.operators.spectrum import Eigh, Factorization, or_wider
from torchtangent.operators.symmetric import asymmetry
from torchtangent.operators.tree import tensors

if TYPE_CHECKING:
    from torchtangent.operators.base import Operator


_GROWN = 10  # times its least: where a residual has grown so much, iterates are no longer solutions


class ConvergenceWarning(TangentWarning):
    """An iteration stopped before it reached the requested accuracy."""


@dataclass(frozen=True)
class SolveReport:
    """How an iterative solve went.

    Attributes:
        converged: whether every column reached the tolerance.
        iterations: the number of products.
        residuals: (K,), the true ‖b − Ax‖ / ‖b‖ of each column as returned, recomputed at the end.
        rtol: the relative residual that was asked for.
        definite: whether the curvature was positive along all directions.
    """

    converged: bool
    iterations: int
    residuals: Float[Tensor, " K"]
    rtol: float
    definite: bool = True

    def warn(self, name: str, max_iter: int, options: str = "") -> None:
        """Warn if the solution is not as accurate as asked for; `options` says what helps if the limit was reached."""
        if self.converged:
            return
        if bool(self.residuals.isnan().any()):
            why = "The vector or the products have NaN or infinity."
        elif not self.definite:
            why = "The damped matrix is not positive definite: raise damping."
        elif self.iterations >= max_iter:
            why = f"That is the limit: raise damping{options}."
        else:
            dtype = self.residuals.dtype
            why = f"{dtype_name(dtype)} cannot do better: raise damping{or_wider(dtype)}."
        warn(
            f"Conjugate gradients on {name} stopped after {self.iterations} iterations at a relative residual of "
            f"{float(self.residuals.max()):.2e} (asked for {self.rtol:.1e}). {why}",
            ConvergenceWarning,
        )


def iterative(
    M: Operator,
    damping: float,
    *,
    rtol: float,
    max_iter: int,
    preconditioner: Operator | None = None,
    options: str = "",
) -> Factorization:
    """Conjugate gradients in the place of a factorization of M + damping·I; they warn if they miss `rtol`."""

    def solve(V: Tensor) -> Tensor:
        X, report = conjugate_gradients(M, damping, V, rtol=rtol, max_iter=max_iter, preconditioner=preconditioner)
        report.warn(repr(M), max_iter, options)
        return X

    return Factorization(lambda V: linear(solve, solve, V), lambda: M._spectrum.logdet(damping, repr(M)))


def conjugate_gradients(
    M: Operator,
    damping: float,
    B: Float[Tensor, "P K"],
    *,
    rtol: float,
    max_iter: int,
    preconditioner: Operator | None = None,
) -> tuple[Float[Tensor, "P K"], SolveReport]:
    """Solve A X = B for A = M + damping·I, which is to be positive definite, each column separately.

    Columns that have converged, or whose search direction has no positive curvature, stay as they are. Where A is
    singular or indefinite, iterates may grow without limit: columns whose residual is far above its least are set
    back to the iterate that had that one. (If it is a little above, the last one is better by the norm that A defines.)
    """

    def times(V: Tensor) -> Tensor:
        return M._matmat(V).add(V, alpha=damping)

    scale = scale_of(B, 0)
    B = B / scale
    norms = torch.linalg.vector_norm(B, dim=0)
    goal = rtol * norms
    X, R = torch.zeros_like(B), B.clone()
    Z = preconditioner._matmat(R) if preconditioner else R
    D, rho = Z.clone(), (R * Z).sum(0)
    iterations, definite = 0, torch.ones_like(norms, dtype=torch.bool)
    size = torch.linalg.vector_norm(R, dim=0)
    active = size > goal
    best, least = X.clone(), torch.full_like(norms, math.inf)
    while iterations < max_iter and bool(active.any()):
        AD = times(D)
        iterations += 1
        curvature = (D * AD).sum(0)
        definite &= ~active | (curvature > 0)
        active &= curvature > 0
        step = torch.where(active, rho / curvature, 0)
        X.addcmul_(D, step)
        R.addcmul_(AD, step, value=-1)
        size = torch.linalg.vector_norm(R, dim=0)
        better = size < least
        if bool(better.all()):
            best.copy_(X)
        elif bool(better.any()):
            best = torch.where(better, X, best)
        least = torch.minimum(size, least)
        active &= size > goal
        Z = preconditioner._matmat(R) if preconditioner else R
        rho, previous = (R * Z).sum(0), rho
        D.mul_(torch.where(active, rho / previous, 0)).add_(Z)
    X = torch.where(size > _GROWN * least, best, X)
    residuals = torch.linalg.vector_norm(B - times(X), dim=0) / norms.clamp(min=torch.finfo(B.dtype).tiny)
    # Rounding lets the recursive residual drift below the true one by a little: allow it a factor of two.
    converged = bool((residuals <= 2 * rtol).all())
    X = torch.where(residuals.isnan(), torch.nan, X * scale)
    return X, SolveReport(converged, iterations, residuals, rtol, bool(definite.all()))


def top_eigenpairs(M: Operator, k: int, seed: int) -> Eigh:
    """The k largest eigenpairs by block Lanczos iterations; a warning if some are not accurate.

    A pair has converged when ‖Mq − λq‖ ≤ eps^⅔ · |λ|, or when it is at the rounding of the dtype, 30 eps · max |λ|.
    """

    def check(block: Tensor, dtype: torch.dtype) -> None:
        gap = asymmetry(block, dtype)
        if math.isnan(gap):
            raise ValueError(f"Products with {M!r} have NaN or infinity.")
        if gap > 0:
            raise ValueError(f"{M!r} is not symmetric: ‖M − Mᵀ‖ / ‖M‖ is about {gap:.1e}.")

    tol = torch.finfo(M.dtype).eps ** (2 / 3)
    # Narrow blocks: each column is a product, which may be a sweep over data.
    values, vectors, residuals, missed = leading_pairs(
        M, k, block=max(k // 8, 2), tol=tol, seed=seed, max_restarts=50, check=check
    )
    sizes = values.abs()
    vague = (residuals > 0.01 * sizes) & (sizes > 4 * torch.finfo(M.dtype).eps * sizes.max())  # and not zero
    if bool(missed.any()):
        warn(
            f"{int(missed.sum())} of the {k} leading eigenpairs of {M!r} did not converge: the largest residual is "
            f"{float(residuals.max() / sizes.max()):.1e} of the largest eigenvalue. Ask for fewer, or for less: "
            "torchtangent.spectrum.top(M, k, tol=1e-3).",
            ConvergenceWarning,
        )
    elif bool(vague.any()):
        warn(
            f"{int(vague.sum())} of the {k} leading eigenvalues of {M!r} are known to {float(residuals.max()):.1e} "
            f"only: the largest, {float(sizes.max()):.1e}, leaves no more of {dtype_name(M.dtype)}. Ask for "
            f"fewer{or_wider(M.dtype)}.",
            ConvergenceWarning,
        )
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors(M)):
        values = (vectors * M._matmat(vectors)).sum(0)  # whose derivative is that of the eigenvalues
        if values.requires_grad:
            vectors = _Fixed.apply(vectors, values)
    return Eigh(values, Columns(vectors))


class _Fixed(torch.autograd.Function):
    """Eigenvectors whose derivatives are not known: to ask for them is an error, not zero."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, values: Tensor) -> Tensor:
        return vectors.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None]:
        if bool((grad != 0).any()):
            raise RuntimeError(
                "Eigenvectors that were found by iterations have no derivatives: .detach() them, or differentiate the "
                "eigenvalues alone."
            )
        return None, None
