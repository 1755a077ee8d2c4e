"""The study's two tools, the knob α and the probe of linearity, and where the knob must be refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

import torchtangent as tt
from torchtangent.lab.models import seeded
from torchtangent.lab.recipes.george2022.images import images
from torchtangent.lab.recipes.george2022.linearity import METRICS
from torchtangent.lab.runner import Context
from torchtangent.lab.study import Part


def configuration(pick: Callable[[Any, Any, Any], Any]) -> dict[str, dict[str, Any]]:
    """What the part of this file is given."""
    return {
        "interface": {
            "data": pick("digits", "mnist", "digits"),
            "side": 8,
            "train": pick(100, 1000, 20),
            "width": 64,
            "alphas": [1.0, 10.0, 100.0, 1000.0],
            "seed": 0,
        }
    }


def interface(context: Context) -> Mapping[str, Any]:
    """TG-5-API: what the probe gives, and α(f − f₀) at the start with BatchNorm in training and in eval mode.

    f is run on batches, f₀ on all samples at once: with the same weights their difference should be zero.
    """
    config = context.config
    x = images(context).x
    model = seeded(lambda: _normalized(config["width"]), config["seed"]).to(context.device)
    before = {}
    for mode in ("training", "eval"):
        model.train(mode == "training")
        with torch.no_grad():
            apart = torch.cat([model(part) for part in x.split(len(x) // 4)]) - model(x)
        before[mode] = float(apart.square().mean().sqrt())
    names = {name.partition("/")[0] for name in METRICS.values()}
    record = tt.TangentProbe(model, x[:10], steps=1, measures=names, layers=False).log(0)
    alphas = np.array(config["alphas"])
    return {
        "alphas": alphas,
        **{f"{mode}_output": alphas * value for mode, value in before.items()},
        "refused": np.array([_refuses(model.train(), alpha, x) for alpha in config["alphas"]]),
        "accepted": np.array([not _refuses(model.eval(), alpha, x) for alpha in config["alphas"]]),
        "at_start": np.array([(record or {})[name] for name in METRICS.values()]),
    }


def _normalized(width: int) -> nn.Sequential:
    layers = [nn.Flatten(), nn.Linear(64, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 10)]
    return nn.Sequential(*layers)


def _refuses(model: nn.Module, alpha: float, x: torch.Tensor) -> bool:
    """Whether `tt.lazy` says that it cannot scale the model in its present mode."""
    try:
        tt.lazy(model, alpha)(x)
    except ValueError as error:
        return "normalizes with the statistics of each batch" in str(error)
    return False


PARTS = (Part("interface", interface),)
