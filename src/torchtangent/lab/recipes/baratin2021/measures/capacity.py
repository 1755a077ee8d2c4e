"""How capacity measures are compared with the generalization gap."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from torchtangent.lab.claims import Untested
from torchtangent.lab.measures import spearman
from torchtangent.lab.recipes.baratin2021.measures.seeds import over_seeds
from torchtangent.lab.rules import Measured
from torchtangent.lab.study import Arrays

Measure = Callable[[Arrays], Measured]

OURS, THEIRS = "C", "neyshabur"
"""The two measures that follow the gap according to the paper."""

FOLLOWS = 0.7
"""A rank correlation from which on a measure counts as following the gap; the threshold is ours."""

_FEWEST = 3  # runs for a correlation


def gap(arrays: Arrays, part: str) -> np.ndarray:
    """Test error minus training error: (values, seeds)."""
    return arrays[f"{part}/test_error"] - arrays[f"{part}/train_error"]


def reached(arrays: Arrays, part: str) -> np.ndarray:
    """Which runs came to the loss at which all are compared: (values, seeds)."""
    return arrays[f"{part}/losses"] <= arrays[f"{part}/goal"]


def capacities(arrays: Arrays, part: str) -> dict[str, np.ndarray]:
    """The measures by name, (values, seeds): norms over the margin; C, Fisher–Rao norm and parameters as they are."""
    names = arrays[f"{part}/names"].tolist()
    values, margins = arrays[f"{part}/measures"], arrays[f"{part}/margins"]
    found = {OURS: arrays[f"{part}/complexity"]}
    with np.errstate(invalid="ignore"):  # ∞ over ∞: of networks that diverged, which are not compared
        for i, name in enumerate(names):
            found[name] = values[..., i] / (1.0 if name in ("fisher_rao", "parameters") else margins)
    return found


def correlations(arrays: Arrays, part: str, name: str) -> np.ndarray:
    """Spearman's correlation of a measure and the gap over the values of a sweep, for every seed."""
    return _by_seed(arrays, part, capacities(arrays, part)[name], gap(arrays, part))


def _by_seed(arrays: Arrays, part: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Spearman's correlation over the runs that came to the goal, for every seed; NaN of fewer than three."""
    found = []
    for x, y, used in zip(a.T, b.T, reached(arrays, part).T, strict=True):
        found.append(spearman(x[used], y[used]) if used.sum() >= _FEWEST else np.nan)
    return np.array(found)


def _require_enough(arrays: Arrays, part: str) -> None:
    done = reached(arrays, part)
    least = done.sum(0).min()
    if least < _FEWEST:
        raise Untested(f"only {least} of {len(done)} networks ({part}) reached a loss of {arrays[f'{part}/goal']}")


def follows(part: str, name: str = OURS) -> Measure:
    """The correlation of a measure and the gap, mean over seeds."""

    def measure(arrays: Arrays) -> Measured:
        _require_enough(arrays, part)
        return over_seeds(correlations(arrays, part, name))

    return measure


def with_value(part: str) -> Measure:
    """Spearman's correlation of C with the value of the sweep, mean over seeds."""

    def measure(arrays: Arrays) -> Measured:
        _require_enough(arrays, part)
        C = arrays[f"{part}/complexity"]
        values = np.broadcast_to(arrays[f"{part}/values"][:, None], C.shape)
        return over_seeds(_by_seed(arrays, part, values, C))

    return measure


def others_following(*parts: str) -> Measure:
    """How many measures but the two follow the gap in all of these sweeps."""

    def measure(arrays: Arrays) -> Measured:
        for part in parts:
            _require_enough(arrays, part)
        names = [name for name in capacities(arrays, parts[0]) if name not in (OURS, THEIRS)]
        # A measure that is the same for all runs follows nothing: its correlation is NaN, and NaN is below all.
        follow = [all(np.mean(correlations(arrays, part, name)) >= FOLLOWS for part in parts) for name in names]
        return float(sum(follow))

    return measure
