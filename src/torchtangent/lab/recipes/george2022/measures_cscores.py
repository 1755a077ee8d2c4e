"""How the claims on samples of different difficulty are read off the arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from torchtangent.lab.measures import spearman
from torchtangent.lab.recipes.george2022.curves import POINTS, Array, Curve, at, common
from torchtangent.lab.recipes.george2022.seen import SEEDS, Kind, Look, Run, curve, pairs
from torchtangent.lab.rules import Measured
from torchtangent.lab.study import Arrays

CSCORES = tuple(f"cscores-a*-{seed}" for seed in SEEDS)
BINS = tuple(map(str, range(10)))
"""The groups of training samples by C-score, the most difficult first."""


def decile(number: int, kind: Kind = "losses") -> Look:
    """A bin against the mean over bins."""
    return lambda run: curve(kind, run.mean(kind, *BINS), run.mean(kind, BINS[number]))


def spread(kind: Kind) -> Look:
    """How far the easiest bin is from the most difficult one, against the mean over bins."""

    def look(run: Run) -> Curve:
        return curve(kind, run.mean(kind, *BINS), np.abs(run.mean(kind, BINS[-1]) - run.mean(kind, BINS[0])))

    return look


def order(parts: Sequence[str]) -> Callable[[Arrays], Measured]:
    """Spearman's correlation of the bins' numbers and their losses half-way down the mean loss; the worst of seeds."""

    def of(run: Run) -> float:
        half = common([_bins(run)])[POINTS // 2 : POINTS // 2 + 1]
        return spearman(np.arange(len(BINS)), at(half, _bins(run))[0])

    def measure(arrays: Arrays) -> Measured:
        found = np.max([[of(a), of(b)] for a, b in pairs(arrays, parts)], axis=0)
        return {"α = 1": float(found[0]), "α = 100": float(found[1])}

    return measure


def by_bin(arrays: Arrays) -> tuple[Float[Array, " points"], Float[Array, "points bins"]]:
    """Levels of the mean loss that all runs pass, and there the loss of every bin for α = 1 minus that for α = 100."""
    both = [(_bins(a), _bins(b)) for a, b in pairs(arrays, CSCORES)]
    levels = common([one for pair in both for one in pair])
    return levels, np.mean([at(levels, a) - at(levels, b) for a, b in both], axis=0)


def signs(arrays: Arrays) -> Measured:
    """Mean differences of the easiest and the most difficult bin, and Spearman's correlation with the bins' numbers."""
    means = by_bin(arrays)[1].mean(0)
    found = {"easiest": float(means[-1]), "most difficult": float(means[0])}
    return found | {"correlation": spearman(np.arange(len(BINS)), means)}


def halves_agree(arrays: Arrays) -> Measured:
    """Spearman's correlation of C-scores from two halves of the subsets."""
    return spearman(*arrays["halves"])


def growth(arrays: Arrays) -> Measured:
    """The smallest gain of the mean C-score from one size of subsets to the next."""
    return float(np.diff(arrays["by_size"].mean(1)).min())


def _bins(run: Run) -> Curve:
    return run.mean("losses", *BINS), run.each("losses", BINS)
