"""Means over runs, and how sure they are."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from torchtangent.lab.measures import standard_error

Runs = Float[np.ndarray, " E"]
"""One value of every run."""


def low(values: Runs) -> float:
    """Two standard errors below the mean."""
    return float(values.mean() - 2 * standard_error(values))


def high(values: Runs) -> float:
    """Two standard errors above the mean."""
    return float(values.mean() + 2 * standard_error(values))


def spread(values: Runs) -> dict[str, float]:
    """The mean, and two standard errors less and more.

    >>> spread(np.array([1.0, 3.0]))
    {'mean': 2.0, '− 2 s.e.': 0.0, '+ 2 s.e.': 4.0}
    """
    return {"mean": float(values.mean()), "− 2 s.e.": low(values), "+ 2 s.e.": high(values)}
