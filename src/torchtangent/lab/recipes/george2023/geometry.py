"""Chapter 2: distances between functions rather than parameters."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import torchtangent as tt
from torchtangent.lab.models import convnet_1001, seeded
from torchtangent.lab.runner import Context


def gaussians(context: Context) -> Mapping[str, Any]:
    """TG-Fig2.1: two pairs of normal distributions at the same distance in (μ, σ²)."""
    config = context.config
    names = list(config["gaussians"])
    mean, variance = np.array(list(config["gaussians"].values())).T
    x = np.linspace(*config["grid"])
    density = np.exp(-((x - mean[:, None]) ** 2) / (2 * variance[:, None])) / np.sqrt(2 * np.pi * variance[:, None])
    parameters = np.stack([mean, variance], axis=1)
    pairs = np.array([[names.index(name) for name in pair] for pair in config["pairs"]])
    first, second = pairs.T
    closed = 0.5 * (
        np.log(variance[second] / variance[first])
        + (variance[first] + (mean[first] - mean[second]) ** 2) / variance[second]
        - 1
    )
    p, q = density[first], density[second]
    return {
        "x": x,
        "mean": mean,
        "variance": variance,
        "density": density,
        "distance": np.linalg.norm(parameters[first] - parameters[second], axis=1),
        "kl": closed,
        "kl_integrated": np.trapezoid(p * (np.log(p) - np.log(q)), x, axis=1),
        "overlap": np.trapezoid(np.minimum(p, q), x, axis=1),
    }


def _shifted(model: nn.Module, direction: Tensor) -> nn.Module:
    """A copy of the model with a flat vector added to its parameters."""
    moved = copy.deepcopy(model)
    flat = nn.utils.parameters_to_vector(moved.parameters())
    nn.utils.vector_to_parameters(flat.detach() + direction, moved.parameters())
    return moved


def second_order(context: Context) -> Mapping[str, Any]:
    """TG-Eq2.4: KL and squared L2 distance after a step δw, beside the quadratic forms in F and G."""
    config = context.config
    data = context.data(config["data"])
    x = data.x_train[: config["samples"]].double().to(context.device)
    y = data.y_train[: config["samples"]].to(context.device)
    model = seeded(convnet_1001, config["seed"]).double().to(context.device)
    F = tt.fisher(model, (x, y), tt.Dense, likelihood="categorical", kind="exact")
    J = tt.jacobian(model, x).dense()
    with torch.no_grad():
        f = model(x)
    generator = torch.Generator().manual_seed(config["seed"])
    size = J.shape[-1]
    low, high = config["log10_steps"]
    steps = np.logspace(low, high, config["step_count"])
    rows: dict[str, list[list[float]]] = {"kl": [], "l2": [], "quadratic_fisher": [], "quadratic_l2": []}
    for _ in context.track(range(config["directions"])):
        direction = torch.randn(size, generator=generator, dtype=torch.float64).to(context.device)
        direction /= direction.norm()
        values: dict[str, list[float]] = {name: [] for name in rows}
        for step in steps:
            delta = step * direction
            with torch.no_grad():
                moved = _shifted(model, delta)(x)
                log_p, log_q = moved.log_softmax(1), f.log_softmax(1)
            values["kl"].append((log_p.exp() * (log_p - log_q)).sum(1).mean().item())
            values["l2"].append((moved - f).square().sum(1).mean().item())
            values["quadratic_fisher"].append(float(F.quad(delta)))
            values["quadratic_l2"].append((J @ delta).square().sum(1).mean().item())
        for name, row in values.items():
            rows[name].append(row)
    return {"steps": steps, **{name: np.array(value) for name, value in rows.items()}}


def rademacher(context: Context) -> Mapping[str, Any]:
    """TG-Eq2.4, second half: generalization gaps of threshold classifiers beside the Rademacher bound.

    Inputs are uniform on [0, 1], labels are 1[x > ½] and flipped with a probability; the class is every threshold
    t on a grid. Of each sample we keep sup_t (L(t) − L̂(t)) and the empirical Rademacher complexity
    E_σ sup_t |1/n Σ σᵢ ℓᵢ(t)| of the losses, over random signs.
    """
    config = context.config
    rng = np.random.default_rng(config["seed"])
    n, noise = config["samples"], config["noise"]
    thresholds = np.linspace(0, 1, config["thresholds"])
    risk = noise + (1 - 2 * noise) * np.abs(thresholds - 0.5)
    gaps, complexities = [], []
    for _ in context.track(range(config["draws"])):
        x = rng.random(n)
        y = (x > 0.5) ^ (rng.random(n) < noise)
        loss = ((x[:, None] > thresholds) != y[:, None]).astype(np.float64)
        signs = rng.choice([-1.0, 1.0], size=(config["signs"], n))
        gaps.append(np.max(risk - loss.mean(0)))
        complexities.append(np.abs(signs @ loss / n).max(1).mean())
    return {"gap": np.array(gaps), "complexity": np.array(complexities), "n": n, "confidence": config["confidence"]}
