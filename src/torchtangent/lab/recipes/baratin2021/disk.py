"""A disk to be told from its surroundings: eigenfunctions of the tangent kernel while a network learns it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

import torchtangent as tt
from torchtangent.lab.data.synthetic import disk, disk_grid
from torchtangent.lab.models import mlp, seeded
from torchtangent.lab.recipes.baratin2021.copies import Copies, logistic
from torchtangent.lab.runner import Context
from torchtangent.lab.study import Part
from torchtangent.lab.train import Descent

LEADING = 5
"""The eigenfunctions whose roundness and share of the labels are recorded."""


def configuration(pick: Callable[[Any, Any, Any], Any]) -> dict[str, dict[str, Any]]:
    """The published disk, and the smaller one of the public notebook."""
    return {
        "disk": {
            "points": pick(100, 500, 20),
            "layers": pick(6, 6, 3),
            "width": pick(32, 256, 8),
            "side": pick(16, 50, 8),
            "lrs": pick([0.05, 0.5], [0.01, 0.1], [0.05, 0.5]),
            "seeds": pick([0, 1], [0, 1, 2, 3, 4], [0, 1]),
            "probes": pick(
                [0, 30, 60, 100, 200, 400],
                [0, 50, 100, 150, 200, 250, 300, 400, 600, 1000, 1400, 2000],
                [0, 2, 4],
            ),
            "eigenvalues": 20,
            "shown": [1, 2, 3, 5, 10, 20],
            "drawn": pick([0, 60, 400], [0, 200, 600, 2000], [0, 4]),
        },
        "disk-notebook": {
            "points": pick(100, 100, 20),
            "layers": pick(4, 4, 3),
            "width": pick(60, 60, 8),
            "side": pick(30, 60, 8),
            "lrs": [0.05],
            "seeds": pick([0, 1], list(range(10)), [0, 1]),
            "probes": pick(
                [0, 100, 300, 1000, 3000], [0, 50, 100, 200, 300, 500, 700, 857, 1000, 1500, 2000, 2999], [0, 2, 4]
            ),
            "eigenvalues": 20,
            "shown": [1, 2, 3, 4, 5, 6],
            "drawn": pick([0, 3000], [0, 2999], [0, 4]),
        },
    }


def learning(context: Context) -> Mapping[str, Any]:
    """TG-Fig6.1, TG-FigB.4: gradient descent at several rates and seeds, and the kernel on a grid along the way.

    Values have axes (rate, seed, probe). Eigenfunctions are kept of the first seed, those of the centred kernel.
    """
    config = context.config
    jobs = list(product(config["lrs"], config["seeds"]))
    data = [disk(config["points"], torch.Generator().manual_seed(seed)) for _, seed in jobs]
    x, y = (torch.stack(part).to(context.device) for part in zip(*data, strict=True))
    grid, labels = (part.to(context.device) for part in disk_grid(config["side"]))
    copies = Copies([network(config["layers"], config["width"], seed) for _, seed in jobs]).to(context.device)
    rates = torch.tensor([lr for lr, _ in jobs]).to(x)
    # Each network's loss times its own learning rate: one step of length 1 for all of them.
    descent = Descent(copies, lambda f, y: rates @ logistic(f, y), lr=1.0, momentum=0.0)
    models = [copies.network(e) for e in range(len(jobs))]
    probes = [
        tt.TangentProbe(model, a, b, steps=config["probes"], measures=["effective_rank", "cka"], layers=False)
        for model, a, b in zip(models, x, y, strict=True)
    ]
    rows, functions = [], []
    for step in context.track(range(config["probes"][-1] + 1)):
        if step in config["probes"]:
            found = [_reading(copies, e, models[e], grid, labels, config) for e in range(len(jobs))]
            rows.append([row for row, _ in found])
            if step in config["drawn"]:
                functions.append(torch.stack([found[i * len(config["seeds"])][1] for i in range(len(config["lrs"]))]))
            with torch.no_grad():
                for row, loss in zip(rows[-1], logistic(copies(x), y).tolist(), strict=True):
                    row["loss"] = loss
            for probe in probes:
                probe.log(step)
        if step < config["probes"][-1]:
            descent(x, y)

    def stacked(values: Sequence[Any]) -> np.ndarray:
        array = np.array(values, dtype=np.float32)
        return array.reshape(len(config["lrs"]), len(config["seeds"]), *array.shape[1:])

    return {
        "lrs": np.array(config["lrs"]),
        "steps": np.array(config["probes"]),
        "shown": np.array(config["shown"]),
        "drawn": np.array(config["drawn"]),
        "functions": torch.stack(functions, 1).cpu().numpy().astype(np.float16),  # (rate, drawn, point, shown)
        "rank_train": stacked([probe.series("effective_rank")[1] for probe in probes]),
        "cka_train": stacked([probe.series("cka")[1] for probe in probes]),
        **{name: stacked([[row[e][name] for row in rows] for e in range(len(jobs))]) for name in rows[0][0]},
    }


def network(layers: int, width: int, seed: int) -> nn.Sequential:
    """ReLU layers on the plane, with one output and PyTorch's default initialization."""
    model = seeded(lambda: mlp([2] + [width] * (layers - 1) + [1]), seed)
    assert isinstance(model, nn.Sequential)
    return model


def _reading(
    copies: Copies, e: int, model: nn.Sequential, grid: Tensor, labels: Tensor, config: Mapping[str, Any]
) -> tuple[dict[str, Any], Tensor]:
    """What the kernel of the e-th network is on the grid, and the eigenfunctions to be drawn."""
    copies.write(e, model)
    K = tt.ntk(model, grid, reduce="trace")
    plain = tt.spectrum.top(K, config["eigenvalues"])
    centred = tt.spectrum.top(tt.spectrum.center(K), config["eigenvalues"])
    with torch.no_grad():
        right = (model(grid).squeeze(1) * labels > 0).float().mean()
    row = {
        "eigenvalues": plain.values.tolist(),
        "eigenvalues_centred": centred.values.tolist(),
        "roundness": roundness(centred.vectors[:, :LEADING]).tolist(),
        "roundness_together": roundness((centred.vectors.square() @ centred.values)[:, None]).item(),
        "energy": float(tt.alignment.energy(centred, labels - labels.mean(), LEADING)),
        "cka": float(tt.alignment.cka(K, labels)),
        "accuracy": float(right),
    }
    return row, centred.vectors[:, [j - 1 for j in config["shown"]]]


def roundness(u: Float[Tensor, "n K"], *, radii: int = 24, angles: int = 64) -> Float[Tensor, " K"]:
    """How far functions on a square grid over [−1, 1]² are functions of the distance from 0: 1 if they are, 0 for x₁.

    1 − (variance along circles) / (variance), over circles inside the square, the functions interpolated linearly.
    """
    side = round(len(u) ** 0.5)
    r = (torch.arange(radii) + 0.5) / radii
    turn = 2 * torch.pi * torch.arange(angles) / angles
    at = torch.stack([torch.outer(r, turn.cos()), torch.outer(r, turn.sin())], -1).to(u)
    values = F.grid_sample(u.T.reshape(1, -1, side, side), at[None], mode="bilinear", align_corners=True)[0]
    weight = (r / r.sum()).to(u)  # a circle counts by its length
    along = values.var(2, unbiased=False) @ weight
    means = values.mean(2)
    across = (means - (means @ weight)[:, None]).square() @ weight
    return across / (across + along)


PARTS = (Part("disk", learning), Part("disk-notebook", learning, long=True))
