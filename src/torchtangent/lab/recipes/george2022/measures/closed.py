"""How the values of claims about the closed forms are read off the arrays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from torchtangent.lab.rules import Measured
from torchtangent.lab.study import Arrays

REGIMES = ("network", "linearized")


def over_true(suffix: str) -> Callable[[Arrays], dict[str, float]]:
    """A formula's time over the true one for the smallest θ⁰, of the mode for which it is farthest from 1."""

    def measure(arrays: Arrays) -> dict[str, float]:
        ratios = {name: arrays[f"{name}_{suffix}"][-1] / arrays[name][-1] for name in REGIMES}
        return {name: float(values[np.argmax(np.abs(values - 1))]) for name, values in ratios.items()}

    return measure


def farthest(name: str, from_: str) -> Callable[[Arrays], Measured]:
    """The largest relative difference of two arrays of times."""
    return lambda arrays: float(np.abs(arrays[name] / arrays[from_] - 1).max())


def time_ratios(arrays: Arrays, name: str) -> np.ndarray:
    """t_λ/t_λ′ of the first mode and each other one, for every θ⁰: (σ, modes − 1)."""
    return arrays[name][:, :1] / arrays[name][:, 1:]


def expected_ratios(arrays: Arrays, pace: str) -> np.ndarray:
    """What t_λ/t_λ′ should be up to logarithms: the inverse ratio of the paces."""
    return arrays[pace][1:] / arrays[pace][0]


def ratio_errors(arrays: Arrays) -> Measured:
    """How far ratios of times are from what they should be for the smallest θ⁰, relatively: the largest."""
    return {
        name: float(np.abs(time_ratios(arrays, name)[-1] / expected_ratios(arrays, pace) - 1).max())
        for name, pace in zip(REGIMES, ("labels", "mu"), strict=True)
    }


def printed_ratio_error(arrays: Arrays) -> Measured:
    """How far the network's are from the inverse, which is printed, relatively: the smallest."""
    return float(np.abs(time_ratios(arrays, "network")[-1] * expected_ratios(arrays, "labels") - 1).min())


def exponents(arrays: Arrays) -> np.ndarray:
    """The power of σ with which θ*/θ − 1 of each mode goes, when another one is learned."""
    return (arrays["log_r"][-1] - arrays["log_r"][-2]) / np.log(arrays["sigma"][-1] / arrays["sigma"][-2])


def exponent_error(arrays: Arrays) -> Measured:
    """The largest difference of these powers from ỹ′/ỹ − 1."""
    return float(np.abs(exponents(arrays) - (arrays["ratios"] - 1)).max())


def printed_exponent_error(arrays: Arrays) -> Measured:
    """The smallest difference of these powers from 2ỹ′/ỹ − 1."""
    return float(np.abs(exponents(arrays) - (2 * arrays["ratios"] - 1)).min())


def learned(arrays: Arrays) -> Measured:
    """How much of faster and slower modes is learned in the limit, of each kind what is nearest to the other."""
    faster = arrays["ratios"] > 1
    return {"faster": float(arrays["learned"][-1, faster].min()), "slower": float(arrays["learned"][-1, ~faster].max())}
