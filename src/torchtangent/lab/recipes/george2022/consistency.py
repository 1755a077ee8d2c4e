"""C-scores by their definition: how often a sample is classified right by networks that were trained on others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from torchtangent.lab.ensemble import Weights, copies
from torchtangent.lab.models import mlp, seeded
from torchtangent.lab.recipes.george2022.images import images
from torchtangent.lab.recipes.george2022.setting import MOMENTUM
from torchtangent.lab.runner import Context
from torchtangent.lab.study import Part


def configuration(pick: Callable[[Any, Any, Any], Any]) -> dict[str, dict[str, Any]]:
    """What the part of this file is given."""
    return {
        "consistency": {
            "data": pick("digits", "mnist", "digits"),
            "side": pick(8, 28, 8),
            "train": pick(700, 5000, 200),
            "widths": pick([32], [64], [8]),
            "fractions": pick([0.05, 0.2, 0.5], [0.02, 0.1, 0.3, 0.5, 0.7], [0.1, 0.5]),
            "subsets": pick(32, 40, 4),
            "steps": pick(60, 400, 5),
            "batch": pick(50, 100, 20),
            "lr": 0.1,
            "seed": 0,
        }
    }


def consistency(context: Context) -> Mapping[str, Any]:
    """TG-Cscore: P(f(x; D) = y) over subsets D without (x, y), for several sizes of D, and the mean over sizes."""
    config = context.config
    data = images(context)
    generator = torch.Generator().manual_seed(config["seed"])
    right, out = [], []
    for fraction in context.track(config["fractions"]):
        size = round(fraction * len(data.y))
        draws = torch.rand(config["subsets"], len(data.y), generator=generator)
        members = draws.argsort(1)[:, :size].to(context.device)
        f = _train_all(context, data.x, data.y, members, generator)
        right.append(f.argmax(2) == data.y)
        out.append(torch.ones_like(right[-1]).scatter_(1, members, torch.zeros_like(members, dtype=torch.bool)))
    correct, outside = torch.stack(right), torch.stack(out)  # (sizes, subsets, samples)
    by_size = _estimate(correct, outside)
    halves = [_estimate(correct[:, part::2], outside[:, part::2]).mean(0) for part in (0, 1)]
    return {
        "sizes": np.round(np.array(config["fractions"]) * len(data.y)).astype(int),
        "by_size": by_size.cpu().numpy(),
        "scores": by_size.mean(0).cpu().numpy(),
        "halves": torch.stack(halves).cpu().numpy(),
        "least_subsets": outside.sum(1).min().cpu().numpy(),
    }


def _estimate(right: Bool[Tensor, "s r n"], outside: Bool[Tensor, "s r n"]) -> Float[Tensor, "s n"]:
    """The fraction of networks that are right among those that were not trained on the sample; ½ if there are none."""
    count = outside.sum(1)
    return torch.where(count > 0, (right & outside).sum(1) / count.clamp(min=1), 0.5)


def _train_all(
    context: Context,
    x: Float[Tensor, "n c h w"],
    y: Int[Tensor, " n"],
    members: Int[Tensor, "r m"],
    generator: torch.Generator,
) -> Float[Tensor, "r n C"]:
    """Train a network on each subset, all at once, by SGD; their outputs on all samples."""
    config = context.config
    count, size = members.shape
    build = partial(mlp, [x[0].numel(), *config["widths"], 10])
    models = [seeded(build, config["seed"] + i).to(context.device) for i in range(count)]
    weights = copies(models)
    velocity = {name: torch.zeros_like(w) for name, w in weights.items()}

    def call(weights: Weights, x: Tensor) -> Tensor:
        return torch.func.functional_call(models[0], weights, (x,))

    def loss(weights: Weights, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(call(weights, x), y)

    gradient = torch.vmap(torch.func.grad(loss))
    for _ in range(config["steps"]):
        picked = torch.randint(size, (count, config["batch"]), generator=generator).to(x.device)
        batch = members.gather(1, picked)
        slopes = gradient(weights, x[batch], y[batch])
        for name, w in weights.items():
            velocity[name].mul_(MOMENTUM).add_(slopes[name])
            w.sub_(velocity[name], alpha=config["lr"])
    with torch.no_grad():
        return torch.vmap(call, in_dims=(0, None))(weights, x)


PARTS = (Part("consistency", consistency),)
