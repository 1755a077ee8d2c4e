"""What the runs on natural images say; one seed, so there is no uncertainty to subtract."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from torchtangent.lab.recipes.george2018.measures.curves import advantage, time_to, times_to_best
from torchtangent.lab.rules import Measured
from torchtangent.lab.study import Arrays


def envelope(arrays: Arrays, part: str, name: str = "loss") -> np.ndarray:
    """The lowest value over all settings, at every epoch."""
    return arrays[f"{part}/{name}"].min((0, 1))


def clock(arrays: Arrays, part: str) -> np.ndarray:
    """Seconds at every epoch of the grid's trials: they cost the same, so the median of those that went through."""
    loss, seconds = (
        arrays[f"{part}/{name}"].reshape(-1, arrays[f"{part}/loss"].shape[-1]) for name in ("loss", "seconds")
    )
    whole = np.isfinite(loss[:, -1])
    return np.median(seconds[whole] if whole.any() else seconds, 0)


def at_batch(arrays: Arrays, part: str, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Loss and seconds of the best setting at a batch size."""
    i = arrays[f"{part}/batches"].tolist().index(batch)
    return arrays[f"{part}/batch_loss"][i], arrays[f"{part}/batch_seconds"][i]


def lower_envelope(network: str, name: str, others: Sequence[str]) -> Callable[[Arrays], Measured]:
    """Advantages of the envelope over those of others."""

    def measure(arrays: Arrays) -> Measured:
        ours = envelope(arrays, f"{network}-{name}")
        return {other: float(advantage(ours, envelope(arrays, f"{network}-{other}"))) for other in others}

    return measure


def seconds_to_best(network: str, names: Sequence[str], others: Sequence[str]) -> Callable[[Arrays], Measured]:
    """Seconds in which each envelope comes down to the lowest loss with which one of the others ends."""

    def measure(arrays: Arrays) -> Measured:
        parts = {name: f"{network}-{name}" for name in names}
        return times_to_best(
            {name: (envelope(arrays, part), clock(arrays, part)) for name, part in parts.items()}, others
        )

    return measure


def small_batches_catch_up(network: str, names: Sequence[str]) -> Callable[[Arrays], Measured]:
    """Seconds of KFAC with the smallest batches over those of others with theirs, to the higher of the last losses."""

    def measure(arrays: Arrays) -> Measured:
        loss, seconds = at_batch(arrays, f"{network}-KFAC", int(arrays[f"{network}-KFAC/batches"][0]))
        found = {}
        for name in names:
            theirs, clock_ = envelope(arrays, f"{network}-{name}"), clock(arrays, f"{network}-{name}")
            goal = max(float(loss[-1]), float(theirs[-1]))
            found[name] = time_to(loss, seconds, goal) / time_to(theirs, clock_, goal)
        return found

    return measure


def validation_difference(network: str, names: Sequence[str], other: str) -> Callable[[Arrays], Measured]:
    """The best validation error over settings and epochs, less that of another optimizer."""

    def best(arrays: Arrays, name: str) -> float:
        return float(envelope(arrays, f"{network}-{name}", "valid").min())

    return lambda arrays: {name: best(arrays, name) - best(arrays, other) for name in names}


def gain_by_batch(network: str, name: str) -> Callable[[Arrays], Measured]:
    """The advantage over KFAC at the same epochs, for every batch size."""

    def measure(arrays: Arrays) -> Measured:
        return {
            f"batch {batch}": float(
                advantage(
                    at_batch(arrays, f"{network}-{name}", batch)[0], at_batch(arrays, f"{network}-KFAC", batch)[0]
                )
            )
            for batch in arrays[f"{network}-KFAC/batches"].tolist()
        }

    return measure


def gain_by_iteration(network: str, name: str) -> Callable[[Arrays], Measured]:
    """The same over single steps, as many for every batch size as the largest has."""

    def measure(arrays: Arrays) -> Measured:
        sizes = arrays[f"{network}-KFAC/batches"].tolist()
        count = min(len(arrays[f"{network}-KFAC/steps-{batch}"]) for batch in sizes)
        return {
            f"batch {batch}": float(
                advantage(
                    arrays[f"{network}-{name}/steps-{batch}"][:count],
                    arrays[f"{network}-KFAC/steps-{batch}"][:count],
                )
            )
            for batch in sizes
        }

    return measure


def ends(measure: Callable[[Arrays], Measured]) -> Callable[[Arrays], Measured]:
    """The first and the last of named values, which go by batch size."""

    def of(arrays: Arrays) -> Measured:
        found = measure(arrays)
        assert isinstance(found, dict)
        values = list(found.values())
        return {"smallest batch": values[0], "largest batch": values[-1]}

    return of


def time_ratio_by_batch(network: str, name: str) -> Callable[[Arrays], Measured]:
    """Seconds over those of KFAC with the same batches, to the higher of the two last losses."""

    def measure(arrays: Arrays) -> Measured:
        found = {}
        for batch in arrays[f"{network}-KFAC/batches"].tolist():
            ours, theirs = (at_batch(arrays, f"{network}-{other}", batch) for other in (name, "KFAC"))
            goal = max(float(ours[0][-1]), float(theirs[0][-1]))
            found[f"batch {batch}"] = time_to(*ours, goal) / time_to(*theirs, goal)
        return found

    return measure


def lower_when_halved(network: str, names: Sequence[str], other: str) -> Callable[[Arrays], Measured]:
    """Advantages over another optimizer with learning rates that are halved."""

    def measure(arrays: Arrays) -> Measured:
        theirs = arrays[f"{network}-{other}/halved_loss"]
        return {name: float(advantage(arrays[f"{network}-{name}/halved_loss"], theirs)) for name in names}

    return measure
