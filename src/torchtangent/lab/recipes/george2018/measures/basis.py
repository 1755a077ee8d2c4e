"""What single steps, the eigenbasis and initial weights say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from torchtangent.lab.recipes.george2018.initialization import KINDS, STARTS
from torchtangent.lab.rules import Measured
from torchtangent.lab.study import Arrays

APPROXIMATIONS = ("KFAC", "EKFAC", "EKFAC-ra")


def step_errors(*variants: str) -> Callable[[Arrays], Measured]:
    """The largest relative difference of variants' steps to the formula."""

    def measure(arrays: Arrays) -> Measured:
        names = arrays["variants"].tolist()
        return {variant: float(arrays["errors"][names.index(variant)].max()) for variant in variants}

    return measure


def correlation_ratio(arrays: Arrays) -> Measured:
    """The mean |correlation| off the diagonal in the KFE over that in the parameters' basis, the largest over seeds."""
    in_parameters, in_kfe = arrays["off_diagonal"].T
    return float(np.max(in_kfe / in_parameters))


def error_violations(arrays: Arrays) -> Measured:
    """How often EKFAC's error exceeds KFAC's by more than rounding."""
    kfac, ekfac = arrays["errors"].swapaxes(0, 1)
    return float(np.sum(ekfac > kfac * (1 + 1e-9)))


def drifts(arrays: Arrays, every: int) -> np.ndarray:
    """By how much errors grow until the basis is renewed, mean over periods: (seeds, approximations)."""
    steps, errors = arrays["steps"], arrays["errors"]
    starts = np.flatnonzero(steps % every == 0)
    return np.mean([errors[..., j - 1] - errors[..., i] for i, j in pairwise(starts)], axis=0)


def drift_ratio(arrays: Arrays) -> Measured:
    """EKFAC's drift over KFAC's, means over seeds."""
    kfac, ekfac = drifts(arrays, int(arrays["basis_every"])).mean(0)
    return float(ekfac / kfac)


def spectrum_ratios(arrays: Arrays) -> Measured:
    """Mean distance to G's spectrum after the basis was computed, over KFAC's."""
    means = dict(zip(APPROXIMATIONS, arrays["distances"][:, 1:].mean(1), strict=True))
    return {name: float(means[name] / means["KFAC"]) for name in APPROXIMATIONS[1:]}


def variances(kinds: Sequence[str] = KINDS) -> Callable[[Arrays], Measured]:
    """Fan-in times the weights' variance, mean over seeds."""
    return lambda arrays: {kind: float(arrays["variances"][:, KINDS.index(kind)].mean()) for kind in kinds}


def growth(start: str) -> Callable[[Arrays], Measured]:
    """Mean square of activations behind the last block over that behind the first, mean over seeds."""
    return lambda arrays: float(
        np.mean(arrays["squares"][:, STARTS.index(start), -1] / arrays["squares"][:, STARTS.index(start), 0])
    )
