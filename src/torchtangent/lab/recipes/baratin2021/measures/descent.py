"""Readings of steps, modes and time constants."""

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


def singular_errors(arrays: Arrays) -> Measured:
    """How far the singular values of the features are from √λ (by their squares) and from λ, as printed."""
    return {"√λ": float(arrays["singular_error"]), "λ, as printed": float(arrays["singular_printed_error"])}


def decay_error(arrays: Arrays) -> Measured:
    """The largest difference of modes from (1 − ηλ)ᵗ of what they were, relative to their start."""
    return float(np.max(np.abs(arrays["modes"] - arrays["closed_modes"]) / arrays["modes"][0]))


def time_constant_error(name: str) -> Callable[[Arrays], Measured]:
    """The largest relative difference of the measured time constants from a formula's."""
    return lambda arrays: float(np.max(np.abs(arrays["tau"] / arrays[name] - 1)))
