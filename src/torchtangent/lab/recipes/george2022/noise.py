"""Label noise: when are wrong labels memorized? Also with other learning rates, and with another network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from torchtangent.lab.data import noisy_labels
from torchtangent.lab.recipes.george2022.images import Images, images, network
from torchtangent.lab.recipes.george2022.scaled import Task, train
from torchtangent.lab.runner import Context
from torchtangent.lab.study import Part

SEEDS = (0, 1)
ALPHAS = (1, 100)
RATES = {"rate-third": 0.3, "rate-hundredth": 0.01}
"""Learning rates of figure C.1, relative to the one of the other runs."""


def configuration(pick: Callable[[Any, Any, Any], Any]) -> dict[str, dict[str, Any]]:
    """What the parts of this file are given, by part."""
    run = common(pick) | {"noise": 0.15}
    lengths = {1: pick(60, 20, 2), 100: pick(400, 50, 2)}
    other = other_network(pick)
    return {
        **{
            f"noise-a{alpha}-s{seed}": run | {"alpha": float(alpha), "seed": seed, "epochs": lengths[alpha]}
            for seed in SEEDS
            for alpha in ALPHAS
        },
        **{
            name: run | {"alpha": 1.0, "seed": 0, "epochs": pick(400, 20, 2), "lr": round(run["lr"] * factor, 6)}
            for name, factor in RATES.items()
        },
        **{f"other-noise-a{alpha}": run | other[alpha] | {"alpha": float(alpha), "seed": 0} for alpha in ALPHAS},
    }


def common(pick: Callable[[Any, Any, Any], Any]) -> dict[str, Any]:
    """What all runs on ten classes have in common."""
    return {
        "data": pick("digits", "cifar10", "digits"),
        "side": pick(8, 32, 8),
        "train": pick(700, 40_000, 200),
        "network": pick("MLP", "ResNet18", "MLP"),
        "widths": pick([128, 128], [], [16]),
        "base": pick(0, 64, 0),
        "lr": pick(0.05, 0.01, 0.05),
        "batch": pick(50, 125, 50),
        "smoothing": 0.0,
        "until": pick(0.02, 0.02, 0.5),
        "watched": pick(100, 1000, 20),
        "probed": pick(50, 100, 5),
    }


def other_network(pick: Callable[[Any, Any, Any], Any]) -> dict[int, dict[str, Any]]:
    """What differs with another network, for each α.

    PyTorch's initialization makes the tangent kernel of VGG11 so small that the released code takes 10,000 epochs for
    α = 100; here the learning rate of these runs is larger instead.
    """
    network = {
        "network": pick("LeNet", "VGG11", "LeNet"),
        "base": pick(0, 32, 0),
        "train": pick(700, 20_000, 200),
    }
    return {
        1: network | {"epochs": pick(40, 40, 2)},
        100: network | {"epochs": pick(200, 80, 2), "lr": 1.0},
    }


def label_noise(context: Context) -> Mapping[str, Any]:
    """TG-Fig5.2-bottomleft, TG-FigC.1, TG-FigC.3: clean and noisy training samples and test samples along training."""
    task = noisy(context, images(context))
    return train(context, network(context, task.x), task)


def noisy(context: Context, data: Images) -> Task:
    """The task with some of the training labels replaced by others."""
    config = context.config
    generator = torch.Generator().manual_seed(config["seed"])
    y, changed = noisy_labels(data.y, config["noise"], classes=10, generator=generator)
    clean, wrong = ((mask.nonzero()[: config["watched"], 0]) for mask in (~changed, changed))
    groups = {
        "clean": (data.x[clean], y[clean]),
        "noisy": (data.x[wrong], y[wrong]),
        "test": (data.x_test[: config["watched"]], data.y_test[: config["watched"]]),
    }
    return Task(data.x, y, groups, data.x_test[: config["probed"]])


PARTS = (
    *(Part(f"noise-a{alpha}-s{seed}", label_noise, long=True) for seed in SEEDS for alpha in ALPHAS),
    *(Part(name, label_noise, long=True) for name in RATES),
    *(Part(f"other-noise-a{alpha}", label_noise, long=True) for alpha in ALPHAS),
)
