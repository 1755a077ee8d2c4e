"""How the values of claims about the yin-yang task are read off the arrays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float

from torchtangent.lab.recipes.george2022.measures.runs import Runs, high, low
from torchtangent.lab.recipes.george2022.toy import REGIMES, REGIONS
from torchtangent.lab.rules import Measured
from torchtangent.lab.study import Arrays

Bound = Callable[[Runs], float]


def runs(arrays: Arrays, name: str) -> np.ndarray:
    """An array with a value for each run, from all parts: runs are the last axis."""
    return np.concatenate(list(arrays.stack(name)), axis=-1)


def fixed(arrays: Arrays, name: str) -> np.ndarray:
    """An array that is the same in all parts."""
    return arrays.stack(name)[0]


def common(arrays: Arrays, other: str = "α = 100") -> Bool[np.ndarray, "L E"]:
    """Which runs reach each level both with α = 1 and in another regime."""
    reached = runs(arrays, "reached") >= 0
    return reached[0] & reached[REGIMES.index(other)]


def maps(arrays: Arrays) -> Float[np.ndarray, "2 L G"]:
    """The mean of Δloss over the runs that count, between α = 1 and each other regime; zero where none does."""
    counts = np.stack([common(arrays, other).sum(1) for other in REGIMES[1:]])
    return arrays.stack("map_sums").astype(float).sum(0) / np.maximum(counts, 1)[..., None]


def differences(arrays: Arrays, region: str) -> dict[float, Runs]:
    """Δloss by level: the loss with α = 1 less that with α = 100, mean over a region, for every run that counts.

    Levels that fewer than two runs reach are left out.
    """
    losses = runs(arrays, "region_losses")[:, REGIONS.index(region)]
    levels = zip(fixed(arrays, "levels").tolist(), losses[0] - losses[1], common(arrays), strict=True)
    return {level: found[counted] for level, found, counted in levels if counted.sum() > 1}


def difference(region: str, bound: Bound) -> Callable[[Arrays], Measured]:
    """A bound on the mean of Δloss in a region at every level."""
    return lambda arrays: _named({level: bound(values) for level, values in differences(arrays, region).items()})


def speedup(arrays: Arrays) -> Measured:
    """How many times fewer iterations α = 1 takes to each level: the geometric mean less two standard errors.

    Runs that do not come there count as if they did at the end.
    """
    reached, ends = runs(arrays, "reached"), runs(arrays, "ends")
    logs = np.log(np.where(reached < 0, ends[:, None], reached))
    rows = zip(fixed(arrays, "levels").tolist(), logs[1] - logs[0], strict=True)
    return _named({level: float(np.exp(low(row))) for level, row in rows})


def map_correlations(arrays: Arrays) -> Measured:
    """How alike the maps are that compare with α = 100 and with the linearized network, at every level."""
    counted = common(arrays).sum(1) > 1
    levels = zip(fixed(arrays, "levels").tolist(), maps(arrays).transpose(1, 0, 2), counted, strict=True)
    return _named({level: float(np.corrcoef(pair)[0, 1]) for level, pair, enough in levels if enough})


def distances(arrays: Arrays) -> Measured:
    """How far networks are from their linearizations at the last mark, two standard errors nearer to each other."""
    far, near = runs(arrays, "distances")[:, -1]
    return {"α = 1": low(far), "α = 100": high(near)}


def farthest_when_lazy(arrays: Arrays) -> Measured:
    """The same of α = 100 alone."""
    return high(runs(arrays, "distances")[1, -1])


def by_parameters(arrays: Arrays) -> Measured:
    """How far training by kernels and by parameters are apart, the largest over parts."""
    return float(arrays.stack("by_parameters").max())


def _named(by_level: dict[float, float]) -> Measured:
    return {f"at {level:g}": value for level, value in by_level.items()} or float("nan")
