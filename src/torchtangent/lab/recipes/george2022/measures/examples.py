"""How the values of claims about the three examples are read off the arrays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from torchtangent.lab.recipes.george2022.measures.runs import Runs, spread
from torchtangent.lab.recipes.george2022.modes import Array
from torchtangent.lab.rules import Measured
from torchtangent.lab.study import Arrays

HALF = 0.5
"""Groups are compared when an error has fallen to this part of its start, modes when this part of them is learned."""

Value = Callable[[Float[Array, "3 T"]], float]
"""Something about the errors of the first group, of the second group and of all samples during one training."""


def when(progress: Float[Array, " T"], values: Float[Array, " T"], level: float = HALF) -> float:
    """The value of a curve when another one first falls to this part of its start; NaN if it never does.

    >>> when(np.array([2.0, 1.5, 0.5]), np.array([0.0, 1.0, 3.0]))
    2.0
    """
    falling = np.minimum.accumulate(progress / progress[0])
    return float(np.interp(-level, -falling, values)) if falling[-1] <= level else float("nan")


def gap(errors: Float[Array, "3 T"]) -> float:
    """How much larger the second group's error is than the first's, when that of all samples is half its start."""
    return when(errors[2], errors[1] - errors[0])


def second_when_first(errors: Float[Array, "3 T"]) -> float:
    """The second group's error over its start, when the first group's is half of its own."""
    return when(errors[0], errors[1] / errors[1, 0])


def peak(errors: Float[Array, "3 T"]) -> float:
    """The highest error of the second group."""
    return float(errors[1].max())


def rise(errors: Float[Array, "3 T"]) -> float:
    """The same over its start: 1 if it only falls."""
    return float(errors[1].max() / errors[1, 0])


def each(name: str, value: Value) -> Callable[[Arrays], Runs]:
    """A value of every training."""
    return lambda arrays: np.array([value(errors) for errors in arrays[name]])


def mean(name: str, value: Value) -> Callable[[Arrays], Measured]:
    """The mean over trainings, with two standard errors on both sides."""
    return lambda arrays: spread(each(name, value)(arrays))


def difference(name: str, other: str, value: Value) -> Callable[[Arrays], Measured]:
    """The mean over seeds of the difference between two trainings from the same seed, with two standard errors."""
    return lambda arrays: spread(each(name, value)(arrays) - each(other, value)(arrays))


def half_times(times: Float[Array, " T"], learned: Float[Array, "T R"]) -> Float[Array, " R"]:
    """When half of each mode is learned; infinite if it never is."""
    found = np.array([when(np.r_[1.0, 1 - part], np.r_[times[0], times]) for part in learned.T])
    return np.where(np.isnan(found), np.inf, found)


def order(regime: str) -> Callable[[Arrays], Measured]:
    """When half of each mode of example 1 is learned."""

    def measure(arrays: Arrays) -> Measured:
        found = half_times(arrays[f"{regime}_times"], arrays[f"{regime}_learned"])
        return {f"mode {i}": float(t) for i, t in enumerate(found, start=1)}

    return measure


def rank_correlation(regime: str) -> Callable[[Arrays], Measured]:
    """Spearman's correlation of a mode's index with the step at which half of it is learned, over seeds."""

    def measure(arrays: Arrays) -> Measured:
        steps = arrays[f"plain-1/{regime}_steps"]
        return spread(np.array([_with_index(half_times(steps, run)) for run in arrays[f"{regime}_learned"]]))

    return measure


def _with_index(values: Float[Array, " R"]) -> float:
    """Spearman's correlation with the index; equal values share their rank."""
    ranks = [np.sum(values < value) + np.sum(values <= value) for value in values]
    return float(np.corrcoef(np.arange(len(values)), ranks)[0, 1])


def least_learned(arrays: Arrays) -> Measured:
    """How much of the slowest mode the linearized network has learned at the end, from both starts."""
    return {
        "θ⁰ = σ": float(arrays["linearized_learned"][-1].min()),
        "θ⁰ = σ/2": float(arrays["linearized_learned_printed"][-1].min()),
    }


def slowdown(arrays: Arrays) -> Measured:
    """How much longer the linearized network takes to learn half of a mode from θ⁰ = σ/2, the mean over modes."""
    late, early = (half_times(arrays["linearized_times"], arrays[f"linearized_learned{s}"]) for s in ("_printed", ""))
    return float(np.mean(late / early))


def gaps_by_core(arrays: Arrays) -> dict[str, Float[Array, " L"]]:
    """The gap between the groups of example 3 for every λ, in both regimes."""
    return {name: each(f"{name}_errors", gap)(arrays) for name in ("network", "linearized")}


def gap_at_one(arrays: Arrays) -> Measured:
    """The same for λ = 1."""
    at = arrays["cores"].tolist().index(1.0)
    return {name: float(gaps[at]) for name, gaps in gaps_by_core(arrays).items()}


def excess_below_one(arrays: Arrays) -> Measured:
    """How much larger the network's gap is, for each λ below 1."""
    gaps = gaps_by_core(arrays)
    found = zip(arrays["cores"].tolist(), gaps["network"] - gaps["linearized"], strict=True)
    return {f"λ = {core:g}": float(excess) for core, excess in found if core < 1}
