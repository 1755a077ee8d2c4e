"""How the claims on samples of different difficulty are read off the arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from torchtangent.lab.measures import spearman
from torchtangent.lab.recipes.george2022.measures.curves import POINTS, Array, Curve, at, common
from torchtangent.lab.recipes.george2022.measures.seen import SEEDS, Kind, Look, Run, curve, pairs
from torchtangent.lab.rules import Measured
from torchtangent.lab.study import Arrays

CSCORES = tuple(f"cscores-a*-{seed}" for seed in SEEDS)
BINS = tuple(map(str, range(10)))
"""The groups of training samples by C-score, the most difficult first."""


def decile(number: int, kind: Kind = "losses") -> Look:
    """A bin against the mean over bins."""
    return lambda run: curve(kind, run.mean(kind, *BINS), run.mean(kind, BINS[number]))


def spread(run: Run) -> Curve:
    """How much more accurate the easiest bin is than the most difficult one, against the mean over bins."""
    bins = run.each("accuracies", BINS)
    return curve("accuracies", bins.mean(1), bins[:, -1] - bins[:, 0])


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
    """The mean differences of the easiest and the most difficult bin."""
    means = by_bin(arrays)[1].mean(0)
    return {"easiest": float(means[-1]), "most difficult": float(means[0])}


def tilt(arrays: Arrays) -> Measured:
    """Spearman's correlation of the bins' mean differences and their numbers."""
    return spearman(np.arange(len(BINS)), by_bin(arrays)[1].mean(0))


def halves_agree(arrays: Arrays) -> Measured:
    """Spearman's correlation of C-scores from two halves of the subsets."""
    return spearman(*arrays["halves"])


def growth(arrays: Arrays) -> Measured:
    """The smallest gain of the mean C-score from one size of subsets to the next."""
    return float(np.diff(arrays["by_size"].mean(1)).min())


def _bins(run: Run) -> Curve:
    return run.mean("losses", *BINS), run.each("losses", BINS)
