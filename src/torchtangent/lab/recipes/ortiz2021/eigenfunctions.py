"""Sections 3.1 and 4.2: learning the eigenfunctions of the tangent kernel at initialization."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

import torchtangent as tt
from torchtangent.lab.ensemble import Ensemble
from torchtangent.lab.recipes.ortiz2021.learning import (
    Problem,
    member,
    problem,
    recipe,
    train_linear,
    train_networks,
)
from torchtangent.lab.runner import Context


def learning(context: Context) -> Mapping[str, Any]:
    """OJ-Gram, OJ-Bin, OJ-Fig2, 3, 7, 12–16: sign(φ_j) learned by networks and linearizations; alignments after it."""
    config = context.config
    setting = problem(context)
    K, kernel_seconds = timed(setting.kernel)
    pairs, eigen_seconds = timed(lambda: tt.spectrum.top(K, config["eigenfunctions"]))
    labels = signs(pairs, config["indices"])
    how = recipe(config)
    ensemble, networks = train_networks(setting, labels, how, after=lambda epoch, _: context.stepped(epoch, how.epochs))
    linear = train_linear(K, setting.outputs(), labels, setting.train, how)
    del K
    return {
        "indices": np.array(config["indices"]),
        "eigenvalues": pairs.values.cpu().numpy(),
        "binarized": (pairs.vectors.abs().sum(0) / len(setting.x) ** 0.5).cpu().numpy(),
        "random": products_of_random_vectors(len(setting.x), config["draws"], config["seed"]),
        "kernel_seconds": kernel_seconds,
        "eigen_seconds": eigen_seconds,
        **networks,
        **linear,
        **_alignments(setting, ensemble, pairs.vectors, config),
    }


def with_adam(context: Context) -> Mapping[str, Any]:
    """OJ-Fig11: the same with Adam, which is no SGD: the linearization is trained on its features J."""
    config = context.config
    setting = problem(context)
    pairs = tt.spectrum.top(setting.kernel(), config["eigenfunctions"])
    labels = signs(pairs, config["indices"])
    rates, how = config["rates"], recipe(config, optimizer="adam")
    found: dict[str, np.ndarray] = {}
    # All targets at all rates are one ensemble, for its copies go through the same batches.
    for kind, trained in context.track([("network", setting), ("linear", Tangents(setting).problem)]):
        lrs = [rate for rate in rates for _ in config["indices"]]
        _, curves = train_networks(trained, labels.repeat(len(rates), 1), how, lrs=lrs)
        for curve in ("test", "loss"):
            found[f"{kind}_{curve}"] = curves[f"network_{curve}"].reshape(len(rates), len(labels), -1)
    return {"indices": np.array(config["indices"]), "rates": np.array(rates), **found}


_ALIGNED = 8  # products of rows that begin and end at multiples of it are several times faster on a GPU


class Tangents:
    """The linearization as a linear network on its features: the rows of J, zeros, and f₀ behind them."""

    def __init__(self, setting: Problem) -> None:
        parameters = sum(p.numel() for p in setting.model.parameters())
        padded = -(-parameters // _ALIGNED) * _ALIGNED
        features = setting.x.new_zeros(len(setting.x), padded + _ALIGNED)
        for part in torch.arange(len(setting.x)).split(1000):
            features[part, :parameters] = tt.jacobian(setting.model, setting.x[part]).dense()[:, 0]
        features[:, -1] = setting.outputs()
        self.problem = Problem(_Displaced(padded).to(setting.x), features, setting.classes, setting.train)


class _Displaced(nn.Module):
    """δ ↦ f₀ + Jδ for features (J, 0, f₀); δ begins at 0."""

    def __init__(self, parameters: int) -> None:
        super().__init__()
        self.delta = nn.Parameter(torch.zeros(parameters))

    def forward(self, x: Float[Tensor, "n p"]) -> Float[Tensor, "n 1"]:
        return (x[:, :-_ALIGNED] @ self.delta + x[:, -1]).unsqueeze(1)


def signs(pairs: tt.spectrum.Eigenpairs, indices: list[int]) -> Float[Tensor, "E N"]:
    """Labels in {0, 1}: the signs of these eigenvectors, a row each."""
    return tt.spectrum.eigentasks(pairs)[:, indices].T.to(pairs.vectors.dtype)


def _alignments(setting: Problem, ensemble: Ensemble, phi: Float[Tensor, "N K"], config: Any) -> dict[str, np.ndarray]:
    """α of every eigenfunction after training on some of them, in units of the Gram matrix (sums, not means)."""
    found = []
    for index in config["trained"]:
        model = member(setting.model, ensemble, config["indices"].index(index))
        found.append(tt.alignment.target(model, setting.x, phi) * len(setting.x) ** 2)
    return {"trained": np.array(config["trained"]), "alignments": torch.stack(found).cpu().numpy()}


def products_of_random_vectors(size: int, draws: int, seed: int) -> np.ndarray:
    """Inner products of pairs of random unit vectors."""
    rng = np.random.default_rng(seed)
    a, b = (rng.standard_normal((draws, size)) for _ in range(2))
    return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


def timed(run: Any) -> tuple[Any, float]:
    """What a call returns, and its seconds, the GPU's work included."""
    start = time.perf_counter()
    found = run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return found, time.perf_counter() - start
