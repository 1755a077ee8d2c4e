"""The auto-encoder: every optimizer tuned on the same number of trials, then compared over seeds."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np

from torchtangent.lab.recipes.george2018.setting import reconstruction
from torchtangent.lab.recipes.george2018.training import How, best, stacked, train
from torchtangent.lab.runner import Context


def search(context: Context) -> Mapping[str, Any]:
    """Every setting of the grid, a few epochs each."""
    config = context.config
    task = reconstruction(context)
    grid = list(product(config["rates"], config["others"]))
    trials = [train(task, How.of(config, lr, other)) for lr, other in context.track(grid)]
    return {
        "rates": np.array(config["rates"]),
        "others": np.array(config["others"]),
        **stacked(trials, len(config["rates"]), len(config["others"])),
    }


def curves(context: Context) -> Mapping[str, Any]:
    """The best setting of the search, over seeds."""
    config = context.config
    task = reconstruction(context)
    setting = best(context.arrays(f"search-{config['optimizer']}"))
    trials = [train(task, How.of(config, *setting, seed=seed)) for seed in context.track(config["seeds"])]
    usual = {"setting": np.array(setting), "basis_every": np.array(config["basis_every"])}
    return {**usual, **stacked(trials, len(config["seeds"]))}


def frequencies(context: Context) -> Mapping[str, Any]:
    """The same setting with decompositions more or less often: (frequencies, seeds, epochs)."""
    config = context.config
    task = reconstruction(context)
    setting = best(context.arrays(f"search-{config['optimizer']}"))
    cases = list(product(config["frequencies"], config["seeds"]))
    trials = [train(task, How.of(config, *setting, basis_every=n, seed=seed)) for n, seed in context.track(cases)]
    return {
        "frequencies": np.array(config["frequencies"]),
        **stacked(trials, len(config["frequencies"]), len(config["seeds"])),
    }
