"""Leading eigenpairs from products: block Lanczos iterations with full reorthogonalization and thick restarts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from torchtangent.operators.product import product
from torchtangent.operators.symmetric import eigh

_FLOOR = 30  # residuals below this many roundings of the largest eigenvalue cannot be told from zero
_ROWS = 1 << 16  # that are converted to float64 at a time
_SMALL = 64  # columns: a smaller subspace is checked for convergence after every block

Draw = Callable[[int], Tensor]
Check = Callable[[Tensor, torch.dtype], None]


@runtime_checkable
class Products(Protocol):
    """A symmetric matrix known by its products."""

    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def device(self) -> torch.device: ...
    def __matmul__(self, V: Tensor, /) -> Tensor: ...


def leading_pairs(
    source: Products, k: int, *, block: int, tol: float, seed: int, max_restarts: int, check: Check
) -> tuple[Float[Tensor, " K"], Float[Tensor, "N K"], Float[Tensor, " K"], Bool[Tensor, " K"]]:
    """The k algebraically largest eigenpairs, their true residuals in float64, and which pairs have not converged.

    A pair has converged when ‖Mφ − λφ‖ ≤ tol · |λ|, or when it is at the rounding of the dtype, 30 eps · max |λ|. The
    answer is then challenged by a random block: from one start, an eigenvalue that is repeated more often than a block
    is wide is not seen often enough.

    Args:
        source: The matrix, with at least 10 k rows, or 4 k if these are many.
        k: How many.
        block: Columns that are multiplied at once.
        tol: The residual at which a pair has converged, relative to its own eigenvalue.
        seed: Of the random blocks.
        max_restarts: The number of restarts after which it gives up.
        check: Refuses the first block QᵀMQ, up to a factor, if it is not finite or not symmetric.

    Reference:
        Wu and Simon, Thick-restart Lanczos method for large symmetric eigenvalue problems, 2000.
    """
    room = min(source.shape[0], max(2 * k + 8 * block, _SMALL))
    kept = k + (room - k) // 3
    generator = torch.Generator().manual_seed(seed)

    def draw(columns: int) -> Tensor:
        noise = torch.randn(source.shape[0], columns, generator=generator, dtype=torch.float32, device="cpu")
        return noise.to(source.device, source.dtype)

    space = _Subspace(source, room, draw, check)

    def grown(least: int) -> tuple[Tensor, Tensor, Tensor, bool]:
        """Grow the subspace until it is full, or small but converged; its Ritz pairs, their goal, and whether met."""
        while True:
            full = space.filled + block > room
            if full or least <= space.filled <= _SMALL:
                theta, Y = space.ritz()
                goal = _goal(theta, source.dtype, tol)[:k]
                converged = bool((space.residuals(Y[:, :k]) <= goal).all())
                if full or converged:
                    return theta, Y, goal, converged
            space.grow(space.rest)

    settled: Tensor | None = None  # values that had converged when the present cycle began
    least = k
    space.grow(draw(block))
    for _ in range(max_restarts):
        theta, Y, goal, converged = grown(least)
        if converged and settled is not None and bool(((theta[:k] - settled).abs() <= goal).all()):
            break
        # A restart goes on from the rest of the last block, which holds the residuals of all kept pairs. Once those of
        # the wanted ones are small, a random block instead looks for what the first one could not see, as deep.
        settled, least = (theta[:k], space.filled) if converged else (None, k)
        space.shrink(theta, Y, k if converged else kept)
        space.grow(draw(block) if converged else space.rest)
    theta, Y = space.ritz()
    goal = _goal(theta * space.unit, source.dtype, tol)[:k]
    vectors = space.lift(Y[:, :k])
    image = (source @ vectors).detach()
    # Rayleigh quotients have the square of the vectors' error; those of T have its rounding, too.
    quotients = torch.zeros(2, vectors.shape[1], dtype=torch.float64, device=vectors.device)
    for v, w in zip(vectors.split(_ROWS), image.split(_ROWS), strict=True):
        wide = v.double()
        quotients += torch.stack([(wide * w).sum(0), wide.square().sum(0)])
    values, order = (quotients[0] / quotients[1]).to(source.dtype).sort(descending=True, stable=True)
    residuals = torch.linalg.vector_norm(image - vectors * values[order.argsort()], dim=0, dtype=torch.float64)[order]
    del image
    vectors = vectors[:, order]
    # Rounding adds to the residuals that the iteration sees: allow them a factor of two.
    return values, vectors, residuals, residuals > 2 * goal


def _goal(values: Float[Tensor, " R"], dtype: torch.dtype, tol: float) -> Float[Tensor, " R"]:
    """The residuals at which pairs have converged."""
    sizes = values.abs()
    return (tol * sizes).clamp(min=_FLOOR * torch.finfo(dtype).eps * float(sizes.max()))


def _unit(t: Tensor) -> Float[Tensor, ""]:
    """A power of two near the largest entry; 1 if there is none."""
    size = t.abs().amax()
    unit = size / (2 * size.frexp().mantissa)
    return torch.where(unit > 0, unit, 1)


class _Subspace:
    """Orthonormal columns U (N, R) with T = UᵀKU, and the rest (I − UUᵀ)K of the last block.

    K is divided by a `unit`, its size, so that squares neither overflow nor underflow.
    """

    def __init__(self, source: Products, room: int, draw: Draw, check: Check) -> None:
        self._source, self._draw, self._check = source, draw, check
        self._U = torch.empty(source.shape[0], room, dtype=source.dtype, device=source.device)
        self._T = torch.zeros(room, room, dtype=torch.float64, device=source.device)
        self.filled = 0
        self.unit = torch.ones((), dtype=source.dtype, device=source.device)
        self.rest = self._U[:, :0]

    def grow(self, W: Float[Tensor, "N K"]) -> None:
        """Add the directions of W."""
        old, self.filled = self.filled, self.filled + W.shape[1]
        U, new = self._U[:, : self.filled], slice(old, self.filled)
        U[:, new] = _orthonormal(W, U[:, :old], self._draw)
        KU = (self._source @ U[:, new]).detach()
        if old == 0:
            self.unit = _unit(KU)
        KU = KU / self.unit  # not in place: a product may return what it was given
        H = product(U.T, KU)
        if old == 0:
            self._check(H, self._source.dtype)
        self._T[: self.filled, new] = H.double()
        self._T[new, : self.filled] = H.double().T
        self.rest = KU - product(U, H)

    def ritz(self) -> tuple[Float[Tensor, " R"], Float[Tensor, "R R"]]:
        """Eigenpairs of T in float64, the largest first."""
        T = self._T[: self.filled, : self.filled]
        theta, Y = eigh((T + T.T) / 2)
        return theta.flip(0), Y.flip(1)

    def residuals(self, Y: Float[Tensor, "R K"]) -> Float[Tensor, " K"]:
        """‖K U y − θ U y‖: all but the last block is mapped into the subspace."""
        last = Y[-self.rest.shape[1] :]
        gram = product(self.rest.T, self.rest).double()
        return (last * (gram @ last)).sum(0).clamp(min=0).sqrt()

    def lift(self, Y: Float[Tensor, "R K"]) -> Float[Tensor, "N K"]:
        """U Y."""
        return product(self._U[:, : self.filled], Y.to(self._U.dtype))

    def shrink(self, theta: Float[Tensor, " R"], Y: Float[Tensor, "R R"], kept: int) -> None:
        """Keep the leading Ritz vectors, and the rest of the last block, in which their residuals lie."""
        self._U[:, :kept] = self.lift(Y[:, :kept])
        self._T.zero_()
        self._T.diagonal()[:kept] = theta[:kept]
        self.filled = kept


def _orthonormal(W: Float[Tensor, "N K"], U: Float[Tensor, "N R"], draw: Draw) -> Float[Tensor, "N K"]:
    """An orthonormal basis of W's directions orthogonal to U; where there are too few, random ones make up for them.

    Products and small eigendecompositions (in float64) instead of a QR decomposition, which is slow on GPUs. A pass
    turns the columns to the principal axes of their Gram matrix; the short axes, which the Gram matrix of long ones
    cannot resolve, come out in the next. Reference: Stathopoulos and Wu, A block orthogonalization procedure with
    constant synchronization requirements, 2002.
    """
    for _ in range(10):
        before = torch.linalg.vector_norm(W, dim=0)
        W = W - product(U, product(U.T, W))
        norms = torch.linalg.vector_norm(W, dim=0)
        W = W / norms.clamp(min=torch.finfo(W.dtype).tiny)
        wide = W.double()
        sizes, axes = eigh(wide.T @ wide)
        W = W @ axes.to(W.dtype)
        if bool(sizes[0] > 0.5) and bool((norms > before / 2).all()):
            return W / sizes.sqrt().to(W.dtype)
        lost = torch.linalg.vector_norm(W, dim=0) <= 10 * torch.finfo(W.dtype).eps
        if bool(lost.any()):
            W[:, lost] = draw(int(lost.sum()))
    raise ArithmeticError("A block of vectors could not be made orthonormal in 10 passes. Try another seed.")
