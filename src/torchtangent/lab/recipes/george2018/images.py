"""VGG11 and ResNet34 on natural images: a grid of settings, batch sizes, and rates that are halved."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np

from torchtangent.lab.recipes.george2018.setting import natural_images
from torchtangent.lab.recipes.george2018.training import How, best, stacked, train
from torchtangent.lab.runner import Context


def compared(context: Context) -> Mapping[str, Any]:
    """One optimizer: all settings at one batch size; the best of them at other sizes, and with a rate that is halved.

    Returns:
        `loss`, `valid`, `seconds` (rates, others, epochs) of the grid; `batch_…` of each batch size (the grid's own
        one among them) for the best setting, with the losses of single steps in `steps-<batch>`; `halved_…`.
    """
    config = context.config
    task = natural_images(context)
    grid = list(product(config["rates"], config["others"]))
    constant = {"halve_every": 0}
    trials = [train(task, How.of(config, lr, other, **constant)) for lr, other in context.track(grid)]
    found = {
        "rates": np.array(config["rates"]),
        "others": np.array(config["others"]),
        **stacked(trials, len(config["rates"]), len(config["others"])),
    }
    setting = best(found)
    sizes = {config["batch"]: trials[grid.index(setting)]}
    for batch in config["batches"]:
        if batch not in sizes:
            sizes[batch] = train(task, How.of(config, *setting, batch=batch, **constant))
    in_order = [sizes[batch] for batch in sorted(sizes)]
    halved = train(task, How.of(config, *setting, epochs=config["halved_epochs"]))
    return {
        **found,
        "setting": np.array(setting),
        "batches": np.array(sorted(sizes)),
        **{f"batch_{name}": curve for name, curve in stacked(in_order, len(in_order)).items()},
        **{f"steps-{batch}": curves["steps"].astype(np.float32) for batch, curves in sizes.items()},
        **{f"halved_{name}": curve[0] for name, curve in stacked([halved], 1).items()},
    }
