"""The density of all eigenvalues, estimated from products alone by stochastic Lanczos quadrature."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from torchtangent.jacobians.call import float32_products
from torchtangent.kernel.matrix import Matrix, as_square
from torchtangent.operators import Operator
from torchtangent.operators.estimate import ENTRIES, Estimate
from torchtangent.progress import Progress, Report
from torchtangent.spectrum.checks import check_numbers, check_symmetric

_WIDTH = 100  # the default width of peaks is this fraction of the range of eigenvalues
_BASIS = 2**25  # the most numbers in the bases that are held at once; without reorthogonalization if one has more


@dataclass(frozen=True, eq=False, repr=False)
class Density:
    """An estimate of (1/N) Σ_j δ(λ − λ_j): for each probe, some points with weights that sum to one.

    Attributes:
        points: (probes, steps), Ritz values, in ascending order; all lie between the extreme eigenvalues.
        weights: (probes, steps), the fraction of eigenvalues that each stands for.
        size: N, the number of eigenvalues.
    """

    points: Float[Tensor, "K S"]
    weights: Float[Tensor, "K S"]
    size: int
    _half: Density | None = None  # from half as many steps of the same iterations
    _residuals: Float[Tensor, "K S"] | None = None  # ‖Mq − θq‖ for each point θ and the unit vector q that it is of

    def __repr__(self) -> str:
        probes, steps = self.points.shape
        first, last = float(self.points.min()), float(self.points.max())
        return f"Density(of {self.size} eigenvalues, {first:.4g} … {last:.4g}, {probes} probes of {steps} steps)"

    def trace(self, function: Callable[[Tensor], Tensor]) -> Estimate:
        """An estimate of tr f(M) = Σ_j f(λ_j), with its error.

        The error is √(a² + b²), for the standard error a of the mean over probes and the difference b to the estimate
        from half as many steps (rounded down). Of few probes a is itself uncertain: with ten, one trace in eight was
        off by more than twice that. More probes lower a, and more steps b, which stands for the quadrature's own error:
        it is more than what is left where the estimate converges fast, and about as much where it converges slowly, but
        no bound. Probes whose Krylov space has ended are exact and add nothing to b. The error is NaN where one of the
        two is unknown: for a single probe, for a single step, and for a Density made of points and weights alone. The
        log-determinant of M + damping·I, for instance, is the trace for f(λ) = log(λ + damping).

        Args:
            function: f, entry by entry. Rounding may move the smallest points a little below the smallest eigenvalue.

        >>> M = torch.diag(torch.tensor([1.0, 2.0, 4.0]))
        >>> f"{density(M, steps=3).trace(torch.log2).value:.3f}"
        '3.000'
        """
        totals = self._totals(function)
        value, half = totals.mean(), math.nan if self._half is None else self._half._totals(function).mean()
        return Estimate(value, torch.hypot(_standard_error(totals), value - half))

    def below(self, value: float) -> Estimate:
        """An estimate of the fraction of eigenvalues that are smaller than a value, with its error.

        The error is √(a² + b²), for the standard error a of the mean over probes and a bound b on how far that mean is
        from what the same probes would say after all steps (in exact arithmetic). It is large where the value is within
        a cluster of many eigenvalues, as zero often is for a Hessian: a small multiple of the largest eigenvalue on
        either side of zero says more.

        Reference:
            The inequalities of Chebyshev, Markov and Stieltjes: Golub and Meurant, Matrices, moments and quadrature.
        """
        number = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
        if not isinstance(number, Real) or math.isnan(number):
            raise ValueError(f"value should be a number, got {value!r:.60}.")
        left = self.points < float(number)
        fractions = torch.where(left, self.weights, 0).sum(1)
        bound = self._misplaced(float(number), left).mean()
        return Estimate(fractions.mean(), torch.hypot(_standard_error(fractions), bound))

    def _misplaced(self, value: float, left: Bool[Tensor, "K S"]) -> Float[Tensor, " K"]:
        """For each probe, a bound on the weight that points on one side of a value have of eigenvalues on the other.

        It is at most the weight of the next point on either side. And a vector of residual r has at most the part r/δ
        in eigenvectors whose eigenvalues are further than δ, so it is at most (Σ √w · min(1, r/δ))², too.
        """
        place, padded = left.sum(1, keepdim=True), torch.nn.functional.pad(self.weights, (1, 1))
        beside = torch.maximum(padded.gather(1, place), padded.gather(1, place + 1))[:, 0]
        if self._residuals is None:
            return beside
        parts = torch.where(self._residuals > 0, self._residuals / (self.points - value).abs(), 0).clamp(max=1)
        return torch.minimum(beside, (self.weights.sqrt() * parts).sum(1).square())

    def _totals(self, function: Callable[[Tensor], Tensor]) -> Float[Tensor, " K"]:
        """The quadrature of zᵀf(M)z for each probe."""
        found = function(self.points)
        if not isinstance(found, Tensor) or found.shape != self.points.shape:
            made = tuple(found.shape) if isinstance(found, Tensor) else f"a {type(found).__name__}"
            raise ValueError(f"f should act entry by entry; it made {made} of {tuple(self.points.shape)}.")
        return self.size * torch.where(self.weights > 0, self.weights * found, 0).sum(1)

    def curve(
        self, grid: Tensor | np.ndarray | Sequence[float] | int = 1000, width: float | None = None
    ) -> tuple[Float[Tensor, " G"], Float[Tensor, " G"]]:
        """A smooth density to draw: each point as a Gaussian.

        Args:
            grid: Where to evaluate it (G,), or at how many places from three widths below the points to three above.
            width: The standard deviation of the Gaussians; by default a hundredth of the range of the points.

        Returns:
            The places, and the density there, whose integral is one.
        """
        low, high = float(self.points.min()), float(self.points.max())
        if width is None:
            width = ((high - low) or abs(low) or 1.0) / _WIDTH
        if not width > 0:
            raise ValueError(f"width must be positive, got {width}.")
        like: Any = {"dtype": self.points.dtype, "device": self.points.device}
        if isinstance(grid, int | np.integer):
            places = torch.linspace(low - 3 * width, high + 3 * width, int(grid), **like)
        else:
            places = torch.as_tensor(grid, **like)
        if places.dim() != 1:
            raise ValueError(f"grid should be a whole number or a row of places, got shape {tuple(places.shape)}.")
        peaks = torch.exp(-(((places - self.points.unsqueeze(-1)) / width) ** 2) / 2)
        return places, (self.weights.unsqueeze(-1) * peaks).sum(1).mean(0) / (width * math.sqrt(2 * math.pi))


def density(
    M: Tensor | np.ndarray | Operator | Any,
    *,
    steps: int = 64,
    probes: int = 8,
    seed: int = 0,
    device: torch.device | str | None = None,
    progress: bool | Report | None = None,
) -> Density:
    """The density of the eigenvalues of a symmetric M, from `steps` · `probes` products.

    Lanczos iterations from random signs z give a quadrature of zᵀf(M)z that is exact for polynomials f of degree
    2 · steps − 1; its mean over z is tr f(M). A few products resolve the extreme eigenvalues and those that lie apart,
    and more of them the bulk.

    If a probe's vectors have at most 2²⁵ numbers in all (N · steps), they are kept, one more each step, and every new
    one is made orthogonal to them; as many probes run at once as have that many numbers together. Larger ones are not
    kept, and take memory for three vectors a probe. The points then still lie where they should, but some steps find
    an eigenvalue a second time, so that functions such as log need more of them.

    Args:
        M: A symmetric matrix known by its products (`tt.hessian`, an implicit Fisher matrix, `tt.sketch.operator`), or
            any kernel or operator.
        steps: The number of points for each probe.
        probes: The number of random vectors. The part of a trace's error that comes from them falls with its root.
        seed: The seed of the signs. The same seed gives the same result.
        device: The device to compute on; by default that of M.
        progress: Show a line with rate and end time: True, False, on terminals only (default), or a function of
            (products done, all of them).

    Reference:
        Golub and Meurant, Matrices, moments and quadrature, 1994; Ubaru, Chen and Saad, Fast estimation of tr(f(A))
        via stochastic Lanczos quadrature, 2017. Without reorthogonalization: Knizhnerman, The simple Lanczos procedure:
        estimates of the error of the Gauss quadrature formula, 1996.

    >>> found = density(torch.diag(torch.tensor([1.0, 1.0, 1.0, 5.0])), steps=2, probes=1)
    >>> found.points.round(decimals=3), found.weights.round(decimals=3)
    (tensor([[1., 5.]], dtype=torch.float64), tensor([[0.7500, 0.2500]], dtype=torch.float64))
    """
    source = as_square(M, device)
    size = source.shape[0]
    if steps < 1 or probes < 1:
        raise ValueError(f"There must be at least one step and one probe, got steps={steps} and probes={probes}.")
    steps, generator = min(steps, size), torch.Generator().manual_seed(seed)
    room = _BASIS // (size * steps) or 64  # probes whose bases are held; if there is none, they are not
    found = []
    with torch.no_grad(), float32_products(), Progress(steps * probes, progress, "density", "products") as bar:
        for k in torch.arange(probes).split(max(1, min(64, ENTRIES // size, room))):
            signs = torch.randint(0, 2, (size, len(k)), generator=generator, dtype=torch.int8, device="cpu")
            found.append(_tridiagonal(source, (2 * signs - 1).to(source.device, source.dtype), steps, bar))
        T, beta = (torch.cat(parts) for parts in zip(*found, strict=True))
        half = Density(*_quadrature(_halved(T, beta == 0))[:2], size) if steps > 1 else None
        points, weights, last = _quadrature(T)
        return Density(points, weights, size, half, beta.unsqueeze(1) * last)


def _standard_error(values: Float[Tensor, " K"]) -> Float[Tensor, ""]:
    """That of the mean; NaN for a single value."""
    return values.std() / math.sqrt(len(values)) if len(values) > 1 else values.new_tensor(math.nan)


def _quadrature(T: Float[Tensor, "K S S"]) -> tuple[Float[Tensor, "K S"], Float[Tensor, "K S"], Float[Tensor, "K S"]]:
    """The points and weights of e₁ᵀf(T)e₁, and how much of the last step's vector each point has."""
    points, vectors = torch.linalg.eigh(T)
    return points, vectors[:, 0].square(), vectors[:, -1].abs()


