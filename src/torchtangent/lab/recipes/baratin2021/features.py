"""Shortest interpolators in random features that are made more or less anisotropic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

import torchtangent as tt
from torchtangent.lab.data.synthetic import rbf_features
from torchtangent.lab.runner import Context
from torchtangent.lab.study import Part


def configuration(pick: Callable[[Any, Any, Any], Any]) -> dict[str, dict[str, Any]]:
    """Points and features are as many. The intervals [−a, a] and the values of c are ours."""
    return {
        "interpolators": {
            "points": pick(400, 1000, 60),
            "extents": [1.0, 3.0, 10.0],
            "gamma": 1.0,
            "seeds": list(range(pick(4, 10, 2))),
            "samples": pick(50, 50, 10),
            "subsamples": pick(30, 100, 5),
            "anisotropies": [0.001, 0.01, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.995, 0.999],
            "drawn": [0.001, 0.5, 0.99],
            "directions": [1, 10],
        }
    }


def interpolators(context: Context) -> Mapping[str, Any]:
    """TG-FigB.3: classifiers of least norm on subsamples, their errors on the other points, and bounds.

    Means over subsamples have axes (interval, seed, c), deviations of the solutions along two directions one more. The
    solutions themselves are kept of the first seed, centred: (interval, drawn, subsample, direction).
    """
    config = context.config
    c = config["anisotropies"]
    drawn = [c.index(one) for one in config["drawn"]]
    rows, scatter = [], []
    for extent, seed in context.track(list(product(config["extents"], config["seeds"]))):
        _, Phi = rbf_features(config["points"], config["points"], extent=extent, gamma=config["gamma"], seed=seed)
        Phi = Phi.to(context.device)
        generator = torch.Generator().manual_seed(seed)
        orders = [torch.randperm(len(Phi), generator=generator) for _ in range(config["subsamples"])]
        chosen = torch.stack(orders)[:, : config["samples"]].to(context.device)
        row, w = solutions(Phi @ Phi.T, chosen, c, config["directions"])
        rows.append(row | {"deviation": w.std(1)})
        scatter.append((w - w.mean(1, keepdim=True))[drawn])
    shape = (len(config["extents"]), len(config["seeds"]))

    def stacked(values: list[Tensor]) -> np.ndarray:
        return torch.stack(values).unflatten(0, shape).cpu().numpy().astype(np.float32)

    return {
        "extents": np.array(config["extents"]),
        "anisotropies": np.array(c),
        "drawn": np.array(config["drawn"]),
        "directions": np.array(config["directions"]),
        "scatter": stacked(scatter)[:, 0],
        **{name: stacked([row[name] for row in rows]) for name in rows[0]},
    }


def solutions(
    K: Float[Tensor, "N N"], chosen: Int[Tensor, "S n"], anisotropies: Sequence[float], directions: Sequence[int]
) -> tuple[dict[str, Float[Tensor, "*a"]], Float[Tensor, "a S k"]]:
    """Shortest interpolators of y = sign ψ₁ on subsamples; the l_j of K = Σ l_j ψ_j ψ_jᵀ, j ≥ 0, made 1 + c(l_j − 1).

    As many features as points: the kernel becomes (1 − c) I + c K. Its parts have the same eigenvectors u for all c.

    Returns:
        For every c, means over subsamples: the `error` at the other points, ‖w‖ √Tr K / n as `plain`, and as `best` the
        same in the metric that makes it least, Σ |uᵀy| / n (proposition B.2.5); and the `positive` part of the labels.
        And the coordinates of the solutions along φ_j for some j.
    """
    n, c = chosen.shape[1], torch.tensor(anisotropies, dtype=K.dtype, device=K.device)
    l, psi = tt.spectrum.top(K, max(directions) + 1)
    y = psi[:, 1].sign()
    parts = K[chosen]  # (S, n, N): from the chosen points to all
    values, U = torch.linalg.eigh(parts.gather(2, chosen[:, None].expand(-1, n, -1)))
    along = torch.einsum("sij,si->sj", U, y[chosen])
    values = 1 + c[:, None, None] * (values - 1)  # (a, S, n)
    solved = torch.einsum("sij,asj->asi", U, along / values)
    f = torch.einsum("sin,asi->asn", parts, solved)  # times c > 0, but for the chosen points
    wrong = (f.sign() != y).scatter(2, chosen.expand(len(c), -1, -1), False)
    norms = (along.square() / values).sum(2).sqrt()
    scales = (1 + c[:, None] * (l[list(directions)] - 1)).sqrt()
    means = {
        "error": wrong.double().sum(2).mean(1) / (len(K) - n),
        "plain": (norms * values.sum(2).sqrt()).mean(1) / n,
        "best": (along.abs().sum(1).mean() / n).expand(len(c)),
        "positive": (y > 0).double().mean(),
    }
    return means, scales[:, None] * torch.einsum("sik,asi->ask", psi[:, list(directions)][chosen], solved)


PARTS = (Part("interpolators", interpolators),)
