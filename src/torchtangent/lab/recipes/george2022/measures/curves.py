"""Rules that compare curves of training where it has come equally far, in numbers alone.

The progress x falls (a loss) or rises (an accuracy) along a curve, but not at every look. It is made monotone by its
running minimum or maximum, and curves are compared by interpolation on the range that all of them have passed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from torchtangent.lab.measures import standard_error

Array = np.ndarray
Curve = tuple[Float[Array, "_"], Float[Array, "_ ..."]]
"""The progress x of every look, and what was seen."""

POINTS = 50
"""Levels of progress at which curves are compared."""

WINDOW = 5
"""Looks over whose mean a maximum is sought."""


def monotone(x: Float[Array, " looks"], *, rising: bool = False) -> Float[Array, " looks"]:
    """The lowest value so far (the highest, if it rises).

    >>> monotone(np.array([2.0, 1.5, 1.7, 1.0]))
    array([2. , 1.5, 1.5, 1. ])
    """
    return np.maximum.accumulate(x) if rising else np.minimum.accumulate(x)


def common(curves: Sequence[Curve], *, rising: bool = False) -> Float[Array, " points"]:
    """Levels of progress that all curves have passed, from the start on; NaN if there are none.

    >>> falls, too = (np.array([2.0, 0.0]), np.zeros(2)), (np.array([1.8, 0.5, 1.0]), np.zeros(3))
    >>> common([falls, too])[[0, -1]]
    array([1.8, 0.5])
    """
    passed = [monotone(x, rising=rising) for x, _ in curves]
    low = max(x.min(initial=np.inf) for x in passed)
    high = min(x.max(initial=-np.inf) for x in passed)
    if low >= high:
        return np.full(POINTS, np.nan)
    return np.linspace(low, high, POINTS) if rising else np.linspace(high, low, POINTS)


def at(levels: Float[Array, " points"], curve: Curve, *, rising: bool = False) -> Float[Array, "points ..."]:
    """What was seen at levels of progress, interpolated; the mean of looks at which the monotone progress is the same.

    >>> at(np.array([1.0]), (np.array([2.0, 1.5, 1.7, 0.5]), np.array([0.0, 1.0, 3.0, 4.0])))
    array([3.])
    """
    x, y = curve
    if np.isnan(levels).any():
        return np.full((len(levels), *y.shape[1:]), np.nan)
    ascending, place = np.unique(monotone(x, rising=rising), return_inverse=True)
    columns = y.reshape(len(y), -1)
    sums = np.zeros((len(ascending), columns.shape[1]))
    np.add.at(sums, place, columns)
    means = sums / np.bincount(place)[:, None]
    found = np.stack([np.interp(levels, ascending, column) for column in means.T], axis=1)
    return found.reshape(len(levels), *y.shape[1:])


def differences(one: Curve, other: Curve, *, rising: bool = False) -> Float[Array, "points ..."]:
    """What was seen in one run minus what was seen in another, at equal progress."""
    levels = common([one, other], rising=rising)
    return at(levels, one, rising=rising) - at(levels, other, rising=rising)


def onset(clean: Float[Array, " looks"], noisy: Float[Array, " looks"]) -> float:
    """The loss of clean samples when that of noisy ones is highest, in means over five looks: memorization begins.

    NaN if the highest is the last one: then it did not begin in this run.

    >>> clean = np.linspace(2, 0, 21)
    >>> round(onset(clean, 3 - (clean - 1.2) ** 2), 6), onset(clean, -clean)
    (1.2, nan)
    """
    width = min(WINDOW, len(clean))
    clean, noisy = (np.convolve(values, np.full(width, 1 / width), "valid") for values in (clean, noisy))
    highest = int(noisy.argmax())
    return float("nan") if highest == len(noisy) - 1 else float(clean[highest])


def late(values: Float[Array, " points"]) -> float:
    """The mean over the last tenth of a range of progress."""
    return float(values[-max(1, len(values) // 10) :].mean())


def agreement(values: Float[Array, " seeds"]) -> float:
    """The part of the seeds on which a value is positive; NaN if it could not be measured on one of them."""
    return float("nan") if np.isnan(values).any() else float(np.mean(values > 0))


def over_seeds(values: Sequence[float]) -> dict[str, float]:
    """The mean, its standard error if there are several seeds, and the part of them on which the value is positive.

    >>> over_seeds([1.0, 3.0])
    {'mean': 2.0, 'standard error': 1.0, 'part of seeds': 1.0}
    """
    found = np.asarray(values, dtype=float)
    error = {"standard error": standard_error(found)} if len(found) > 1 else {}
    return {"mean": float(found.mean())} | error | {"part of seeds": agreement(found)}
