"""Ways to read a claim's value off arrays that several studies share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from torchtangent.lab.rules import Measured
from torchtangent.lab.study import Arrays

ROUNDING = 1e-10
"""What counts as equal to rounding in float64 after long sums."""

DIVIDED = 1e-8
"""The same after a division by small eigenvalues."""


def largest(name: str) -> Callable[[Arrays], Measured]:
    """The largest entry of an array."""
    return lambda arrays: float(np.max(arrays[name]))


def smallest(name: str) -> Callable[[Arrays], Measured]:
    """The smallest entry of an array."""
    return lambda arrays: float(np.min(arrays[name]))


def exponent(x: np.ndarray | Sequence[float], y: np.ndarray | Sequence[float]) -> float:
    """The power with which y goes with x: the slope of a line through their logarithms.

    >>> x = np.array([1.0, 2.0, 4.0])
    >>> round(exponent(x, 5 * x**-2), 6)
    -2.0
    """
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's rank correlation; values that are equal share their mean rank.

    >>> round(spearman(np.array([1, 2, 3]), np.array([10, 20, 20])), 3)
    0.866
    """

    def ranks(values: np.ndarray) -> np.ndarray:
        return np.array([(np.sum(values < value) + np.sum(values <= value)) / 2 for value in values])

    with np.errstate(invalid="ignore", divide="ignore"):  # NaN if one of them is constant
        return float(np.corrcoef(ranks(a), ranks(b))[0, 1])


def standard_error(values: np.ndarray) -> float:
    """Of a mean over seeds; 0 if there is one seed, of which nothing is known.

    >>> standard_error(np.array([1.0, 3.0])), standard_error(np.array([2.0]))
    (1.0, 0.0)
    """
    with np.errstate(invalid="ignore"):  # a run that diverged makes it NaN
        return float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else 0.0
