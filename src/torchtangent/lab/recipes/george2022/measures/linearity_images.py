"""How the claims on linearity along training on images are read off the arrays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from torchtangent.lab.measures import spearman
from torchtangent.lab.recipes.george2022.measures.cscores import BINS, CSCORES
from torchtangent.lab.recipes.george2022.measures.curves import Curve
from torchtangent.lab.recipes.george2022.measures.noise import NOISE
from torchtangent.lab.recipes.george2022.measures.seen import Run, pairs
from torchtangent.lab.rules import Measured
from torchtangent.lab.study import Arrays

EXPERIMENTS = {"C-scores": (CSCORES, BINS), "label noise": (NOISE, ("clean",))}
"""The runs of an experiment, and the groups whose mean loss is its progress."""


def curve(run: Run, name: str, groups: tuple[str, ...]) -> Curve:
    """A measure of linearity against the training loss."""
    return run.mean("losses", *groups)[run["measured_at"]], run.metric(name)


def lowest(*names: str) -> Callable[[Arrays], Measured]:
    """The smallest values for α = 100 in all runs of both experiments."""
    return lambda arrays: {
        name: min(
            float(lazy.metric(name).min()) for parts, _ in EXPERIMENTS.values() for _, lazy in pairs(arrays, parts)
        )
        for name in names
    }


def steadiness(name: str) -> Callable[[Arrays], Measured]:
    """Spearman's correlation with the progress of training for α = 1, mean over seeds: −1 if it only falls.

    NaN if a run was measured less than three times: two points always rise or fall.
    """

    def of(run: Run) -> float:
        values = run.metric(name)
        return spearman(np.arange(len(values)), values) if len(values) > 2 else float("nan")

    return lambda arrays: {
        title: float(np.mean([of(rich) for rich, _ in pairs(arrays, parts)]))
        for title, (parts, _) in EXPERIMENTS.items()
    }


def from_linearized(arrays: Arrays) -> Measured:
    """The relative distance from the linearized network at the last look, for every α."""
    alphas, errors = arrays["against-linearized/alphas"], arrays["against-linearized/errors"]
    return {f"α = {alpha:g}": float(error) for alpha, error in zip(alphas, errors[:, -1], strict=True)}
