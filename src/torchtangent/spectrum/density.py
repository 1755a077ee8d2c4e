"""The density of all eigenvalues, estimated from products alone by stochastic Lanczos quadrature."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.jacobians.call import float32_products
from torchtangent.kernel.matrix import Matrix, as_square
from torchtangent.operators import Operator
from torchtangent.operators.estimate import ENTRIES, Estimate
from torchtangent.progress import Progress, Report
from torchtangent.spectrum.checks import check_numbers, check_symmetric

_WIDTH = 100  # the default width of peaks is this fraction of the range of eigenvalues


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

    def __repr__(self) -> str:
        probes, steps = self.points.shape
        first, last = float(self.points.min()), float(self.points.max())
        return f"Density(of {self.size} eigenvalues, {first:.4g} … {last:.4g}, {probes} probes of {steps} steps)"

    def trace(self, function: Callable[[Tensor], Tensor]) -> Estimate:
        """An estimate of tr f(M) = Σ_j f(λ_j), with its standard error (NaN for a single probe).

        The log-determinant of M + damping·I, for instance, is that of f(λ) = log(λ + damping).

        Args:
            function: f, entry by entry. Rounding may move the smallest points a little below the smallest eigenvalue.

        >>> M = torch.diag(torch.tensor([1.0, 2.0, 4.0]))
        >>> f"{density(M, steps=3).trace(torch.log2).value:.3f}"
        '3.000'
        """
        terms = torch.where(self.weights > 0, self.weights * function(self.points), 0)
        totals = self.size * terms.sum(1)
        spread = totals.std() if len(totals) > 1 else totals.new_tensor(math.nan)
        return Estimate(totals.mean(), spread / math.sqrt(len(totals)))

    def below(self, value: float) -> Estimate:
        """An estimate of the fraction of eigenvalues that are smaller than a value."""
        return Estimate(*(t / self.size for t in self.trace(lambda points: (points < value).to(points))))

    def curve(
        self, grid: Float[Tensor, " G"] | int = 1000, width: float | None = None
    ) -> tuple[Float[Tensor, " G"], Float[Tensor, " G"]]:
        """A smooth density to draw: each point as a Gaussian.

        Args:
            grid: Where to evaluate it, or at how many places between the extreme points, three widths beyond them.
            width: The standard deviation of the Gaussians; by default a hundredth of the range of the points.

        Returns:
            The places, and the density there, whose integral is one.
        """
        low, high = float(self.points.min()), float(self.points.max())
        if width is None:
            width = ((high - low) or abs(low) or 1.0) / _WIDTH
        if not width > 0:
            raise ValueError(f"width must be positive, got {width}.")
        if not isinstance(grid, Tensor):
            ends = low - 3 * width, high + 3 * width
            grid = torch.linspace(*ends, grid, dtype=self.points.dtype, device=self.points.device)
        peaks = torch.exp(-(((grid - self.points.unsqueeze(-1)) / width) ** 2) / 2)
        return grid, (self.weights.unsqueeze(-1) * peaks).sum(1).mean(0) / (width * math.sqrt(2 * math.pi))


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
    and more of them the bulk. There is no reorthogonalization, which the quadrature does without: it takes memory for
    three vectors a probe.

    Args:
        M: A symmetric matrix known by its products (`tt.hessian`, an implicit Fisher matrix, `tt.sketch.operator`), or
            any kernel or operator.
        steps: The number of points for each probe.
        probes: The number of random vectors. The error of traces falls with its root.
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
    steps, generator, found = min(steps, size), torch.Generator().manual_seed(seed), []
    with torch.no_grad(), float32_products(), Progress(steps * probes, progress, "density", "products") as bar:
        for k in torch.arange(probes).split(max(1, min(64, ENTRIES // size))):
            signs = torch.randint(0, 2, (size, len(k)), generator=generator, dtype=torch.int8, device="cpu")
            found.append(_tridiagonal(source, (2 * signs - 1).to(source.device, source.dtype), steps, bar))
        points, vectors = torch.linalg.eigh(torch.cat(found))
    return Density(points, vectors[:, 0].square(), size)


def _tridiagonal(source: Matrix, Z: Float[Tensor, "N K"], steps: int, bar: Progress) -> Float[Tensor, "K S S"]:
    """T of the Lanczos iteration from each column; diagonal from where its Krylov space ends."""
    Q, before = Z / math.sqrt(len(Z)), torch.zeros_like(Z)
    alphas, betas = [], [torch.zeros(Z.shape[1], dtype=torch.float64, device=Z.device)]
    scale = betas[0]
    for step in range(steps):
        W = source @ Q
        if step == 0:
            check_symmetric(Q.T @ W, source.dtype)
        W = W - betas[-1].to(W.dtype) * before
        alphas.append((Q * W).sum(0, dtype=torch.float64))
        W -= alphas[-1].to(W.dtype) * Q
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
    return T
