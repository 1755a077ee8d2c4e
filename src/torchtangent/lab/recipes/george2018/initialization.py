"""Appendix A.3: where a ResNet without normalization begins, and what its blocks make of images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchtangent.lab.models import ResidualBlock, init_kaiming
from torchtangent.lab.recipes.george2018.setting import natural_images
from torchtangent.lab.runner import Context

KINDS = ("behind ReLU", "shortcut", "last of a branch")
STARTS = ("formula", "words", "no division")
"""The last convolution's variance divided by 10, its deviation divided by 10, and Kaiming's everywhere."""


@torch.no_grad()
def initialization(context: Context) -> Mapping[str, Any]:
    """Variances of the weights by kind of layer, and mean squares of activations behind every block."""
    config = context.config
    task = natural_images(context)
    variances, squares = [], []
    for seed in context.track(config["seeds"]):
        model = task.network(seed, False)
        variances.append(_variances(model))
        squares.append([_squares(model, task.x)])
        with torch.no_grad():
            for block in _blocks(model):
                block.branch[-1].weight.mul_(0.1**0.5)  # type: ignore[operator]
        squares[-1].append(_squares(model, task.x))
        start = init_kaiming(model.cpu(), torch.Generator().manual_seed(seed)).to(context.device)
        squares[-1].append(_squares(start, task.x))
    return {"variances": np.array(variances), "squares": np.array(squares)}


def _blocks(model: nn.Module) -> list[ResidualBlock]:
    return [module for module in model.modules() if isinstance(module, ResidualBlock)]


def _variances(model: nn.Module) -> list[float]:
    """Fan-in times the variance of the weights, mean over the layers of each kind."""
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for block in _blocks(model):
        layers = (
            block.branch[0],
            block.shortcut[0] if isinstance(block.shortcut, nn.Sequential) else None,
            block.branch[-1],
        )
        for kind, layer in zip(KINDS, layers, strict=True):
            if isinstance(layer, nn.Conv2d):
                found[kind].append(float(layer.weight.square().mean() * layer.weight[0].numel()))
    return [float(np.mean(found[kind])) for kind in KINDS]


def _squares(model: nn.Module, x: Tensor) -> list[float]:
    """The mean square of what every block gives."""
    found: list[float] = []
    hooks = [
        block.register_forward_hook(lambda _, __, y: found.append(float(y.square().mean()))) for block in _blocks(model)
    ]
    model(x)
    for hook in hooks:
        hook.remove()
    return found
