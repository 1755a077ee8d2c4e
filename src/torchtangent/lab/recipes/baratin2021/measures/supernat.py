"""SuperNat beside gradient descent."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from torchtangent.lab.rules import Measured
from torchtangent.lab.study import Arrays


def final(arrays: Arrays) -> dict[str, np.ndarray]:
    """The last test errors of every method: (projector, rate, seed)."""
    return {name: arrays["errors"][:, :, i, :, -1] for i, name in enumerate(arrays["methods"].tolist())}


def _settings(arrays: Arrays, values: np.ndarray) -> dict[str, float]:
    """Values (projector, rate) by name."""
    return {
        f"{projector}, lr {lr:g}": float(values[i, k])
        for i, projector in enumerate(arrays["projectors"].tolist())
        for k, lr in enumerate(arrays["lrs"])
    }


def overfits(arrays: Arrays) -> Measured:
    """The part of seeds in which gradient descent ends with at least 1.1 times its least test error."""
    errors = arrays["errors"][:, :, 0]
    return _settings(arrays, np.mean(errors[..., -1] >= 1.1 * errors.min(-1), axis=-1))


def better(method: str) -> Callable[[Arrays], Measured]:
    """The part of seeds in which a method ends with a clearly lower test error than gradient descent: 0.9 times it."""

    def measure(arrays: Arrays) -> Measured:
        errors = final(arrays)
        return _settings(arrays, np.mean(errors[method] < 0.9 * errors["gradient descent"], axis=-1))

    return measure


def error_ratio(method: str) -> Callable[[Arrays], Measured]:
    """The last test error of a method over gradient descent's, median over seeds."""

    def measure(arrays: Arrays) -> Measured:
        errors = final(arrays)
        return _settings(arrays, np.median(errors[method] / errors["gradient descent"], axis=-1))

    return measure


def noise_fitted(arrays: Arrays) -> Measured:
    """The last norm of the noise features' weights over gradient descent's, κ by the maximum; median over seeds."""
    i = arrays["methods"].tolist().index("SuperNat, max")
    last = arrays["noise"][..., -1]
    return _settings(arrays, np.median(last[:, :, i] / last[:, :, 0], axis=-1))
