"""Interpolators, their errors and their bounds."""

from __future__ import annotations

import numpy as np

from torchtangent.lab.measures import spearman
from torchtangent.lab.recipes.baratin2021.measures.seeds import SURE, surely
from torchtangent.lab.rules import Measured
from torchtangent.lab.study import Arrays


def tasks(arrays: Arrays) -> np.ndarray:
    """Which features make a task: at least a twentieth of the points has either label; (interval, seed)."""
    return (arrays["positive"] >= 0.05) & (arrays["positive"] <= 0.95)


def _sure(arrays: Arrays, values: np.ndarray) -> Measured:
    """Values (interval, seed) as the mean less two standard errors, for each interval."""
    return {
        f"a = {a:g}": surely(row[use])[SURE] if use.any() else float("nan")
        for a, row, use in zip(arrays["extents"], values, tasks(arrays), strict=True)
    }


def anisotropy_grows(arrays: Arrays) -> Measured:
    """Spearman's correlation of c and the deviation of solutions along the later direction over the first."""
    spread = arrays["deviation"][..., 1] / arrays["deviation"][..., 0]
    found = [[spearman(arrays["anisotropies"], row) for row in rows] for rows in spread]
    return _sure(arrays, np.array(found))


def looseness(arrays: Arrays) -> Measured:
    """The bound with A = I over the one with the best A, at the largest c."""
    return _sure(arrays, arrays["plain"][..., -1] / arrays["best"][..., -1])


def outgrows(arrays: Arrays) -> Measured:
    """The logarithm of how much more the bound with A = I grows than the test error, from c = ½ to the largest c."""
    half = int(np.argmin(np.abs(arrays["anisotropies"] - 0.5)))
    bound, error = np.log(arrays["plain"]), _log_error(arrays)
    return _sure(arrays, bound[..., -1] - bound[..., half] - error[..., -1] + error[..., half])


def apart(arrays: Arrays) -> Measured:
    """How much less log(bound / error) varies over c with the best A than with A = I: difference of deviations."""
    spread = {name: (np.log(arrays[name]) - _log_error(arrays)).std(-1) for name in ("plain", "best")}
    return _sure(arrays, spread["plain"] - spread["best"])


def _log_error(arrays: Arrays) -> np.ndarray:
    """The logarithm of test errors; NaN, with which no rule holds, where there is no error."""
    return np.log(np.where(arrays["error"] > 0, arrays["error"], np.nan))
