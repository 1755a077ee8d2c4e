"""Training α(f − f₀) beside the linearized network itself, on the same batches."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

import torchtangent as tt
from torchtangent.lab.recipes.george2022.images import images, network
from torchtangent.lab.recipes.george2022.noise import common, noisy
from torchtangent.lab.recipes.george2022.scaled import Task, exact, loss_of, outputs
from torchtangent.lab.recipes.george2022.setting import MOMENTUM
from torchtangent.lab.runner import Context
from torchtangent.lab.study import Part
from torchtangent.lab.train import Descent, batches


def configuration(pick: Callable[[Any, Any, Any], Any]) -> dict[str, dict[str, Any]]:
    """What the part of this file is given."""
    looks = pick([1, 3, 10, 30, 100, 200, 400], [1, 3, 10, 32, 100, 320, 640, 960, 1280, 1600], [1, 2, 4])
    return {
        "against-linearized": common(pick) | {"noise": 0.15, "seed": 0, "alphas": [1.0, 10.0, 100.0], "looks": looks}
    }


def beside(context: Context) -> Mapping[str, Any]:
    """TG-Fig5.2-right: how far from the linearized network training is, after some steps.

    Errors are distances of the outputs on test samples from the linearized network's, relative to how far these moved.
    """
    config = context.config
    task = noisy(context, images(context))
    start = network(context, task.x)
    with exact():
        target = _along(context, tt.linearize(start, bias=False), 1.0, task)
        found = [_along(context, copy.deepcopy(start), a, task) for a in context.track(config["alphas"])]
    way = target.flatten(1).norm(dim=1)
    return {
        "alphas": np.array(config["alphas"]),
        "looks": np.array(config["looks"]),
        "errors": torch.stack([(f - target).flatten(1).norm(dim=1) / way for f in found]).cpu().numpy(),
        "loss": torch.stack([loss_of(f, task.groups["test"][1]) for f in target]).cpu().numpy(),
    }


def _along(context: Context, model: nn.Module, alpha: float, task: Task) -> Float[Tensor, "T M C"]:
    """α(f − f₀) on test samples after the configured numbers of steps of training on it."""
    config = context.config
    x_test, _ = task.groups["test"]
    f0, f0_test = outputs(model, task.x), outputs(model, x_test)
    descent = Descent(
        model, lambda f, f0, y: loss_of(alpha * (f - f0), y), lr=config["lr"] / alpha**2, momentum=MOMENTUM
    )
    order = torch.Generator().manual_seed(config["seed"])
    seen, steps = [], 0
    while True:
        for index in batches(len(task.x), config["batch"], order, context.device):
            descent(task.x[index], f0[index], task.y[index])
            steps += 1
            if steps in config["looks"]:
                seen.append(alpha * (outputs(model, x_test) - f0_test))
            if steps == config["looks"][-1]:
                return torch.stack(seen)


PARTS = (Part("against-linearized", beside, long=True),)
