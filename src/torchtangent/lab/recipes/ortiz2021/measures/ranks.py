"""Rank correlation."""

from __future__ import annotations

import numpy as np


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's rank correlation; values that are equal share their mean rank.

    >>> round(spearman(np.array([1, 2, 3]), np.array([10, 20, 20])), 3)
    0.866
    """

    def ranks(values: np.ndarray) -> np.ndarray:
        return np.array([(np.sum(values < value) + np.sum(values <= value)) / 2 for value in values])

    with np.errstate(invalid="ignore", divide="ignore"):  # NaN if one of them is constant
        return float(np.corrcoef(ranks(a), ranks(b))[0, 1])
