"""Difficulty by C-scores: in which order are easy and difficult samples learned?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.lab.data import cscores
from torchtangent.lab.recipes.george2022.images import images, network
from torchtangent.lab.recipes.george2022.noise import ALPHAS, SEEDS, common, other_network
from torchtangent.lab.recipes.george2022.scaled import Task, train
from torchtangent.lab.runner import Context
from torchtangent.lab.study import Part

BINS = 10
_DRAW = 1337  # the released code's seed


def configuration(pick: Callable[[Any, Any, Any], Any]) -> dict[str, dict[str, Any]]:
    """What the parts of this file are given, by part."""
    run = common(pick) | {"watched": pick(70, 1000, 10)}
    lengths = {1: pick(60, 20, 2), 100: pick(80, 30, 2)}
    other = other_network(pick)
    return {
        **{
            f"cscores-a{alpha}-s{seed}": run | {"alpha": float(alpha), "seed": seed, "epochs": lengths[alpha]}
            for seed in SEEDS
            for alpha in ALPHAS
        },
        **{f"other-cscores-a{alpha}": run | other[alpha] | {"alpha": float(alpha), "seed": 0} for alpha in ALPHAS},
    }


def deciles(context: Context) -> Mapping[str, Any]:
    """TG-Fig5.2-topleft, TG-FigC.4: training samples in ten bins of difficulty, and test samples, along training."""
    config = context.config
    data = images(context)
    order = scores(context)[: len(data.y)].argsort(stable=True)
    draw = torch.Generator().manual_seed(_DRAW)
    groups = {}
    for number, members in enumerate(order.tensor_split(BINS)):
        chosen = members[torch.randperm(len(members), generator=draw)[: config["watched"]]].to(context.device)
        groups[str(number)] = (data.x[chosen], data.y[chosen])
    groups["test"] = (data.x_test[: config["watched"]], data.y_test[: config["watched"]])
    task = Task(data.x, data.y, groups, data.x_test[: config["probed"]])
    return train(context, network(context, task.x), task)


def scores(context: Context) -> Float[Tensor, " n"]:
    """The published C-scores of CIFAR-10's training images; of other sets those of the part `consistency`."""
    if context.config["data"] != "cifar10":
        return torch.from_numpy(np.asarray(context.arrays("consistency")["scores"]))
    published = cscores(context.data_root)
    context.checksums.update(published.checksums)
    return published.values


PARTS = (
    *(Part(f"cscores-a{alpha}-s{seed}", deciles, ("consistency",)) for seed in SEEDS for alpha in ALPHAS),
    *(Part(f"other-cscores-a{alpha}", deciles, ("consistency",), long=True) for alpha in ALPHAS),
)
