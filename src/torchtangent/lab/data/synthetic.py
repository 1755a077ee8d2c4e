"""Drawn data: two labelled squares, random features, a regression with noise that can be fitted."""

from __future__ import annotations

from math import pi
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

Points = Float[Tensor, "n 2"]
Labels = Float[Tensor, " n"]

_CENTRES = ((0.5, -0.5), (-0.5, 0.5))
_RADIUS = 0.3
_BALANCED = (2 / pi) ** 0.5  # of the disk that covers half of the square


def yin_yang(n: int, generator: torch.Generator) -> tuple[Points, Labels]:
    """Points of the square [−1, 1]², +1 in its lower half and −1 in its upper, but for a disk in each half.

    The disks have radius 0.3 and centres (0.5, −0.5) and (−0.5, 0.5); the label is flipped in them (George et al.,
    2022, figure 1).

    Args:
        n: How many.
        generator: Draws them, uniformly.

    Returns:
        The points, and their labels ±1.
    """
    x = _uniform(n, generator)
    return x, _yin_yang(x)


def yin_yang_grid(side: int) -> tuple[Points, Labels]:
    """The same on a regular grid of side × side points, row after row from below: `y.view(side, side)` is a map.

    >>> yin_yang_grid(5)[1].view(5, 5)
    tensor([[ 1.,  1.,  1.,  1.,  1.],
            [ 1.,  1.,  1., -1.,  1.],
            [ 1.,  1.,  1.,  1.,  1.],
            [-1.,  1., -1., -1., -1.],
            [-1., -1., -1., -1., -1.]])
    """
    x = _grid(side)
    return x, _yin_yang(x)


def in_disks(x: Points) -> Bool[Tensor, " n"]:
    """Which points are in one of the two disks of `yin_yang`."""
    centres = torch.tensor(_CENTRES, dtype=x.dtype, device=x.device)
    return ((x[:, None] - centres).norm(dim=2) <= _RADIUS).any(1)


def disk(n: int, generator: torch.Generator) -> tuple[Points, Labels]:
    """Points of the square [−1, 1]², +1 in the disk ‖x‖² ≤ 2/π, which is half of it, and −1 around.

    The task of Baratin et al. (2021), figure 1.

    Args:
        n: How many.
        generator: Draws them, uniformly.

    Returns:
        The points, and their labels ±1.
    """
    x = _uniform(n, generator)
    return x, _disk(x)


def disk_grid(side: int) -> tuple[Points, Labels]:
    """The same on a regular grid of side × side points, row after row from below.

    >>> disk_grid(4)[1].view(4, 4)
    tensor([[-1., -1., -1., -1.],
            [-1.,  1.,  1., -1.],
            [-1.,  1.,  1., -1.],
            [-1., -1., -1., -1.]])
    """
    x = _grid(side)
    return x, _disk(x)


def rbf_features(
    n: int, count: int, *, extent: float, gamma: float, seed: int
) -> tuple[Float[Tensor, " n"], Float[Tensor, "n count"]]:
    """Random Fourier features of the kernel exp(−γ(x − x')²), by scikit-learn's `RBFSampler`.

    Args:
        n: Points, equally spaced on [−extent, extent].
        count: Features.
        extent: The half of the interval.
        gamma: γ.
        seed: Of the features.

    Returns:
        The points and their features Φ, with ΦΦᵀ near the kernel; in float64.
    """
    from sklearn.kernel_approximation import RBFSampler

    x = np.linspace(-extent, extent, n)
    features = RBFSampler(gamma=gamma, n_components=count, random_state=seed).fit_transform(x[:, None])
    return torch.from_numpy(x), torch.from_numpy(features)


def noisy_regression(
    n: int,
    d: int,
    variance: float,
    generator: torch.Generator,
    *,
    projector: Literal["orthogonal", "printed"] = "orthogonal",
) -> tuple[Float[Tensor, "n p"], Labels, Float[Tensor, "n p"], Labels]:
    """A regression on one feature φ that matters and d that can only fit the noise in the training labels.

        Φ = [φ, Ψ],   φ ~ N(0, 1),   Ψ ~ N(0, 1/d),   y = φ + P ε,   ε ~ N(0, σ²)

    P is the orthogonal projector on the columns of Ψ, or ΨΨᵀ as printed (Baratin et al., 2021, figure 5), which is no
    projector. Test labels have no noise.

    Args:
        n: Samples, as many to train as to test.
        d: Noise features; the features are p = 1 + d.
        variance: σ².
        generator: Draws all.
        projector: "orthogonal" or "printed".

    Returns:
        Φ and y to train, Φ and y to test; in float64.
    """
    if projector not in ("orthogonal", "printed"):
        raise ValueError(f"projector={projector!r} is none of 'orthogonal', 'printed'.")

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64, device=generator.device)

    def features() -> Tensor:
        return torch.cat([normal(n, 1), normal(n, d) / d**0.5], 1)

    train, test = features(), features()
    noise = variance**0.5 * normal(n)
    basis = torch.linalg.qr(train[:, 1:]).Q if projector == "orthogonal" else train[:, 1:]
    return train, train[:, 0] + basis @ (basis.T @ noise), test, test[:, 0]


def _uniform(n: int, generator: torch.Generator) -> Points:
    return 2 * torch.rand(n, 2, generator=generator, device=generator.device) - 1


def _grid(side: int) -> Points:
    axis = torch.linspace(-1, 1, side)
    return torch.cartesian_prod(axis, axis).flip(1)  # x₁ runs first


def _yin_yang(x: Points) -> Labels:
    return _signs((x[:, 1] <= 0) ^ in_disks(x))


def _disk(x: Points) -> Labels:
    return _signs(x.norm(dim=1) <= _BALANCED)


def _signs(positive: Bool[Tensor, " n"]) -> Labels:
    return 2 * positive.to(torch.get_default_dtype()) - 1
