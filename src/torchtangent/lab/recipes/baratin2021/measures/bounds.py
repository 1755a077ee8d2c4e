"""Readings of complexities, bounds and rescalings."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from torchtangent.lab.rules import Measured
from torchtangent.lab.study import Arrays


def largest_ratio(arrays: Arrays) -> Measured:
    """The largest ratio of complexity and bound along training, for each metric."""
    ratio = np.max(arrays["complexities"] / arrays["bounds"], axis=0)
    return dict(zip(arrays["metrics"].tolist(), ratio, strict=True))


def scale_error(problem: str) -> Callable[[Arrays], Measured]:
    """The largest relative difference of the scales found numerically from the formula's."""

    def measure(arrays: Arrays) -> Measured:
        i = arrays["problems"].tolist().index(problem)
        return float(np.max(np.abs(arrays["numeric"][i] / arrays["formula"][i] - 1)))

    return measure


def minimum_error(arrays: Arrays) -> Measured:
    """The largest relative difference of the minima found numerically from the formula's."""
    errors = np.abs(arrays["values"] / arrays["least"][:, None] - 1).max(1)
    return dict(zip(arrays["problems"].tolist(), errors, strict=True))


def rescaled_error(arrays: Arrays) -> Measured:
    """The largest difference of the rescaled kernel's eigenvalues from |uᵀ∇L| λ, relative to the largest."""
    expected = np.sort(arrays["parts"][1] * arrays["eigenvalues"])[::-1]
    return float(np.max(np.abs(arrays["rescaled"] - expected)) / expected[0])
