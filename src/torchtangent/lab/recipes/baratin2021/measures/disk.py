"""The spectrum and the eigenfunctions on the disk along training."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from torchtangent.lab.recipes.baratin2021.measures.seeds import SURE, surely
from torchtangent.lab.rules import Measured
from torchtangent.lab.study import Arrays


def ratio(arrays: Arrays, kernel: str, index: int = 20) -> np.ndarray:
    """λ_index / λ₁ along training, counted from 1: (rate, seed, probe). Kernels are "centred" and "uncentred"."""
    values = arrays["eigenvalues_centred" if kernel == "centred" else "eigenvalues"]
    return values[..., index - 1] / values[..., 0]


def at_start(kernel: str, power: float = 1.0) -> Callable[[Arrays], Measured]:
    """λ₂₀ / λ₁ (or its root) before training, mean over seeds; all rates begin alike."""
    return lambda arrays: float(np.mean(ratio(arrays, kernel)[0, :, 0] ** power))


def at_end(kernel: str, power: float = 1.0) -> Callable[[Arrays], Measured]:
    """λ₂₀ / λ₁ (or its root) at the last probe, for each rate the mean over seeds."""

    def measure(arrays: Arrays) -> Measured:
        return _by_rate(arrays, ratio(arrays, kernel)[..., -1] ** power)

    return measure


def _by_rate(arrays: Arrays, values: np.ndarray) -> dict[str, float]:
    return {f"lr {lr:g}": float(row.mean()) for lr, row in zip(arrays["lrs"], values, strict=True)}


def dips(arrays: Arrays) -> Measured:
    """The part of runs at the largest rate in which the centred ratio falls below 0.5 % and a third of its start."""
    values = ratio(arrays, "centred")[-1]
    return float(np.mean(values.min(1) < np.minimum(0.005, values[:, 0] / 3)))


def lowest(arrays: Arrays) -> Measured:
    """The least centred ratio along training, relative to its start; for each rate the mean over seeds."""
    values = ratio(arrays, "centred")
    return _by_rate(arrays, values.min(-1) / values[..., 0])


def rebound(arrays: Arrays) -> Measured:
    """The centred ratio at the end over the least on the way, at the largest rate."""
    values = ratio(arrays, "centred")[-1]
    return surely(values[:, -1] / values.min(1))


def change_of_ratio(kernel: str) -> Callable[[Arrays], Measured]:
    """The ratio at the end over that at the start, for each rate the mean over seeds."""

    def measure(arrays: Arrays) -> Measured:
        values = ratio(arrays, kernel)
        return _by_rate(arrays, values[..., -1] / values[..., 0])

    return measure


def gain(name: str) -> Callable[[Arrays], Measured]:
    """How much a value has grown at the end of training with the largest rate."""
    return lambda arrays: surely(arrays[name][-1, :, -1] - arrays[name][-1, :, 0])


def first_roundness(arrays: Arrays) -> Measured:
    """The roundness of the first eigenfunction before and after training with the largest rate, and what it gained."""
    values = arrays["roundness"][-1, :, :, 0]
    change = surely(values[:, -1] - values[:, 0])
    return {"start": float(values[:, 0].mean()), "end": float(values[:, -1].mean()), f"gain, {SURE}": change[SURE]}


def weighted_roundness(arrays: Arrays) -> np.ndarray:
    """The roundness of the leading eigenfunctions, mean weighted by eigenvalues: (rate, seed, probe)."""
    round_ = arrays["roundness"]
    weights = arrays["eigenvalues_centred"][..., : round_.shape[-1]]
    return (weights * round_).sum(-1) / weights.sum(-1)


def roundness_gain(arrays: Arrays) -> Measured:
    """What the weighted roundness gained at the largest rate."""
    values = weighted_roundness(arrays)[-1]
    return surely(values[:, -1] - values[:, 0])


def labels_share(arrays: Arrays) -> Measured:
    """The labels' energy on the leading eigenfunctions before and after training with the largest rate."""
    values = arrays["energy"][-1]
    change = surely(values[:, -1] - values[:, 0])
    return {"start": float(values[:, 0].mean()), "end": float(values[:, -1].mean()), f"gain, {SURE}": change[SURE]}


def singular_ratio(arrays: Arrays) -> Measured:
    """The sixth over the first singular value of J, before and after training."""
    values = ratio(arrays, "uncentred", 6)[0] ** 0.5
    return {"start": float(values[:, 0].mean()), "end": float(values[:, -1].mean())}


def singular_values(arrays: Arrays) -> Measured:
    """The first and the sixth singular value of J over the number of points, before and after training."""
    roots = np.sqrt(arrays["eigenvalues"][0]).mean(0) / arrays["functions"].shape[2]
    places = {"σ₀ start": (0, 0), "σ₀ end": (-1, 0), "σ₅ start": (0, 5), "σ₅ end": (-1, 5)}
    return {name: float(roots[at]) for name, at in places.items()}


def singular_rise(arrays: Arrays) -> Measured:
    """By what the ratio of singular values grew."""
    values = ratio(arrays, "uncentred", 6)[0] ** 0.5
    return surely(values[:, -1] / values[:, 0])
