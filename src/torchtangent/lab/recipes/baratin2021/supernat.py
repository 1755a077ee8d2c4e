"""SuperNat beside gradient descent on a regression whose noise can be fitted, and what it is in the first features."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from itertools import product
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

import torchtangent as tt
from torchtangent.lab.data.synthetic import noisy_regression
from torchtangent.lab.recipes.baratin2021.setting import relative
from torchtangent.lab.runner import Context
from torchtangent.lab.study import Part

PROJECTORS: tuple[Literal["orthogonal", "printed"], ...] = ("orthogonal", "printed")
METHODS: dict[str, tuple[str | float | None, bool]] = {
    "gradient descent": (None, False),
    "SuperNat, max": ("max", False),
    "SuperNat, trace": ("trace", False),
    "SuperNat, none": (1.0, False),
    "SuperNat, none, summed loss": (1.0, True),
}
"""The constant κ of SuperNat, and whether the loss is a sum over samples, which matters where κ is fixed."""

_LARGEST = 1e6  # an error beyond it counts as this: the run has diverged


def configuration(pick: Callable[[Any, Any, Any], Any]) -> dict[str, dict[str, Any]]:
    """The published sizes; the rates, the number of steps and κ are ours."""
    return {
        "supernat": {
            "samples": 50,
            "noise_features": 10,
            "variance": 0.1,
            "lrs": pick([0.5], [0.1, 0.5], [0.5]),
            "steps": pick(200, 1500, 10),
            "times": pick(40, 60, 5),
            "seeds": list(range(pick(4, 20, 2))),
        },
        "supernat-identity": {
            "samples": 12,
            "noise_features": 4,
            "variance": 0.1,
            "lr": 0.1,
            "steps": pick(6, 6, 4),
            "seeds": list(range(pick(5, 20, 2))),
        },
    }


def comparison(context: Context) -> Mapping[str, Any]:
    """TG-Fig6.5: test errors and the weights of noise features along training: (projector, rate, method, seed, time).

    On the CPU: the vectors are too short for a GPU.
    """
    config = context.config
    times = np.unique(np.logspace(0, np.log10(config["steps"]), config["times"]).astype(int))
    times = np.concatenate([[0], times])
    jobs = list(product(PROJECTORS, config["lrs"], METHODS.values(), config["seeds"]))
    errors, noise = [], []
    for projector, lr, (scale, summed), seed in context.track(jobs):
        data = noisy_regression(
            config["samples"],
            config["noise_features"],
            config["variance"],
            torch.Generator().manual_seed(seed),
            projector=projector,
        )
        found = train(*data, lr=lr, scale=scale, summed=summed, times=times.tolist())
        errors.append(found[0])
        noise.append(found[1])
    shape = (len(PROJECTORS), len(config["lrs"]), len(METHODS), len(config["seeds"]))
    return {
        "projectors": np.array(PROJECTORS),
        "lrs": np.array(config["lrs"]),
        "methods": np.array(list(METHODS)),
        "times": times,
        "errors": np.array(errors, dtype=np.float32).reshape(*shape, -1),
        "noise": np.array(noise, dtype=np.float32).reshape(*shape, -1),
    }


def train(
    Phi: Float[Tensor, "n p"],
    y: Float[Tensor, " n"],
    Phi_test: Float[Tensor, "n p"],
    y_test: Float[Tensor, " n"],
    *,
    lr: float,
    scale: str | float | None,
    summed: bool,
    times: list[int],
) -> tuple[list[float], list[float]]:
    """Train from w = 0 on ½ mean (f − y)², by SuperNat with this κ, or by gradient descent if it is None.

    Args:
        Phi: Features, the first of which is the signal.
        y: Labels.
        Phi_test: Features of test samples.
        y_test: Their labels.
        lr: Learning rate.
        scale: κ.
        summed: Take ½ Σ (f − y)² and a rate n times smaller, which is the same for gradient descent.
        times: Steps after which the error is taken.

    Returns:
        The mean squared test errors, and the norms of the weights of all features but the first.
    """
    factor = len(y) if summed else 1
    model = nn.Linear(Phi.shape[1], 1, bias=False).double()
    nn.init.zeros_(model.weight)
    w = model.weight.data
    optimizer = None if scale is None else tt.optim.SuperNat(model, Phi, lr / factor, scale=scale)
    second, first = Phi.T @ Phi / len(y), Phi.T @ y / len(y)
    errors: list[float] = []
    noise: list[float] = []
    for step in range(times[-1] + 1):
        if step in times:
            errors.append(_bounded((Phi_test @ w[0] - y_test).square().mean()))
            noise.append(_bounded(w[0, 1:].norm()))
        gradient = (w[0] @ second - first)[None]
        if optimizer is None:
            w -= lr * gradient
        elif errors[-1] < _LARGEST:
            model.weight.grad = factor * gradient
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", tt.TangentWarning)  # a run that diverges is seen in its errors
                optimizer.step()
    return errors, noise


def _bounded(value: Tensor) -> float:
    """A number that may have diverged."""
    return min(float(value), _LARGEST) if bool(torch.isfinite(value)) else _LARGEST


def identity(context: Context) -> Mapping[str, Any]:
    """TG-SuperNat-id: the optimizer beside the thesis' matrices, A_t = Ã_0 … Ã_t, and the norm in (B.2.37)."""
    config = context.config
    rows = []
    for seed in context.track(config["seeds"]):
        Phi, y, _, _ = noisy_regression(
            config["samples"], config["noise_features"], config["variance"], torch.Generator().manual_seed(seed)
        )
        rows += steps_beside_matrices(Phi, y, config["lr"], config["steps"])
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def steps_beside_matrices(Phi: Tensor, y: Tensor, lr: float, steps: int) -> list[dict[str, float]]:
    """For each step the relative differences of SuperNat's from natural gradient and from descent in Φ_t."""
    model = nn.Linear(Phi.shape[1], 1, bias=False).double()
    nn.init.zeros_(model.weight)
    optimizer = tt.optim.SuperNat(model, Phi, lr)
    inverse, rows = torch.eye(Phi.shape[1]).to(Phi), []  # A_t⁻¹; A_t itself is too far from any rounding
    for _ in range(steps):
        before = model.weight.data[0].clone()
        slope = (Phi @ before - y) / len(y)
        model.weight.grad = (Phi.T @ slope)[None]
        optimizer.step()
        moved = model.weight.data[0] - before
        current = Phi @ inverse.T  # Φ_t, as Φ_tᵀ = A_t⁻¹Φᵀ
        U, roots, Vt = torch.linalg.svd(current, full_matrices=False)
        nu = 1 / (U.T @ slope).abs()
        nu = nu / nu.min()
        rescaling = Vt.T @ torch.diag(nu.rsqrt()) @ Vt  # Ã_t⁻¹
        norm = torch.linalg.norm(rescaling @ current.T)
        total = (roots.square() / nu).sum()
        rows.append(
            {
                "natural_error": relative(moved, -lr * (inverse.T @ (inverse @ (Phi.T @ slope)))),
                "function_error": relative(Phi @ moved, current @ (-lr * (current.T @ slope))),
                "norm_error": abs(float(total.sqrt() / norm) - 1),
                "printed_error": abs(float(total / norm) - 1),
            }
        )
        inverse = rescaling @ inverse
    return rows


PARTS = (Part("supernat", comparison), Part("supernat-identity", identity))
