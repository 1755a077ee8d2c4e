"""Effective rank, trace ratios and centred alignment: their ranges and invariances, and the kernels of layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

import torchtangent as tt
from torchtangent.lab.measures import ROUNDING
from torchtangent.lab.recipes.baratin2021.setting import network, relative, samples
from torchtangent.lab.runner import Context
from torchtangent.lab.train import epochs


def random_kernels(context: Context) -> Mapping[str, Any]:
    """TG-erank/Tk/CKA on random kernels (n, n, c, c) of random rank and decay, with random labels."""
    config = context.config
    generator = torch.Generator().manual_seed(config["seed"])

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    n, c = config["samples"], config["classes"]
    rows = []
    for trial in context.track(range(config["trials"])):
        rank = 1 + trial % config["features"]
        decay = 3 * float(torch.rand(1, generator=generator))
        Phi = normal(n, c, rank) * torch.arange(1, rank + 1, dtype=torch.float64) ** -decay
        flat = torch.linalg.qr(normal(n * c, rank))[0].view(n, c, rank)
        y, order = (torch.randperm(n, generator=generator) for _ in range(2))
        y = y % c  # every class occurs
        Y, K = F.one_hot(y, c).double(), _kernel(Phi)
        cka, ratios = tt.alignment.cka(K, y), tt.spectrum.trace_ratio(K, list(range(1, rank + 1)))
        shifted = _kernel(Phi + normal(c, rank))
        changed = {
            "scale of K": tt.alignment.cka(37 * K, y),
            "scale and shift of Y": tt.alignment.cka(K, 3 * Y - 2),
            "shift of the features": tt.alignment.cka(shifted, y),
            "rotation of the features": tt.alignment.cka(_kernel(Phi @ torch.linalg.qr(normal(rank, rank))[0]), y),
            "order of the samples": tt.alignment.cka(_kernel(Phi[order]), y[order]),
        }
        rows.append(
            {
                "ranks": rank,
                "eranks": float(tt.spectrum.effective_rank(K)),
                "erank_flat": float(tt.spectrum.effective_rank(_kernel(flat))),
                "ratio_falls": int((ratios.diff() < -ROUNDING).sum()),
                "ratio_whole": float(ratios[-1]),
                "cka": float(cka),
                "cka_labels": float(tt.alignment.cka(_kernel(Y.unsqueeze(2)), y)),
                "ka": float(tt.alignment.kernels(K, _kernel(normal(n, c, rank)))),
                "printed_change": abs(printed_cka(shifted, Y) - printed_cka(K, Y)),
                "changes": [abs(float(value - cka)) for value in changed.values()],
            }
        )
    return {"invariances": np.array(list(changed)), **{key: np.array([row[key] for row in rows]) for key in rows[0]}}


def _kernel(Phi: Float[Tensor, "N C P"]) -> Float[Tensor, "N N C C"]:
    return torch.einsum("ncp,mep->nmce", Phi, Phi)


def printed_cka(K: Float[Tensor, "N N C C"], Y: Float[Tensor, "N C"]) -> float:
    """CKA with the centring of eq. 6.3.3, I − 11ᵀ/NC: one mean over samples and classes together."""
    flat, y = tt.flatten(K), Y.flatten()
    centred = flat - flat.mean(0) - flat.mean(1, keepdim=True) + flat.mean()
    y = y - y.mean()
    return float(y @ centred @ y / (torch.linalg.norm(centred) * (y @ y)))


def layer_kernels(context: Context) -> Mapping[str, Any]:
    """TG-erank/Tk/CKA on a network: the kernels of its parameters, at initialization and after some training."""
    config = context.config
    model, (x, y) = network(context), samples(context)
    data = context.data(config["data"])
    x_train, y_train = data.x_train.double().to(context.device), data.y_train.to(context.device)
    rows = []
    for count in context.track((0, config["epochs"])):
        for _ in epochs(model, x_train, y_train, count=count, lr=0.05, batch=32, seed=config["seed"]):
            pass
        layers, K = tt.ntk(model, x, per_layer=True), tt.ntk(model, x)
        rows.append(
            {
                "sum_error": relative(sum(layers.values()), K),
                "layer_cka": [float(value) for value in tt.alignment.cka(layers, y).values()],
                "total_cka": float(tt.alignment.cka(K, y)),
            }
        )
    return {"layers": np.array(list(layers)), **{key: np.array([row[key] for row in rows]) for key in rows[0]}}
