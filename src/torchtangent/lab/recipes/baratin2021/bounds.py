"""Rademacher bounds that follow the geometry of the features, and the rescalings that make them smallest."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import nn

import torchtangent as tt
from torchtangent.lab.recipes.baratin2021.setting import network, samples, signs, tangents
from torchtangent.lab.runner import Context


def _all_signs(n: int) -> np.ndarray:
    return np.array(list(product([-1.0, 1.0], repeat=n)))


def random_balls(context: Context) -> Mapping[str, Any]:
    """TG-Thm6.4.1: complexities of random classes over their bounds, every vector of signs counted.

    A class has the functions Σ_t ⟨δw_t, Φ_t⟩ with ‖A_tᵀδw_t‖ ≤ m_t. Its supremum is Σ_t (m_t/n) ‖A_t⁻¹Φ_tᵀσ‖, which
    random members, one for each σ, check from below.
    """
    config = context.config
    rng = np.random.default_rng(config["seed"])
    n, sigma = config["samples"], _all_signs(config["samples"])
    rows = []
    for _ in context.track(range(config["trials"])):
        P, steps = int(rng.integers(1, config["features"] + 1)), int(rng.integers(2, config["steps"] + 1))
        suprema, bounds, members = np.zeros((steps, len(sigma))), np.zeros(steps), np.zeros(len(sigma))
        for t in range(steps):
            m = rng.uniform(0.1, 2)
            scaled = _rescaled(rng, _features(rng, n, P))
            suprema[t] = m / n * np.linalg.norm(sigma @ scaled, axis=1)
            bounds[t] = m / n * np.linalg.norm(scaled)
            direction = rng.standard_normal((len(sigma), P))
            direction /= np.linalg.norm(direction, axis=1, keepdims=True)
            members += m / n * np.sum(direction * (sigma @ scaled), axis=1)
        rows.append(
            {
                "single": suprema[0].mean() / bounds[0],
                "sequence": suprema.sum(0).mean() / bounds.sum(),
                "members": np.max(members / suprema.sum(0)),
                **_multiclass(rng, config, sigma, P),
            }
        )
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def _features(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Random features whose scales fall off at a random rate."""
    return rng.standard_normal(shape) * np.arange(1, shape[-1] + 1) ** -rng.uniform(0, 2)


def _rescaled(rng: np.random.Generator, Phi: np.ndarray) -> np.ndarray:
    """Φ A⁻ᵀ for a random metric AAᵀ: its norm is that of A⁻¹Φᵀ."""
    return np.linalg.solve(rng.standard_normal((Phi.shape[-1],) * 2), Phi.T).T


def _multiclass(rng: np.random.Generator, config: Mapping[str, Any], sigma: np.ndarray, P: int) -> dict[str, float]:
    """Theorem B.2.4 with M = 1: its bound beside (c/γ) Σ_y R̂(F_y), and beside R̂ of the losses of random members."""
    n, c, gamma = config["samples"], config["classes"], rng.uniform(0.1, 2)
    scaled = _rescaled(rng, _features(rng, n * c, P)).reshape(n, c, P)
    bound = c**1.5 / (gamma * n) * np.linalg.norm(scaled)
    classwise = np.linalg.norm(np.einsum("sn,ncp->scp", sigma, scaled), axis=2).mean(0).sum() / n
    w = rng.standard_normal((config["members"], P))
    f = np.einsum("wp,ncp->wnc", w / np.linalg.norm(w, axis=1, keepdims=True), scaled)
    y = torch.from_numpy(rng.integers(c, size=n)).repeat(len(f))
    mu = tt.complexity.margins(torch.from_numpy(f).flatten(0, 1), y).view(f.shape[:2]).numpy()
    losses = np.clip(1 - mu / gamma, 0, 1)
    return {
        "multiclass": c / gamma * classwise / bound,
        "losses": float((sigma @ losses.T).max(1).mean() / n / bound),
    }


