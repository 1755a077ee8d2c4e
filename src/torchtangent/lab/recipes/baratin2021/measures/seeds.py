"""What can be said of a mean over seeds."""

from __future__ import annotations

import numpy as np

from torchtangent.lab.measures import standard_error

SURE = "mean − 2 s.e."
"""What a claim over seeds asks about: the mean less two standard errors."""


def surely(values: np.ndarray) -> dict[str, float]:
    """The mean over seeds, and the mean less two of its standard errors (the mean itself if there is one seed).

    >>> surely(np.array([1.0, 3.0]))
    {'mean': 2.0, 'mean − 2 s.e.': 0.0}
    """
    values = np.asarray(values, dtype=float)
    return {"mean": float(values.mean()), SURE: float(values.mean()) - 2 * standard_error(values)}


def over_seeds(values: np.ndarray) -> dict[str, float]:
    """The mean over seeds and, if there are several, its standard error.

    >>> over_seeds(np.array([1.0, 3.0])), over_seeds(np.array([2.0]))
    ({'mean': 2.0, 'standard error': 1.0}, {'mean': 2.0})
    """
    found = {"mean": float(np.mean(values))}
    if len(values) > 1:
        found["standard error"] = standard_error(np.asarray(values))
    return found
