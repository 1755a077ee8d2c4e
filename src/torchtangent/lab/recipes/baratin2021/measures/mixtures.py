"""How the claims' values are read off the alignment with easy and with difficult images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from torchtangent.lab.measures import spearman
from torchtangent.lab.recipes.baratin2021.measures.curves import reached, risen, time_above
from torchtangent.lab.recipes.baratin2021.measures.seeds import over_seeds
from torchtangent.lab.rules import Measured
from torchtangent.lab.study import Arrays

Measure = Callable[[Arrays], Measured]


@dataclass(frozen=True)
class Pair:
    """CKA on easy and on difficult images along one run."""

    steps: np.ndarray
    easy: np.ndarray
    difficult: np.ndarray

    @property
    def ratio(self) -> np.ndarray:
        """Easy over difficult."""
        return self.easy / self.difficult


def pairs(arrays: Arrays, part: str) -> list[Pair]:
    """The curves of a part, seed by seed."""
    curves = zip(arrays[f"{part}/easy"], arrays[f"{part}/difficult"], strict=True)
    return [Pair(arrays[f"{part}/steps"], easy, difficult) for easy, difficult in curves]


def largest_ratio(part: str) -> Measure:
    """The largest ratio of easy and difficult along training."""
    return lambda arrays: over_seeds(np.array([pair.ratio.max() for pair in pairs(arrays, part)]))


def higher(part: str) -> Measure:
    """The share of seeds for which the largest easy CKA is above the largest difficult one."""
    return lambda arrays: float(np.mean([pair.easy.max() > pair.difficult.max() for pair in pairs(arrays, part)]))


def delay(pair: Pair) -> float:
    """How much later the difficult CKA comes to where the easy one is half-way up: a ratio of steps.

    If it never does, the last step counts, so that this is the least it can be.
    """
    level = (pair.easy[0] + pair.easy.max()) / 2
    late, early = (min(reached(pair.steps, curve, level), pair.steps[-1]) for curve in (pair.difficult, pair.easy))
    return float((late + 1) / (early + 1))


def delays(part: str) -> Measure:
    """The share of seeds for which the difficult CKA is later, and the median delay."""

    def measure(arrays: Arrays) -> Measured:
        found = np.array([delay(pair) for pair in pairs(arrays, part)])
        return {"share of seeds": float(np.mean(found > 1)), "median delay": float(np.median(found))}

    return measure


def rise_of_difficult(part: str) -> Measure:
    """The largest difficult CKA over that at the start, and when it is half-way up over when the easy one is."""

    def measure(arrays: Arrays) -> Measured:
        found = pairs(arrays, part)
        times = [(risen(p.steps, p.difficult) + 1) / (risen(p.steps, p.easy) + 1) for p in found]
        return {
            "largest over start": float(np.mean([p.difficult.max() / p.difficult[0] for p in found])),
            "delay": float(np.mean(times)),
        }

    return measure


def onset(pair: Pair) -> float:
    """The step at which the easy CKA has made a tenth of its rise."""
    return risen(pair.steps, pair.easy, 0.1)


def rise_time(pair: Pair) -> float:
    """The step at which the easy CKA has made nine tenths of its rise over that at which it has made one."""
    return (risen(pair.steps, pair.easy, 0.9) + 1) / (risen(pair.steps, pair.easy, 0.1) + 1)


def height(pair: Pair) -> float:
    """The largest easy CKA."""
    return float(pair.easy.max())


def ratio_peak(pair: Pair) -> float:
    """The largest ratio of easy and difficult."""
    return float(pair.ratio.max())


def ratio_time(pair: Pair) -> float:
    """For how many steps the ratio is at least half of its largest."""
    return time_above(pair.steps, pair.ratio, pair.ratio.max() / 2)


def with_depth(depths: Sequence[int], read: Callable[[Pair], float]) -> Measure:
    """Spearman's correlation of depth with what is read off a run, over all depths and seeds."""

    def measure(arrays: Arrays) -> Measured:
        found = [(depth, read(pair)) for depth in depths for pair in pairs(arrays, f"depth-{depth}")]
        a, b = np.array(found).T
        return spearman(a, b)

    return measure