def along_training(context: Context) -> Mapping[str, Any]:
    """TG-Thm6.4.1 on a network: the complexity of the functions within reach of its steps, and the bound.

    For the Euclidean metric, and for the one that makes the bound of each step smallest (proposition 6.4.2).
    """
    config = context.config
    model, (x, classes) = network(context, outputs=1), samples(context)
    y, lr = signs(classes).to(x), config["lr"] / len(x)
    sigma = np.random.default_rng(config["seed"]).choice([-1.0, 1.0], size=(config["signs"], len(x)))
    complexities, bounds = [], []
    for _ in context.track(range(config["steps"])):
        t = tangents(model, x)
        slope = -y * torch.sigmoid(-y * t.outputs)  # of the logistic loss; its mean is what descends
        lam, u, pull = (array.cpu().numpy() for array in (t.eigenvalues, t.u, t.u.T @ slope))
        scales = np.stack([np.ones_like(lam), 1 / np.abs(pull)])
        radii = lr * np.sqrt(np.sum(scales * lam * pull**2, axis=1)) / len(x)
        features = np.sqrt(lam / scales)
        suprema = np.linalg.norm((sigma @ u) * features[:, None], axis=2)  # ‖A⁻¹Φᵀσ‖
        complexities.append(radii * suprema.mean(1))
        bounds.append(radii * np.linalg.norm(features, axis=1))
        w = nn.utils.parameters_to_vector(model.parameters()).detach()
        nn.utils.vector_to_parameters(w - lr * (t.features.T @ slope), model.parameters())
    return {
        "metrics": np.array(["A = I", "best A"]),
        "complexities": np.cumsum(complexities, axis=0),
        "bounds": np.cumsum(bounds, axis=0),
    }


def rescaling(context: Context) -> Mapping[str, Any]:
    """TG-PropB.2.5: scales ν of the features along v_j that make ‖Aᵀw‖ ‖A⁻¹Φᵀ‖ smallest, found numerically.

    With A = Σ √ν_j v_j v_jᵀ that is (Σ a_j ν_j)^½ (Σ λ_j/ν_j)^½, where a are the squares of w's coordinates: u_jᵀy/√λ_j
    for the interpolator of least norm, √λ_j u_jᵀ∇L (times the learning rate) for a step of gradient descent.
    """
    config = context.config
    model, (x, classes) = network(context, outputs=1), samples(context)
    y, t = signs(classes).to(x), tangents(model, x)
    slope = -y * torch.sigmoid(-y * t.outputs)  # of the summed logistic loss
    lam, labels, pull = (vector.cpu().numpy() for vector in (t.eigenvalues, t.u.T @ y, t.u.T @ slope))
    squares = np.stack([labels**2 / lam, lam * pull**2])
    formula = np.stack([lam / np.abs(labels), 1 / np.abs(pull)])
    rng = np.random.default_rng(config["seed"])
    starts = rng.standard_normal((config["starts"], len(lam)))
    numeric = np.array([[_smallest(a, lam, start) for start in starts] for a in context.track(list(squares))])
    values = np.sqrt((squares[:, None] * numeric).sum(2) * (lam / numeric).sum(2))

    v, roots = t.v, torch.from_numpy(np.sqrt(formula[1])).to(t.v)
    A = torch.eye(len(v)).to(v) + v @ torch.diag(roots - 1) @ v.T
    after = torch.linalg.svdvals(torch.linalg.solve(A, t.features.T)).square()
    return {
        "problems": np.array(["interpolator", "step"]),
        "eigenvalues": lam,
        "parts": np.abs(np.stack([labels, pull])),
        "numeric": numeric,
        "formula": formula / np.exp(np.log(formula).mean(1, keepdims=True)),
        "values": values,
        "least": np.sqrt(squares * lam).sum(1),
        "rescaled": after.cpu().numpy(),
    }


def _smallest(a: np.ndarray, b: np.ndarray, start: np.ndarray) -> np.ndarray:
    """The ν, of geometric mean 1, that makes (Σ a ν)(Σ b/ν) smallest: its logarithm is convex in log ν."""
    from scipy.optimize import minimize

    def objective(z: np.ndarray) -> tuple[float, np.ndarray]:
        p, q = a * np.exp(z), b * np.exp(-z)
        return float(np.log(p.sum()) + np.log(q.sum())), p / p.sum() - q / q.sum()

    def curvature(z: np.ndarray) -> np.ndarray:
        p, q = a * np.exp(z), b * np.exp(-z)
        p, q = p / p.sum(), q / q.sum()
        return np.diag(p + q) - np.outer(p, p) - np.outer(q, q)

    z = minimize(objective, start, jac=True, hess=curvature, method="trust-exact", options={"gtol": 1e-12}).x
    return np.exp(z - z.mean())
