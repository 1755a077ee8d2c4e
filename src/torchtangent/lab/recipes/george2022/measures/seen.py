"""What was seen of training runs on images, read off their arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float

from torchtangent.lab.recipes.george2022.measures.curves import Array, Curve, differences, over_seeds
from torchtangent.lab.rules import Measured
from torchtangent.lab.study import Arrays

Kind = Literal["losses", "accuracies"]
SEEDS = ("s0", "s1")
"""The seeds of the main experiments, as they stand in the names of parts."""


@dataclass(frozen=True)
class Run:
    """What was seen of one run, which is a part."""

    arrays: Arrays
    part: str

    def __getitem__(self, name: str) -> Array:
        return self.arrays[f"{self.part}/{name}"]

    def each(self, kind: Kind, groups: Sequence[str]) -> Float[Array, "looks groups"]:
        """Losses or accuracies of groups at every look."""
        names = self["groups"].tolist()
        return self[kind][:, [names.index(group) for group in groups]].astype(float)

    def mean(self, kind: Kind, *groups: str) -> Float[Array, " looks"]:
        """Their mean over groups."""
        return self.each(kind, groups).mean(1)

    def metric(self, name: str) -> Float[Array, " measured"]:
        """A measure of linearity at the looks `measured_at`."""
        return self["linearity"][:, self["metrics"].tolist().index(name)]


def curve(kind: Kind, x: Float[Array, " looks"], y: Float[Array, "looks ..."]) -> Curve:
    """A curve; of accuracies without the first look, at which all outputs are zero and accuracies mean nothing."""
    return (x, y) if kind == "losses" else (x[1:], y[1:])


Look = Callable[[Run], Curve]
"""The progress of a run, and what is compared at equal progress."""


def pairs(arrays: Arrays, parts: Sequence[str]) -> list[tuple[Run, Run]]:
    """The runs with α = 1 and α = 100. A part is named with `*` in the place of α: `noise-a*-s0`."""
    return [(Run(arrays, part.replace("*", "1")), Run(arrays, part.replace("*", "100"))) for part in parts]


def gap(parts: Sequence[str], look: Look, *, sign: int = 1, rising: bool = False) -> Callable[[Arrays], Measured]:
    """α = 1 minus α = 100 at equal progress, mean over the common range; with the sign −1 the other way round."""

    def measure(arrays: Arrays) -> Measured:
        found = [differences(look(a), look(b), rising=rising).mean() for a, b in pairs(arrays, parts)]
        return over_seeds([sign * float(value) for value in found])

    return measure


def advantage(parts: Sequence[str], kind: Kind) -> Callable[[Arrays], Measured]:
    """How much better α = 1 is on test samples: the lowest loss, or the highest accuracy, along training."""

    def best(run: Run) -> float:
        seen = run.mean(kind, "test")
        return float(-seen.min() if kind == "losses" else seen.max())

    return lambda arrays: over_seeds([best(a) - best(b) for a, b in pairs(arrays, parts)])
