"""Spectra of kernels: the leading eigenpairs of a symmetric matrix in memory, on disk, or known by products only."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.jacobians.call import float32_products
from torchtangent.jacobians.inputs import TangentWarning
from torchtangent.kernel.matrix import Matrix, as_matrix
from torchtangent.operators import Operator

DENSE_LIMIT = 2048
"""Up to this size a matrix is decomposed whole."""

_FLOOR = 30  # residuals below so many roundings of the largest eigenvalue cannot be told from zero


@dataclass(frozen=True, eq=False)
class Eigenpairs:
    """The leading eigenpairs of a symmetric K; unpacks as `values, vectors`.

    Attributes:
        values: (k,), descending.
        vectors: (N, k), orthonormal; the entry of largest size in each is positive.
        residuals: (k,), the true ‖K φ − λ φ‖: within so much of each value there is an eigenvalue of K.
        converged: whether all of them are as small as was asked for.
    """

    values: Float[Tensor, " K"]
    vectors: Float[Tensor, "N K"]
    residuals: Float[Tensor, " K"]
    converged: bool

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.values, self.vectors))


def top(
    K: Tensor | np.ndarray | Operator | Any,
    k: int,
    *,
    tol: float = 1e-5,
    seed: int = 0,
    device: torch.device | str | None = None,
    max_restarts: int = 30,
) -> Eigenpairs:
    """The k algebraically largest eigenpairs of a symmetric K (N, N).

    Up to N = 2048, or for more than a quarter of the spectrum, K is decomposed whole, in float64. Beyond, block
    Lanczos iterations with full reorthogonalization and thick restarts need products with K and room for about
    5 k vectors. A pair has converged when ‖Kφ − λφ‖ ≤ tol · |λ|, or when it is at the rounding of K's dtype,
    30 eps · max |λ|. The answer is then challenged by a random block: from one start, an eigenvalue that is repeated
    more often than a block is wide is not seen often enough.

    Args:
        K: A tensor; an array, also one on disk (`np.load(…, mmap_mode="r")`), which is read in blocks of rows; an
            operator; or anything with `shape` and `@`.
        k: How many.
        tol: The residual at which a pair has converged, relative to its own eigenvalue.
        seed: Of the random blocks. The same seed gives the same answer.
        device: Where to compute; by default where K is.
        max_restarts: After so many restarts of the iteration it gives up and warns; `residuals` say how far it came.

    Returns:
        The eigenpairs with their residuals, in K's dtype (float32 for halves).

    Reference:
        Wu and Simon, Thick-restart Lanczos method for large symmetric eigenvalue problems, 2000.

    >>> lam, phi = top(torch.diag(torch.tensor([1.0, 3.0, 2.0])), k=2)
    >>> lam, phi[:, 0]
    (tensor([3., 2.]), tensor([0., 1., 0.]))
    """
    source = square(K, device)
    size = source.shape[0]
    if not 1 <= k <= size:
        raise ValueError(f"k must be between 1 and N = {size}, got {k}.")
    with torch.no_grad(), float32_products():  # TF32 would show in the residuals
        if size <= DENSE_LIMIT or 4 * k > size:
            return _decomposed(source, k)
        values, vectors, goal = _iterated(source, k, tol, seed, max_restarts)
        residuals = torch.linalg.vector_norm(source @ vectors - vectors * values, dim=0)
    # Rounding adds to the residuals that the iteration sees: allow them a factor of two.
    missed = residuals > 2 * goal
    if bool(missed.any()):
        warnings.warn(
            f"{int(missed.sum())} of the {k} leading eigenpairs did not converge to tol={tol:g} in {max_restarts} "
            f"restarts: the largest residual is {float(residuals.max() / values.abs().max()):.1e} of the largest "
            "eigenvalue. Raise tol or max_restarts, or ask for fewer pairs.",
            TangentWarning,
            stacklevel=2,
        )
    return Eigenpairs(values, _signed(vectors), residuals, not bool(missed.any()))


def square(K: Tensor | np.ndarray | Operator | Any, device: torch.device | str | None = None) -> Matrix:
    """K as a square matrix (N, N); a kernel with outputs has to be flattened first, by whom it is for."""
    shape = tuple(K.shape)
    if len(shape) == 4 and shape[0] == shape[1] and shape[2] == shape[3]:
        raise ValueError(f"K of shape {shape} is a kernel with outputs: make it a matrix (N·C, N·C) by tt.flatten(K).")
    if len(shape) != 2 or shape[0] != shape[1]:
        raise ValueError(f"K must be a square matrix (N, N), got shape {shape}.")
    return as_matrix(K, device)


def _goal(values: Float[Tensor, " R"], dtype: torch.dtype, tol: float) -> Float[Tensor, " R"]:
    """The residuals at which pairs have converged."""
    sizes = values.abs()
    return (tol * sizes).clamp(min=_FLOOR * torch.finfo(dtype).eps * float(sizes.max()))


def _signed(vectors: Float[Tensor, "N K"]) -> Float[Tensor, "N K"]:
    """The vectors with the sign that makes the entry of largest size positive."""
    largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
    return torch.where(largest < 0, -vectors, vectors)


def _check(block: Tensor, dtype: torch.dtype) -> None:
    """Refuse a K of which a block QᵀKQ is not finite or not symmetric."""
    gap, size = torch.linalg.vector_norm(block - block.T), torch.linalg.vector_norm(block)
    if not bool(torch.isfinite(size)):
        raise ValueError("K has NaN or infinity. Check the kernel before its spectrum.")
    if bool(gap > 10 * torch.finfo(dtype).eps ** 0.5 * size):
        raise ValueError(
            f"K is not symmetric (‖K − Kᵀ‖ / ‖K‖ is about {float(gap / size):.1e}), so its spectrum need not be real. "
            "A kernel of two sets of inputs has singular values instead; (K + K.T) / 2 is symmetric."
        )


def _decomposed(source: Matrix, k: int) -> Eigenpairs:
    """The leading pairs of all."""
    K = source.dense().double()
    _check(K, source.dtype)
    values, vectors = torch.linalg.eigh(K)
    values, vectors = values[-k:].flip(0), vectors[:, -k:].flip(1)
    residuals = torch.linalg.vector_norm(K @ vectors - vectors * values, dim=0)
    return Eigenpairs(values.to(source.dtype), _signed(vectors.to(source.dtype)), residuals.to(source.dtype), True)


def _iterated(source: Matrix, k: int, tol: float, seed: int, max_restarts: int) -> tuple[Tensor, Tensor, Tensor]:
    """The leading pairs by block Lanczos iterations, and the residuals that they should have."""
    # Narrow blocks reach higher powers of K with as many columns; wide ones save passes over a K that is far away.
    block = min(max(k // 8, 16), 128) if source.resident else min(max(k // 2, 32), 512)
    room = min(source.shape[0], 2 * k + 8 * block)
    kept = k + (room - k) // 3
    generator = torch.Generator().manual_seed(seed)

    def draw(columns: int) -> Tensor:
        noise = torch.randn(source.shape[0], columns, generator=generator, dtype=torch.float32)
        return noise.to(source.device, source.dtype)

    space = _Subspace(source, room, draw)
    settled: Tensor | None = None  # values that had converged when the present cycle began
    space.grow(draw(block))
    for _ in range(max_restarts):
        while space.filled + block <= room:
            space.grow(space.rest)
        theta, Y = space.ritz()
        goal = _goal(theta, source.dtype, tol)[:k]
        converged = bool((space.residuals(Y[:, :k]) <= goal).all())
        if converged and settled is not None and bool(((theta[:k] - settled).abs() <= goal).all()):
            break
        # A restart goes on from the rest of the last block, which holds the residuals of all kept pairs. Once those of
        # the wanted ones are small, a random block instead looks for what the first one could not see.
        space.shrink(theta, Y, k if converged else kept)
        space.grow(draw(block) if converged else space.rest)
        settled = theta[:k] if converged else None
    theta, Y = space.ritz()
    return theta[:k].to(source.dtype), space.lift(Y[:, :k]), _goal(theta, source.dtype, tol)[:k]


class _Subspace:
    """Orthonormal columns U (N, R) with T = UᵀKU, and the rest (I − UUᵀ)K of the last block."""

    def __init__(self, source: Matrix, room: int, draw: Callable[[int], Tensor]) -> None:
        self._source, self._draw = source, draw
        self._U = torch.empty(source.shape[0], room, dtype=source.dtype, device=source.device)
        self._T = torch.zeros(room, room, dtype=torch.float64, device=source.device)
        self.filled = 0
        self.rest = self._U[:, :0]

    def grow(self, W: Float[Tensor, "N K"]) -> None:
        """Add the directions of W."""
        old, self.filled = self.filled, self.filled + W.shape[1]
        U, new = self._U[:, : self.filled], slice(old, self.filled)
        U[:, new] = _orthonormal(W, U[:, :old], self._draw)
        KU = self._source @ U[:, new]
        H = U.T @ KU
        if old == 0:
            _check(H, self._source.dtype)
        self._T[: self.filled, new] = H.double()
        self._T[new, : self.filled] = H.double().T
        self.rest = KU.sub_(U @ H)

    def ritz(self) -> tuple[Float[Tensor, " R"], Float[Tensor, "R R"]]:
        """Eigenpairs of T in float64, the largest first."""
        T = self._T[: self.filled, : self.filled]
        theta, Y = torch.linalg.eigh((T + T.T) / 2)
        return theta.flip(0), Y.flip(1)

    def residuals(self, Y: Float[Tensor, "R K"]) -> Float[Tensor, " K"]:
        """‖K U y − θ U y‖: all but the last block is mapped into the subspace."""
        last = Y[-self.rest.shape[1] :]
        gram = (self.rest.T @ self.rest).double()
        return (last * (gram @ last)).sum(0).clamp(min=0).sqrt()

    def lift(self, Y: Float[Tensor, "R K"]) -> Float[Tensor, "N K"]:
        """U Y."""
        return self._U[:, : self.filled] @ Y.to(self._U.dtype)

    def shrink(self, theta: Float[Tensor, " R"], Y: Float[Tensor, "R R"], kept: int) -> None:
        """Keep the leading Ritz vectors, and the rest of the last block, in which their residuals lie."""
        self._U[:, :kept] = self.lift(Y[:, :kept])
        self._T.zero_()
        self._T.diagonal()[:kept] = theta[:kept]
        self.filled = kept


def _orthonormal(
    W: Float[Tensor, "N K"], U: Float[Tensor, "N R"], draw: Callable[[int], Tensor]
) -> Float[Tensor, "N K"]:
    """An orthonormal basis of W's directions orthogonal to U; where there are too few, random ones make up for them.

    Products and small eigendecompositions (in float64) instead of a QR decomposition, which is slow on GPUs. A pass
    turns the columns to the principal axes of their Gram matrix; the short axes, which the Gram matrix of long ones
    cannot resolve, come out in the next. Reference: Stathopoulos and Wu, A block orthogonalization procedure with
    constant synchronization requirements, 2002.
    """
    for _ in range(10):
        before = torch.linalg.vector_norm(W, dim=0)
        W = W - U @ (U.T @ W)
        norms = torch.linalg.vector_norm(W, dim=0)
        W = W / norms.clamp(min=torch.finfo(W.dtype).tiny)
        sizes, axes = torch.linalg.eigh((W.T @ W).double())
        W = W @ axes.to(W.dtype)
        if bool(sizes[0] > 0.5) and bool((norms > before / 2).all()):
            return W / sizes.sqrt().to(W.dtype)
        lost = torch.linalg.vector_norm(W, dim=0) <= 10 * torch.finfo(W.dtype).eps
        if bool(lost.any()):
            W[:, lost] = draw(int(lost.sum()))
    raise ArithmeticError("A block of vectors could not be made orthonormal in 10 passes. Try another seed.")
