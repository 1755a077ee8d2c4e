"""The disk learned at small and large learning rates, by narrow and wide networks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

import torchtangent as tt
from torchtangent.lab.data.synthetic import disk, disk_grid
from torchtangent.lab.models import init_kaiming, mlp
from torchtangent.lab.recipes.baratin2021.copies import Copies, logistic
from torchtangent.lab.runner import Context
from torchtangent.lab.study import Part
from torchtangent.lab.train import Descent

_BLOCK = 10  # steps between looks at the losses


def configuration(pick: Callable[[Any, Any, Any], Any]) -> dict[str, dict[str, Any]]:
    """Rates are in units of the largest stable one at the start, 2 over the largest eigenvalue of the curvature."""
    return {
        "disk-rates": {
            "points": pick(200, 500, 20),
            "layers": pick(6, 6, 3),
            "widths": pick([16, 128], [16, 64, 256, 1024], [4, 16]),
            "side": pick(20, 50, 8),
            "rates": pick([0.1, 0.5, 1.5], [0.1, 0.5, 1.0, 1.5], [0.1, 1.5]),
            "seeds": list(range(pick(5, 10, 2))),
            "goal": pick(0.2, 0.2, 0.69),
            "steps": pick(1000, 3000, 20),
        }
    }


def rates(context: Context) -> Mapping[str, Any]:
    """TG-lr-claim-disk: networks trained to the same loss from the same start, and how far their kernels have come.

    Values have axes (width, rate, seed); those of networks that did not reach the loss are 0.
    """
    config = context.config
    grid, labels = (part.to(context.device) for part in disk_grid(config["side"]))
    rows = []
    for width in context.track(config["widths"]):
        jobs = list(product(config["rates"], config["seeds"]))
        data = [disk(config["points"], torch.Generator().manual_seed(seed)) for _, seed in jobs]
        x, y = (torch.stack(part).to(context.device) for part in zip(*data, strict=True))
        widths = [2] + [width] * (config["layers"] - 1) + [1]
        starts = [mlp(widths) for _ in jobs]
        for (_, seed), model in zip(jobs, starts, strict=True):
            init_kaiming(model, torch.Generator().manual_seed(seed), biases=True).to(context.device)
        lrs = [rate * largest_stable(model, inputs) for (rate, _), model, inputs in zip(jobs, starts, x, strict=True)]
        copies = Copies(starts).to(context.device)
        steps, losses = descend(copies, x, y, lrs, config["goal"], config["steps"])
        for e, start in enumerate(starts):
            reached = losses[e] < config["goal"]
            rows.append({"lr": lrs[e], "steps": steps[e], "reached": reached})
            if reached:
                rows[-1] |= {"loss": losses[e]} | _compared(start, copies.network(e), grid, labels)
    shape = (len(config["widths"]), len(config["rates"]), len(config["seeds"]))
    names = ("lr", "steps", "reached", "loss", "cka", "unchanged")
    return {
        "widths": np.array(config["widths"]),
        "rates": np.array(config["rates"]),
        "goal": np.array(config["goal"]),
        **{name: np.array([float(row.get(name, 0)) for row in rows]).reshape(shape) for name in names},
    }


def largest_stable(model: nn.Module, x: Float[Tensor, "n d"]) -> float:
    """2 / λ for the largest eigenvalue λ of the logistic loss' Gauss-Newton matrix, through the n × n kernel."""
    with torch.no_grad():
        p = torch.sigmoid(model(x).squeeze(1))
    root = (p * (1 - p) / len(x)).sqrt()
    K = tt.ntk(model, x, reduce="trace")
    return 2 / float(tt.spectrum.top(root[:, None] * K * root, 1).values)


def descend(
    copies: Copies, x: Tensor, y: Tensor, lrs: list[float], goal: float, limit: int
) -> tuple[list[int], list[float]]:
    """Train until every copy's loss is below the goal; one that got there, or came to infinity, moves no more.

    Returns:
        The steps that each took, in blocks of ten, and their losses.
    """
    eta = torch.tensor(lrs).to(x)

    def loss(f: Tensor, y: Tensor) -> Tensor:
        losses = logistic(f, y)
        return eta @ torch.where(losses >= goal, losses, 0.0)

    descent = Descent(copies, loss, lr=1.0, momentum=0.0)
    steps, taken = torch.zeros_like(eta), 0
    while True:
        with torch.no_grad():
            losses = logistic(copies(x), y)
        active = losses >= goal
        if taken >= limit or not bool(active.any()):
            return steps.int().tolist(), losses.tolist()
        for _ in range(min(_BLOCK, limit - taken)):
            descent(x, y)
        taken += min(_BLOCK, limit - taken)
        steps = torch.where(active, float(taken), steps)


def _compared(start: nn.Module, end: nn.Module, grid: Tensor, labels: Tensor) -> dict[str, float]:
    """The alignment of the kernel after training with the labels, and with the kernel before."""
    K0, K = tt.ntk(start, grid, reduce="trace"), tt.ntk(end, grid, reduce="trace")
    return {"cka": float(tt.alignment.cka(K, labels)), "unchanged": float(tt.alignment.kernels(K, K0))}


PARTS = (Part("disk-rates", rates, long=True),)
