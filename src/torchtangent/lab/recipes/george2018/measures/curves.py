"""What training curves say: who is lower at the same epoch, who is there first, who generalizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from torchtangent.lab.measures import standard_error
from torchtangent.lab.rules import Measured
from torchtangent.lab.study import Arrays

EPOCHS = "Mean over epochs of ln(their loss / ours)"
"""How advantages are measured, for the claims' notes."""


def advantage(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Mean over epochs (the last axis) of ln(their loss / ours): positive where ours is lower.

    >>> float(advantage(np.array([1.0, 1.0]), np.array([1.0, np.e])))
    0.5
    """
    with np.errstate(invalid="ignore"):  # both diverged: NaN, which satisfies no rule
        return np.mean(np.log(theirs) - np.log(ours), axis=-1)


def surely(values: np.ndarray) -> float:
    """The mean over seeds less its standard error; of one seed the value itself.

    >>> surely(np.array([1.0, 3.0])), surely(np.array([2.0]))
    (1.0, 2.0)
    """
    return float(values.mean()) - standard_error(values)


def time_to(loss: np.ndarray, seconds: np.ndarray, goal: float) -> float:
    """Seconds until the end of the first epoch whose loss is at most the goal; infinite if there is none.

    >>> time_to(np.array([3.0, 2.0, 1.0]), np.array([10.0, 20.0, 30.0]), 2.0)
    20.0
    """
    there = np.flatnonzero(loss <= goal)
    return float(seconds[there[0]]) if len(there) else float("inf")


def times_to_best(curves: Mapping[str, tuple[np.ndarray, np.ndarray]], others: Sequence[str]) -> Measured:
    """Seconds in which each (loss, seconds) curve comes down to the lowest last loss of the others."""
    goal = min(float(curves[name][0][-1]) for name in others)
    return {name: time_to(loss, seconds, goal) for name, (loss, seconds) in curves.items()}


# The auto-encoder: (seeds, epochs) for each optimizer.


def lower_per_epoch(name: str, others: Sequence[str]) -> Callable[[Arrays], Measured]:
    """Advantages over others, mean over seeds less the standard error."""

    def measure(arrays: Arrays) -> Measured:
        ours = arrays[f"curves-{name}/loss"]
        return {other: surely(advantage(ours, arrays[f"curves-{other}/loss"])) for other in others}

    return measure


def lower_at_end(name: str, others: Sequence[str]) -> Callable[[Arrays], Measured]:
    """The same in the last epoch alone."""

    def measure(arrays: Arrays) -> Measured:
        ours = arrays[f"curves-{name}/loss"][:, -1:]
        return {other: surely(advantage(ours, arrays[f"curves-{other}/loss"][:, -1:])) for other in others}

    return measure


def over_seeds(arrays: Arrays, name: str) -> tuple[np.ndarray, np.ndarray]:
    """An optimizer's mean loss and median seconds at every epoch."""
    return arrays[f"curves-{name}/loss"].mean(0), np.median(arrays[f"curves-{name}/seconds"], 0)


def seconds_to_baseline(names: Sequence[str], baselines: Sequence[str]) -> Callable[[Arrays], Measured]:
    """Seconds of training until each optimizer's loss is that with which the best baseline ends."""
    return lambda arrays: times_to_best({name: over_seeds(arrays, name) for name in names}, baselines)


def validation_ratio(names: Sequence[str], other: str) -> Callable[[Arrays], Measured]:
    """The last validation loss over that of another optimizer, means over seeds."""

    def measure(arrays: Arrays) -> Measured:
        last = {name: float(arrays[f"curves-{name}/valid"][:, -1].mean()) for name in (*names, other)}
        return {name: last[name] / last[other] for name in names}

    return measure


def sensitivity(name: str) -> Callable[[Arrays], Measured]:
    """The highest over the lowest last loss, along each axis of the grid through its best point."""

    def measure(arrays: Arrays) -> Measured:
        last = arrays[f"search-{name}/loss"][..., -1]
        i, j = np.unravel_index(np.argmin(last), last.shape)
        return {"η": float(last[:, j].max() / last[i, j]), "ε": float(last[i].max() / last[i, j])}

    return measure


def inside_grid(names: Sequence[str]) -> Callable[[Arrays], Measured]:
    """1 where the best learning rate has neighbours on both sides that were tried, else 0."""

    def measure(arrays: Arrays) -> Measured:
        found = {}
        for name in names:
            last = arrays[f"search-{name}/loss"][..., -1]
            i = np.unravel_index(np.argmin(last), last.shape)[0]
            found[name] = float(0 < i < len(last) - 1)
        return found

    return measure


# How often the basis is computed; the curves have the usual frequency.


def usual(arrays: Arrays, name: str) -> int:
    """Steps between decompositions in the comparison of optimizers."""
    return int(arrays[f"curves-{name}/basis_every"])


def by_frequency(arrays: Arrays, name: str) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """(loss, seconds), each (seeds, epochs), by the number of steps between decompositions."""
    loss, seconds = arrays[f"frequency-{name}/loss"], arrays[f"frequency-{name}/seconds"]
    frequencies = arrays[f"frequency-{name}/frequencies"].tolist()
    found = {frequency: (loss[i], seconds[i]) for i, frequency in enumerate(frequencies)}
    _, seeds, epochs = loss.shape
    known, clock = (arrays[f"curves-{name}/{key}"][:seeds, :epochs] for key in ("loss", "seconds"))
    return dict(sorted({**found, usual(arrays, name): (known, clock)}.items()))


def always_beats_seldom(names: Sequence[str]) -> Callable[[Arrays], Measured]:
    """Advantages of KFAC inverted at every step over all that is amortized."""

    def measure(arrays: Arrays) -> Measured:
        ours = by_frequency(arrays, "KFAC")[1][0]
        return {
            f"{name} every {frequency}": surely(advantage(ours, loss))
            for name in names
            for frequency, (loss, _) in by_frequency(arrays, name).items()
            if frequency != 1
        }

    return measure


def cost_of_always(arrays: Arrays) -> Measured:
    """Seconds of KFAC inverted at every step over those of KFAC at the usual frequency."""
    found = by_frequency(arrays, "KFAC")
    always, seldom = (found[frequency][1] for frequency in (1, usual(arrays, "KFAC")))
    return float(np.median(always[:, -1]) / np.median(seldom[:, -1]))


def degradation(arrays: Arrays, name: str) -> np.ndarray:
    """What the rarest decompositions cost, for each seed: mean over epochs of ln(loss / loss at the usual
    frequency)."""
    found = by_frequency(arrays, name)
    return advantage(found[usual(arrays, name)][0], found[max(found)][0])


def degrades_less(names: Sequence[str], other: str) -> Callable[[Arrays], Measured]:
    """How much more another optimizer degrades, mean over seeds less the standard error."""
    return lambda arrays: {name: surely(degradation(arrays, other) - degradation(arrays, name)) for name in names}
