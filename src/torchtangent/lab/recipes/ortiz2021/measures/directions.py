"""How the claims on directions, and on data along them, are read off the arrays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from torchtangent.lab.measures import spearman
from torchtangent.lab.recipes.ortiz2021.measures.theory import named
from torchtangent.lab.rules import Measured
from torchtangent.lab.study import Arrays

STRONGEST = 8
"""Entries of a Fourier transform that count as few: four waves, each of which a real image has twice."""


def by_margin(measure: Callable[[Arrays, int], float]) -> Callable[[Arrays], Measured]:
    """A value for each reading of ε."""
    return lambda arrays: {name: measure(arrays, i) for i, name in enumerate(arrays["margins"].tolist())}


def margin_error(arrays: Arrays, i: int) -> float:
    """The largest relative difference of y⟨u, x⟩ to the margin."""
    return float(np.max(np.abs(arrays["along"][i] / arrays["margin"][i] - 1)))


def outside_edges(arrays: Arrays, i: int) -> float:
    """How far eigenvalues of the covariance, but for the zero along u, lie outside Marchenko and Pastur's edges."""
    eigenvalues = arrays["eigenvalues"][i, :-1] / arrays["sigma"] ** 2
    ratio = np.sqrt(arrays["eigenvalues"].shape[1] / arrays["samples"])
    return float(max(eigenvalues.max() / (1 + ratio) ** 2, (1 - ratio) ** 2 / eigenvalues.min()) - 1)


def anisotropy(arrays: Arrays) -> Measured:
    """The first α over the median one, at the origin."""
    alpha = arrays["alignments"][:, 0]
    return named(alpha[:, 0] / np.median(alpha, axis=1), arrays)


def same_subspace(arrays: Arrays) -> Measured:
    """The overlap of the leading directions at the origin with averaged ones, mean of two averages."""
    return named(arrays["overlaps"][:, :2].mean(1), arrays)


def same_subspace_as_expected(arrays: Arrays) -> Measured:
    """The same, over the overlap of the two averages with each other."""
    return named(arrays["overlaps"][:, :2].mean(1) / arrays["overlaps"][:, 2], arrays)


def same_order(part: float) -> Callable[[Arrays], Measured]:
    """Spearman's correlation of s² at the origin and of the averaged α, along this part of the origin's directions."""

    def measured(arrays: Arrays) -> Measured:
        first = slice(round(part * arrays["alignments"].shape[2]))
        pairs = zip(arrays["alignments"][:, 0, first], arrays["averaged_at_origin"][:, first], strict=True)
        return named(np.array([spearman(a, b) for a, b in pairs]), arrays)

    return measured


def same_size(arrays: Arrays) -> Measured:
    """The averaged α of the first direction at the origin over that at the origin."""
    return named(arrays["averaged_at_origin"][:, 0] / arrays["alignments"][:, 0, 0], arrays)


def strongest(energy: np.ndarray) -> np.ndarray:
    """The part of an image's energy (..., h, w) in its strongest entries."""
    flat = energy.reshape(*energy.shape[:-2], -1)
    return np.sort(flat, axis=-1)[..., -STRONGEST:].sum(-1) / flat.sum(-1)


def by_frequency(images: np.ndarray) -> np.ndarray:
    """The concentration of images in few entries of their Fourier transforms."""
    return strongest(np.square(np.abs(np.fft.fft2(images))))


def by_pixel(images: np.ndarray) -> np.ndarray:
    """The concentration of images in few pixels."""
    return strongest(np.square(images))


def concentration(network: int, *ways: Callable[[np.ndarray], np.ndarray]) -> Callable[[Arrays], Measured]:
    """How concentrated a network's first directions are beside random images: medians, in the way that finds most."""

    def measured(arrays: Arrays) -> Measured:
        found = [np.median(way(arrays["images"][network])) / np.median(way(arrays["random"])) for way in ways]
        return float(max(found))

    return measured


def order_by_alignment(model: str, margin: str) -> Callable[[Arrays], Measured]:
    """Spearman's correlation of α(g_v) and test accuracy over directions, for each number of samples."""

    def measured(arrays: Arrays) -> Measured:
        accuracy = arrays[model][arrays["margins"].tolist().index(margin)].T
        rows = zip(arrays["sizes"].tolist(), accuracy, strict=True)
        return {f"m = {size}": spearman(arrays["alignments"], row) for size, row in rows}

    return measured


def early_over_late(arrays: Arrays) -> Measured:
    """Test accuracy on the first third of the directions minus that on the last third, with the most samples."""
    third = max(1, len(arrays["indices"]) // 3)
    return {
        f"{model}, {margin}": float(arrays[model][i, :third, -1].mean() - arrays[model][i, -third:, -1].mean())
        for model in ("linearized", "network")
        for i, margin in enumerate(arrays["margins"].tolist())
    }


def nonlinear_advantage(arrays: Arrays) -> Measured:
    """Test accuracy of the network minus that of its linearization, averaged over directions, with the most samples."""
    gap = (arrays["network"] - arrays["linearized"])[..., -1].mean(1)
    return dict(zip(arrays["margins"].tolist(), gap.tolist(), strict=True))
