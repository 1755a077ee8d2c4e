"""Appendix B.2: margins and Rademacher complexities, on linear classifiers of the plane, where all can be computed.

The classes are finite (a grid of weights), so that every supremum is a maximum, and labels come from Gaussians, whose
risks are known in closed form. Complexities are those of chapter 6, without an absolute value.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from math import erf
from typing import Any

import numpy as np
import torch

import torchtangent as tt
from torchtangent.lab.runner import Context


def margin(f: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Margins of many functions at one sample, from outputs (functions, n), for labels ±1, or (functions, n, c)."""
    rows = tt.complexity.margins(torch.from_numpy(f).flatten(0, 1), torch.from_numpy(y).repeat(len(f)))
    return rows.view(f.shape[:2]).numpy()


def ramp(mu: np.ndarray, gamma: float) -> np.ndarray:
    """φ_γ: 1 for margins up to 0, 0 from γ on, a line between.

    >>> ramp(np.array([-1.0, 0.0, 0.5, 3.0]), 2.0)
    array([1.  , 1.  , 0.75, 0.  ])
    """
    return np.clip(1 - mu / gamma, 0, 1)


def rademacher(values: np.ndarray, signs: np.ndarray) -> float:
    """E_σ max 1/n Σ σᵢ fᵢ over the functions whose values at the sample are the rows."""
    return float((signs @ values.T).max(1).mean() / values.shape[1])


def _all_signs(n: int) -> np.ndarray:
    return np.array(list(product([-1.0, 1.0], repeat=n)))


def _weights(config: Mapping[str, Any]) -> np.ndarray:
    """A grid of the disk: (weights, 2)."""
    angle = 2 * np.pi * np.arange(config["angles"]) / config["angles"]
    circle = np.stack([np.cos(angle), np.sin(angle)], 1)
    return np.concatenate([radius * circle for radius in config["radii"]])


def contraction(context: Context) -> Mapping[str, Any]:
    """TG-Margin: complexities of the margin losses beside those of the functions, every vector of signs counted."""
    config = context.config
    rng = np.random.default_rng(config["seed"])
    n, c = config["samples"], config["classes"]
    signs, weights, gammas = _all_signs(n), _weights(config), config["gammas"]
    shape = (config["trials"], len(gammas))
    found = {name: np.zeros(shape) for name in ("binary", "binary_bound", "multi", "multi_bound")}
    outside = 0
    for trial in context.track(range(config["trials"])):
        x = rng.standard_normal((n, 2))
        y = rng.integers(c, size=n)
        f = weights @ x.T
        matrices = rng.standard_normal((config["matrices"], c, 2))
        g = np.einsum("wcd,nd->wnc", matrices, x)
        whole = rademacher(f, signs)
        classwise = sum(rademacher(g[..., k], signs) for k in range(c))
        at_sample = {"binary": margin(f, np.where(y == 0, -1, 1)), "multi": margin(g, y)}
        for k, gamma in enumerate(gammas):
            for name, mu in at_sample.items():
                loss = ramp(mu, gamma)
                found[name][trial, k] = rademacher(loss, signs)
                outside += int(np.sum(~((loss >= (mu <= 0)) & (loss <= (mu < gamma)))))  # a NaN is outside
            found["binary_bound"][trial, k] = whole / gamma
            found["multi_bound"][trial, k] = c / gamma * classwise
    return {"gammas": np.array(gammas), "ramp_outside": outside, **found}


def generalization(context: Context) -> Mapping[str, Any]:
    """TG-Margin: the worst gaps of a class of linear classifiers on fresh samples, and their complexities.

    Inputs are N(yμ, I), so that the margin of w is N(⟨w, μ⟩, ‖w‖²), and so are risks and margin losses known.
    """
    config = context.config
    rng = np.random.default_rng(config["seed"])
    n, weights, gammas = config["samples"], _weights(config), np.array(config["gammas"])
    mean = np.array([config["mean"], 0.0])
    size = np.linalg.norm(weights, axis=1)
    centre = weights @ mean
    risk = _cdf(-centre / size)
    expected = np.stack([_expected_ramp(centre, size, gamma) for gamma in gammas])
    shape = (config["draws"], len(gammas))
    gap, margin_gap, complexities = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    for draw in context.track(range(config["draws"])):
        y = rng.choice([-1.0, 1.0], size=n)
        x = y[:, None] * mean + rng.standard_normal((n, 2))
        signs = rng.choice([-1.0, 1.0], size=(config["signs"], n))
        mu = margin(weights @ x.T, y)
        for k, gamma in enumerate(gammas):
            loss = ramp(mu, gamma)
            gap[draw, k] = np.max(risk - loss.mean(1))
            margin_gap[draw, k] = np.max(expected[k] - loss.mean(1))
            complexities[draw, k] = rademacher(loss, signs)
    return {
        "n": n,
        "confidence": config["confidence"],
        "gap_gammas": gammas,
        "gap": gap,
        "margin_gap": margin_gap,
        "complexity": complexities,
    }


def _cdf(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.vectorize(erf)(x / np.sqrt(2)))


def _expected_ramp(mean: np.ndarray, deviation: np.ndarray, gamma: float) -> np.ndarray:
    """E φ_γ(m) = 1/γ ∫₀^γ P(m ≤ t) dt for normal m."""

    def integral(t: float) -> np.ndarray:
        z = (t - mean) / deviation
        return deviation * (z * _cdf(z) + np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi))

    return (integral(gamma) - integral(0.0)) / gamma