def _halved(T: Float[Tensor, "K S S"], ended: Bool[Tensor, " K"]) -> Float[Tensor, "K S S"]:
    """T cut off after half of its steps, so that the others have no weight; whole where its Krylov space has ended."""
    half, middle = T.clone(), T.shape[1] // 2
    half[~ended, middle, middle - 1] = half[~ended, middle - 1, middle] = 0
    return half


def _tridiagonal(
    source: Matrix, Z: Float[Tensor, "N K"], steps: int, bar: Progress
) -> tuple[Float[Tensor, "K S S"], Float[Tensor, " K"]]:
    """T of the Lanczos iteration from each column, diagonal from where its Krylov space ends; and the last β."""
    Q, before = Z / math.sqrt(len(Z)), torch.zeros_like(Z)
    basis = Z.new_empty(Z.shape[1], steps if len(Z) * steps <= _BASIS else 0, len(Z))
    alphas, betas = [], [torch.zeros(Z.shape[1], dtype=torch.float64, device=Z.device)]
    scale = betas[0]
    for step in range(steps):
        W = source @ Q
        if step == 0:
            check_symmetric(Q.T @ W, source.dtype)
        W = W - betas[-1].to(W.dtype) * before
        alphas.append((Q * W).sum(0, dtype=torch.float64))
        W -= alphas[-1].to(W.dtype) * Q
        if basis.shape[1]:
            # What rounding has brought back of earlier vectors. The recurrence was a first pass, so one more is enough.
            basis[:, step] = Q.T
            known = basis[:, : step + 1]
            W -= (W.T.unsqueeze(1) @ known.mT @ known).squeeze(1).T
        beta = torch.linalg.vector_norm(W, dim=0, dtype=torch.float64)
        scale = torch.maximum(scale, alphas[-1].abs() + beta)
        ended = beta <= 4 * torch.finfo(W.dtype).eps * scale
        betas.append(torch.where(ended, 0, beta))
        before, Q = Q, torch.where(ended, 0, W / torch.where(ended, 1, beta).to(W.dtype))
        bar.add(Z.shape[1])
    diagonal, off = torch.stack(alphas, 1), torch.stack(betas[1:], 1)[:, :-1]
    # After the end of a space come points without weight; they are put among the eigenvalues, as the others are.
    diagonal[:, 1:] = torch.where(off == 0, diagonal[:, :1], diagonal[:, 1:])
    T = torch.diag_embed(diagonal) + torch.diag_embed(off, 1) + torch.diag_embed(off, -1)
    check_numbers(T.sum())
    return T, betas[-1]
