"""How the claims on identities are read off the arrays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from torchtangent.lab.measures import exponent
from torchtangent.lab.rules import Measured
from torchtangent.lab.study import Arrays


def named(values: np.ndarray, arrays: Arrays) -> Measured:
    """A value for each network."""
    return dict(zip(arrays["networks"].tolist(), values.tolist(), strict=True))


def by_network(name: str) -> Callable[[Arrays], Measured]:
    """An array with a value for each network."""
    return lambda arrays: named(arrays[name], arrays)


def order(arrays: Arrays) -> Measured:
    """The exponent of the linearization's error in the length of the step, up to a tenth of ‖θ₀‖, median direction."""
    use = arrays["steps"] <= 0.1
    slopes = [[exponent(arrays["steps"][use], row[use]) for row in rows] for rows in arrays["errors"]]
    return named(np.median(slopes, axis=1), arrays)


def farthest(name: str, of: str) -> Callable[[Arrays], Measured]:
    """The largest relative difference of two arrays."""
    return lambda arrays: float(np.max(np.abs(arrays[name] / arrays[of] - 1)))


def nearest_parameters(arrays: Arrays) -> Measured:
    """The largest relative difference of ‖θ − θ₀‖ for the nearest θ and the norm of its function."""
    return float(np.max(np.abs(arrays["distances"][:, 0] / arrays["mercer"] - 1)))


def nearest_detour(arrays: Arrays) -> Measured:
    """The smallest ‖θ − θ₀‖ of other parameters with the same function, over its norm."""
    return float(np.min(arrays["distances"][:, 1:] / arrays["mercer"][:, None]))


def three_ways(arrays: Arrays) -> Measured:
    """The largest relative difference of α to that from the kernel."""
    return {way: float(np.max(np.abs(arrays[way] / arrays["kernel"] - 1))) for way in ("spectrum", "backward")}


def eigenfunctions(arrays: Arrays) -> np.ndarray:
    """Which targets are eigenfunctions."""
    return arrays["groups"] == "eigenfunctions"


def eigenvalue_error(arrays: Arrays) -> Measured:
    """The largest relative difference of α(φ_j), by one backward pass, to λ_j."""
    return float(np.max(np.abs(arrays["backward"][eigenfunctions(arrays)] / arrays["eigenvalues"] - 1)))


def slack(arrays: Arrays) -> np.ndarray:
    """‖g‖²_Θ over its lower bound, for every target."""
    return arrays["norm_squared"] / arrays["bound"]


def slack_by_kind(arrays: Arrays) -> Measured:
    """The ends of that ratio where it should be 1 and where it should not."""
    ratio, equal = slack(arrays), eigenfunctions(arrays)
    return {"eigenfunctions, largest": float(ratio[equal].max()), "others, smallest": float(ratio[~equal].min())}


def stein_ratio(of: str) -> Callable[[Arrays], Measured]:
    """α from the most inputs, extrapolated, over another expression for it, by index of the direction."""

    def measured(arrays: Arrays) -> Measured:
        ratio = (arrays["extrapolated"][-1] / arrays[of]).tolist()
        return {f"v{subscript(j + 1)}": value for j, value in zip(arrays["indices"].tolist(), ratio, strict=True)}

    return measured


def subscript(value: int) -> str:
    """A number in subscript digits."""
    return str(value).translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))
