"""Iterations that need nothing but products: conjugate gradients and block Lanczos."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.notice import warn
from torchtangent.operators.basis import Columns
from torchtangent.operators.spectrum import Eigh
from torchtangent.operators.symmetric import eigh


class ConvergenceWarning(UserWarning):
    """An iteration stopped before it reached the requested accuracy."""


@dataclass(frozen=True)
class SolveReport:
    """How an iterative solve went.

    Attributes:
        converged: whether every column reached the tolerance.
        iterations: products made.
        residuals: (K,), the true ‖b − Ax‖ / ‖b‖ of each column, recomputed at the end.
        rtol: what was asked for.
    """

    converged: bool
    iterations: int
    residuals: Float[Tensor, " K"]
    rtol: float

    def warn(self, name: str) -> None:
        """Warn if the solution is not as accurate as asked for."""
        if not self.converged:
            warn(
                f"Conjugate gradients on {name} stopped after {self.iterations} iterations at a relative "
                f"residual of {float(self.residuals.max()):.2e} (asked for {self.rtol:.1e}). Raise damping, "
                "or give the operator another limit or a preconditioner: dataclasses.replace(F, max_iter=…, "
                "preconditioner=kfac.inverse(damping)).",
                ConvergenceWarning,
            )


def conjugate_gradients(
    matmat: Callable[[Tensor], Tensor],
    B: Float[Tensor, "P K"],
    *,
    rtol: float,
    max_iter: int,
    precondition: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Float[Tensor, "P K"], SolveReport]:
    """Solve A X = B for a positive definite A, each column on its own.

    Columns that have converged, or whose search direction shows no positive curvature, stand still.
    """
    norms = torch.linalg.vector_norm(B, dim=0)
    goal = rtol * norms
    X, R = torch.zeros_like(B), B.clone()
    Z = precondition(R) if precondition else R
    D, rho = Z.clone(), (R * Z).sum(0)
    iterations = 0
    active = torch.linalg.vector_norm(R, dim=0) > goal
    while iterations < max_iter and bool(active.any()):
        AD = matmat(D)
        iterations += 1
        curvature = (D * AD).sum(0)
        active &= curvature > 0
        step = torch.where(active, rho / curvature, 0)
        X.addcmul_(D, step)
        R.addcmul_(AD, step, value=-1)
        active &= torch.linalg.vector_norm(R, dim=0) > goal
        Z = precondition(R) if precondition else R
        rho, previous = (R * Z).sum(0), rho
        D.mul_(torch.where(active, rho / previous, 0)).add_(Z)
    residuals = torch.linalg.vector_norm(B - matmat(X), dim=0) / norms.clamp(min=torch.finfo(B.dtype).tiny)
    # Rounding lets the recursive residual drift below the true one by a little: allow it a factor of two.
    converged = bool((residuals <= 2 * rtol).all())
    return X, SolveReport(converged, iterations, residuals, rtol)


def top_eigenpairs(
    matmat: Callable[[Tensor], Tensor],
    size: int,
    k: int,
    dtype: torch.dtype,
    device: torch.device,
    generator: torch.Generator,
    *,
    max_iter: int = 300,
) -> Eigh:
    """The k largest eigenpairs by block Lanczos iterations with thick restarts.

    The subspace grows by the residuals of the wanted Ritz pairs, which spans a block Krylov space;
    when it is full, it shrinks to the best 2k Ritz vectors. A pair has converged when
    ‖M q − θ q‖ ≤ eps^⅔ · max |θ|; the error of its eigenvalue is then below eps.
    """
    tolerance = torch.finfo(dtype).eps ** (2 / 3)
    room = min(size, max(6 * k, 3 * k + 20))
    start = torch.randn(size, k, generator=generator, dtype=torch.float64, device="cpu").to(dtype=dtype, device=device)
    U = torch.linalg.qr(start).Q
    MU = matmat(U)
    for _ in range(max_iter):
        theta, Y = eigh(_symmetric(U.T @ MU))
        Q = U @ Y[:, -k:]
        residual = MU @ Y[:, -k:] - Q * theta[-k:]
        norms = torch.linalg.vector_norm(residual, dim=0)
        unconverged = norms > tolerance * theta.abs().max()
        if not bool(unconverged.any()):
            break
        if U.shape[1] + k > room:
            U, MU = U @ Y[:, -2 * k :], MU @ Y[:, -2 * k :]
        fresh = _orthonormal(residual[:, unconverged] / norms[unconverged], U)
        U, MU = torch.cat([U, fresh], dim=1), torch.cat([MU, matmat(fresh)], dim=1)
    else:
        warn(
            f"{int(unconverged.sum())} of the {k} leading eigenpairs did not converge in {max_iter} "
            f"iterations: the largest relative residual is {float(norms.max() / theta.abs().max()):.2e}.",
            ConvergenceWarning,
        )
    return Eigh(theta[-k:].flip(0), Columns(Q.flip(1)))


def _orthonormal(block: Tensor, against: Tensor) -> Tensor:
    """An orthonormal basis of the block, orthogonal to `against`; repeated for what rounding leaves."""
    for _ in range(3):
        block = block - against @ (against.T @ block)
        block = torch.linalg.qr(block).Q
    return block


def _symmetric(matrix: Tensor) -> Tensor:
    return (matrix + matrix.T) / 2
