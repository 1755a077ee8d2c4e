"""How the claims on label noise are read off the arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from torchtangent.lab.recipes.george2022.measures.curves import Array, Curve, at, common, onset, over_seeds
from torchtangent.lab.recipes.george2022.measures.seen import SEEDS, Kind, Look, Run, curve, pairs
from torchtangent.lab.rules import Measured
from torchtangent.lab.study import Arrays

NOISE = tuple(f"noise-a*-{seed}" for seed in SEEDS)
RATES = {"η": "noise-a1-s0", "0.3 η": "rate-third", "0.01 η": "rate-hundredth"}
"""The runs with α = 1 at several learning rates."""


def noisy(kind: Kind) -> Look:
    """Noisy samples against clean ones."""
    return against_clean("noisy", kind)


def against_clean(group: str, kind: Kind, axis: Kind | None = None) -> Look:
    """A group against clean samples; losses against losses and accuracies against accuracies, unless said otherwise."""
    return lambda run: curve(kind, run.mean(axis or kind, "clean"), run.mean(kind, group))


def onsets(arrays: Arrays, parts: Sequence[str]) -> Float[Array, "seeds 2"]:
    """The loss of clean samples when noisy ones begin to be memorized, for α = 1 and α = 100."""

    def of(run: Run) -> float:
        return onset(run.mean("losses", "clean"), run.mean("losses", "noisy"))

    return np.array([[of(a), of(b)] for a, b in pairs(arrays, parts)])


def later(parts: Sequence[str]) -> Callable[[Arrays], Measured]:
    """How much lower the clean loss is for α = 1 when memorization begins."""
    return lambda arrays: over_seeds(np.diff(onsets(arrays, parts))[:, 0].tolist())


def onset_values(arrays: Arrays) -> Measured:
    """The clean loss when memorization begins, mean over seeds."""
    return _named(onsets(arrays, NOISE).mean(0))


def rise(arrays: Arrays) -> Measured:
    """How far the noisy loss rises above where it began while the clean loss is below its own, the least over seeds."""

    def of(run: Run) -> float:
        clean, seen = run.mean("losses", "clean"), run.mean("losses", "noisy")
        return float(seen[clean < clean[0]].max(initial=-np.inf) - seen[0])

    return _named(np.min([[of(a), of(b)] for a, b in pairs(arrays, NOISE)], axis=0))


def _named(values: Float[Array, " 2"]) -> dict[str, float]:
    return {"α = 1": float(values[0]), "α = 100": float(values[1])}


def rate_curves(arrays: Arrays, group: str, axis: Kind) -> dict[str, Curve]:
    """The accuracy of a group against the loss, or the accuracy, of clean samples, for every learning rate."""
    look = against_clean(group, "accuracies", axis)
    return {name: look(Run(arrays, part)) for name, part in RATES.items()}


def rates_apart(group: str, axis: Kind) -> Callable[[Arrays], Measured]:
    """The mean distance of accuracies from those at the learning rate η, at equal progress."""
    rising = axis == "accuracies"

    def measure(arrays: Arrays) -> Measured:
        first, *others = rate_curves(arrays, group, axis).items()
        found = {}
        for name, seen in others:
            levels = common([first[1], seen], rising=rising)
            apart = at(levels, seen, rising=rising) - at(levels, first[1], rising=rising)
            found[name] = float(np.abs(apart).mean())
        return found

    return measure


def less_linear(name: str) -> Callable[[Arrays], Measured]:
    """How much lower a measure of linearity is for α = 1 at every rate than for α = 100, at the last common loss."""

    def seen(part: str, arrays: Arrays) -> Curve:
        run = Run(arrays, part)
        return run.mean("losses", "clean")[run["measured_at"]], run.metric(name)

    def measure(arrays: Arrays) -> Measured:
        lazy, found = seen("noise-a100-s0", arrays), {}
        for rate, part in RATES.items():
            rich = seen(part, arrays)
            end = common([lazy, rich])[-1:]
            found[rate] = float((at(end, lazy) - at(end, rich))[0])
        return found

    return measure
