"""How the claims on spurious correlations are read off the arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from jaxtyping import Float

from torchtangent.lab.recipes.george2022.measures.curves import Array, Curve, agreement, differences, late, over_seeds
from torchtangent.lab.recipes.george2022.measures.seen import SEEDS, Kind, Look, Run, curve
from torchtangent.lab.rules import Measured
from torchtangent.lab.study import Arrays

PATCH = tuple(f"patch-*-{seed}" for seed in SEEDS)
FINETUNED = tuple(f"finetuned-*-{seed}" for seed in SEEDS)
ALPHAS = {"α = 0.5": "a05", "α = 1": "a1", "α = 100": "a100"}
GROUPS = ("00", "01", "10", "11")
"""Label and attribute."""

Part = Literal["train", "test"]


def helped(run: Run, kind: Kind, part: Part) -> Array:
    """Samples with the spurious correlation at every look."""
    return run.mean(kind, *(f"{part} {name}" for name in run["with"]))


def hurt(run: Run, kind: Kind, part: Part) -> Array:
    """Samples without."""
    return run.mean(kind, *(f"{part} {name}" for name in GROUPS if name not in run["with"]))


def without(part: Part, kind: Kind = "accuracies") -> Look:
    """Samples without the spurious correlation against those with."""
    return lambda run: curve(kind, helped(run, kind, part), hurt(run, kind, part))


def tested(run: Run) -> Curve:
    """The mean accuracy of test samples of all groups against that of training samples."""
    kind: Kind = "accuracies"
    return curve(kind, run.mean(kind, "train"), run.mean(kind, *(f"test {name}" for name in GROUPS)))


def runs(arrays: Arrays, part: str) -> dict[str, Run]:
    """The runs for every α. The part is named with `*` in the place of α: `patch-*-s0`."""
    return {name: Run(arrays, part.replace("*", key)) for name, key in ALPHAS.items()}


def less_prone(parts: Sequence[str], look: Look, kind: Kind = "accuracies") -> Callable[[Arrays], Measured]:
    """How much better α = 100 is than the others at equal progress, mean over the common range and over seeds.

    Losses count negatively, so that more is better; also the part of the seeds on which it is better than both.
    """
    sign, rising = (1, True) if kind == "accuracies" else (-1, False)

    def measure(arrays: Arrays) -> Measured:
        found = []
        for part in parts:
            rich = runs(arrays, part)
            lazy = rich.pop("α = 100")
            apart = [differences(look(lazy), look(run), rising=rising) for run in rich.values()]
            found.append([sign * float(values.mean()) for values in apart])
        means = np.mean(found, axis=0)
        agree = {"part of seeds": agreement(np.min(found, axis=1))}
        return {f"over {name}": float(value) for name, value in zip(ALPHAS, means, strict=False)} | agree

    return measure


def late_advantage(parts: Sequence[str], look: Look) -> Callable[[Arrays], Measured]:
    """How much better α = 1 is than α = 100 in the last tenth of the common progress."""
    return lambda arrays: over_seeds([late(apart) for apart in _apart(arrays, parts, look)])


def convergence(parts: Sequence[str], look: Look) -> Callable[[Arrays], Measured]:
    """The mean distance of α = 1 from α = 100 in the last tenth of the common progress over that on all of it."""

    def measure(arrays: Arrays) -> Measured:
        distance = np.abs(_apart(arrays, parts, look)).mean(0)
        return late(distance) / float(distance.mean()) if distance.any() else float("nan")

    return measure


def _apart(arrays: Arrays, parts: Sequence[str], look: Look) -> Float[Array, "seeds points"]:
    """Accuracies for α = 1 minus those for α = 100, at equal progress."""
    every = [runs(arrays, part) for part in parts]
    return np.stack([differences(look(run["α = 1"]), look(run["α = 100"]), rising=True) for run in every])
