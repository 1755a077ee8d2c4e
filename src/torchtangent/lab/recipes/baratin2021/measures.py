"""How the claims' values are read off the arrays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from torchtangent.lab.measures import exponent
from torchtangent.lab.rules import Measured
from torchtangent.lab.study import Arrays


def step_order(arrays: Arrays) -> Measured:
    """The power of the learning rate with which the relative error of the linear step goes."""
    return exponent(arrays["lrs"], arrays["step_errors"])


def spectra_differ(arrays: Arrays) -> Measured:
    """The largest difference of eigenvalues relative to the first."""
    a, b = arrays["eigenvalues"], arrays["metric_eigenvalues"]
    return float(np.max(np.abs(a - b)) / a[0])


def decay_error(arrays: Arrays) -> Measured:
    """The largest difference of modes from (1 − ηλ)ᵗ of what they were, relative to their start."""
    return float(np.max(np.abs(arrays["modes"] - arrays["closed_modes"]) / arrays["modes"][0]))


def time_constant_error(name: str) -> Callable[[Arrays], Measured]:
    """The largest relative difference of the measured time constants from a formula's."""
    return lambda arrays: float(np.max(np.abs(arrays["tau"] / arrays[name] - 1)))


def largest_ratio(arrays: Arrays) -> Measured:
    """The largest ratio of complexity and bound along training, for each metric."""
    ratio = np.max(arrays["complexities"] / arrays["bounds"], axis=0)
    return dict(zip(arrays["metrics"].tolist(), ratio, strict=True))


def scale_error(problem: str) -> Callable[[Arrays], Measured]:
    """The largest relative difference of the scales found numerically from the formula's."""

    def measure(arrays: Arrays) -> Measured:
        i = arrays["problems"].tolist().index(problem)
        return float(np.max(np.abs(arrays["numeric"][i] / arrays["formula"][i] - 1)))

    return measure


def minimum_error(arrays: Arrays) -> Measured:
    """The largest relative difference of the minima found numerically from the formula's."""
    errors = np.abs(arrays["values"] / arrays["least"][:, None] - 1).max(1)
    return dict(zip(arrays["problems"].tolist(), errors, strict=True))


def rescaled_error(arrays: Arrays) -> Measured:
    """The largest difference of the rescaled kernel's eigenvalues from |uᵀ∇L| λ, relative to the largest."""
    expected = np.sort(arrays["parts"][1] * arrays["eigenvalues"])[::-1]
    return float(np.max(np.abs(arrays["rescaled"] - expected)) / expected[0])


def effective_ranks(arrays: Arrays) -> Measured:
    """The smallest effective rank, and the largest relative to the rank."""
    ranks, eranks = arrays["ranks"], arrays["eranks"]
    return {"least erank": float(eranks.min()), "largest erank/rank": float((eranks / ranks).max())}


def equal_eigenvalues(arrays: Arrays) -> Measured:
    """The largest relative difference of the effective rank from the rank when all eigenvalues are equal."""
    return float(np.max(np.abs(arrays["erank_flat"] / arrays["ranks"] - 1)))


def trace_ratios(arrays: Arrays) -> Measured:
    """How often a trace ratio falls, and its smallest value at the rank."""
    return {"falls": float(arrays["ratio_falls"].sum()), "T at the rank": float(arrays["ratio_whole"].min())}


def alignments(arrays: Arrays) -> Measured:
    """The smallest and the largest alignments."""
    return {
        f"{end} {name}": float(find(arrays[key]))
        for key, name in (("cka", "CKA"), ("ka", "KA"))
        for end, find in (("least", np.min), ("largest", np.max))
    }


def invariances(arrays: Arrays) -> Measured:
    """The largest change of CKA under each transformation."""
    return dict(zip(arrays["invariances"].tolist(), arrays["changes"].max(0), strict=True))
