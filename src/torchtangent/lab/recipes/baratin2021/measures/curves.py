"""Readings of curves along training: where they rise, how long they stay high, what they are at equal loss.

A curve is known at some steps; between them it is a straight line over log(step + 1), as it is drawn.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

Curve = Float[np.ndarray, " T"]

_FINE = 4000  # points of a curve between its first and last step


def fine(steps: np.ndarray, curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    """Many steps, not whole numbers, and the curve at each."""
    x = np.log1p(steps)
    grid = np.linspace(x[0], x[-1], _FINE)
    return np.expm1(grid), np.interp(grid, x, curve)


def reached(steps: np.ndarray, curve: Curve, level: float) -> float:
    """The first step at which a curve is at a level or above; infinity if there is none.

    >>> round(reached(np.array([0, 99]), np.array([0.0, 2.0]), 1.0))
    9
    """
    grid, values = fine(steps, curve)
    above = np.flatnonzero(values >= level)
    return float(grid[above[0]]) if len(above) else np.inf


def risen(steps: np.ndarray, curve: Curve, part: float = 0.5) -> float:
    """The step at which a curve has made this part of its way from where it starts to its highest point."""
    return reached(steps, curve, curve[0] + part * (np.max(curve) - curve[0]))


def time_above(steps: np.ndarray, curve: Curve, level: float) -> float:
    """For how many steps a curve is at a level or above.

    >>> round(time_above(np.array([0, 10, 20]), np.array([1.0, 1.0, 0.0]), 1.0))
    10
    """
    grid, values = fine(steps, curve)
    return float(np.sum(np.diff(grid)[values[:-1] >= level]))


def learning(accuracy: Curve) -> np.ndarray:
    """Where a network learns what generalizes: from half of the rise of its test accuracy to the peak, as a mask.

    >>> learning(np.array([0.1, 0.2, 0.6, 0.9, 0.8]))
    array([False, False,  True,  True, False])
    """
    peak = int(np.argmax(accuracy))
    half = accuracy[0] + (accuracy[peak] - accuracy[0]) / 2
    return (np.arange(len(accuracy)) <= peak) & (accuracy >= half)


def fitted(accuracy: Curve, level: float = 0.999) -> int:
    """Where the training accuracy is first at the level; the last point if it never is."""
    there = np.flatnonzero(accuracy >= level)
    return int(there[0]) if len(there) else len(accuracy) - 1


def at_equal_loss(
    first: tuple[Curve, Curve], second: tuple[Curve, Curve], count: int = 50
) -> tuple[np.ndarray, np.ndarray]:
    """Two curves, each given after its run's training loss, at losses that both runs go through.

    The losses are equally spaced in the logarithm. One counts as reached when it is for the first time: the lowest loss
    so far says how far training is.

    >>> loss = np.array([2.0, 1.0, 0.5])
    >>> at_equal_loss((loss, np.array([0.0, 1.0, 2.0])), (loss[:2], np.array([1.0, 2.0])), count=2)
    (array([0., 1.]), array([1., 2.]))
    """
    runs = [(np.log(np.minimum.accumulate(loss)), curve) for loss, curve in (first, second)]
    grid = np.linspace(min(x[0] for x, _ in runs), max(x[-1] for x, _ in runs), count)
    values = []
    for x, curve in runs:
        new = np.concatenate([[True], np.diff(x) < 0])
        values.append(np.interp(-grid, -x[new], curve[new]))
    return values[0], values[1]
