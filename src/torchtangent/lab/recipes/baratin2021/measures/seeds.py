"""What can be said of a mean over seeds."""

from __future__ import annotations

import numpy as np

SURE = "mean − 2 s.e."
"""What a claim over seeds asks about: the mean less two standard errors."""


def surely(values: np.ndarray) -> dict[str, float]:
    """The mean over seeds, and the mean less two of its standard errors (the mean itself if there is one seed).

    >>> surely(np.array([1.0, 3.0]))
    {'mean': 2.0, 'mean − 2 s.e.': 0.0}
    """
    values = np.asarray(values, dtype=float)
    error = values.std(ddof=1) / values.size**0.5 if values.size > 1 else 0.0
    return {"mean": float(values.mean()), SURE: float(values.mean() - 2 * error)}


def over_seeds(values: np.ndarray) -> dict[str, float]:
    """The mean over seeds and, if there are several, its standard error.

    >>> over_seeds(np.array([1.0, 3.0])), over_seeds(np.array([2.0]))
    ({'mean': 2.0, 'standard error': 1.0}, {'mean': 2.0})
    """
    found = {"mean": float(np.mean(values))}
    if len(values) > 1:
        found["standard error"] = float(np.std(values, ddof=1) / len(values) ** 0.5)
    return found
