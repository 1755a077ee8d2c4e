"""How the claims' values are read off the arrays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from torchtangent.lab.measures import exponent, spearman
from torchtangent.lab.rules import Measured
from torchtangent.lab.study import Arrays

LARGE = 10.0
"""From this α on exponents are fitted."""


def parameter_exponent(arrays: Arrays) -> Measured:
    """The power of α with which the step in parameter space goes."""
    return exponent(arrays["first-step/alphas"], arrays["parameter_steps"])


def final_errors(arrays: Arrays) -> dict[str, np.ndarray]:
    """How far each case ends from the linearized network, for every α."""
    return dict(zip(arrays["cases"].tolist(), arrays["errors"][:, :, -1], strict=True))


def at_largest_alpha(arrays: Arrays) -> Measured:
    """The same for the largest α."""
    return {case: float(errors[-1]) for case, errors in final_errors(arrays).items()}


def rises(arrays: Arrays) -> Measured:
    """How often a larger α ends further from the linearized network than the one before."""
    return {case: float(np.sum(np.diff(errors) >= 0)) for case, errors in final_errors(arrays).items()}


def trajectory_exponent(case: str) -> Callable[[Arrays], Measured]:
    """The power of α with which the distance from the linearized network goes."""

    def measure(arrays: Arrays) -> Measured:
        alphas = arrays["trajectories/alphas"]
        return exponent(alphas[alphas >= LARGE], final_errors(arrays)[case][alphas >= LARGE])

    return measure


def metric(arrays: Arrays, alpha: float, name: str) -> np.ndarray:
    """A measure of linearity at the start and at every level of the loss, for every seed: (seeds, levels)."""
    return arrays["values"][:, arrays["alphas"].tolist().index(alpha), :, arrays["metrics"].tolist().index(name)]


def lowest(alpha: float, *names: str) -> Callable[[Arrays], Measured]:
    """The smallest value during training, the median over seeds."""
    return lambda arrays: {name: float(np.median(metric(arrays, alpha, name).min(1))) for name in names}


def steadiness(alpha: float, name: str) -> Callable[[Arrays], Measured]:
    """Spearman's correlation of the median over seeds with the progress of training: −1 if it only falls."""

    def measure(arrays: Arrays) -> Measured:
        values = np.median(metric(arrays, alpha, name), axis=0)
        return spearman(np.arange(len(values)), values)

    return measure


def at_the_end(low: float, high: float, *names: str) -> Callable[[Arrays], Measured]:
    """How much lower measures end for one α than for another, the median over seeds."""

    def difference(arrays: Arrays, name: str) -> float:
        return float(np.median(metric(arrays, high, name)[:, -1] - metric(arrays, low, name)[:, -1]))

    return lambda arrays: {name: difference(arrays, name) for name in names}
