"""How linear training is: signs of ReLUs, tangent kernel and representation beside those of the start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import torchtangent as tt
from torchtangent.lab.recipes.george2022.setting import network, released, test_samples
from torchtangent.lab.runner import Context

METRICS = {
    "signs": "sign_similarity",
    "kernel": "kernel_alignment",
    "representation": "representation_alignment",
    "representation, d×d": "representation_alignment/features",
}
"""The measures, by the probe's names."""


def linearity(context: Context) -> Mapping[str, Any]:
    """TG-5-metrics: the measures on test samples while the training loss falls, for every seed and α."""
    config = context.config
    levels = np.log(10) * 0.96 ** (5 * np.arange(1, config["levels"] + 1))
    runs = [(seed, alpha) for seed in config["seeds"] for alpha in config["alphas"]]
    values = [_probed(context, alpha, seed, levels) for seed, alpha in context.track(runs)]
    return {
        "alphas": np.array(config["alphas"]),
        "metrics": np.array(list(METRICS)),
        "levels": np.concatenate([[np.log(10)], levels]),
        "values": np.reshape(values, (len(config["seeds"]), len(config["alphas"]), len(levels) + 1, len(METRICS))),
    }


def _probed(context: Context, alpha: float, seed: int, levels: np.ndarray) -> list[list[float]]:
    """The measures at the start and when the loss of a batch first falls below each level."""
    model = network(context, seed=seed)
    names = {name.partition("/")[0] for name in METRICS.values()}
    probe = tt.TangentProbe(model, *test_samples(context), steps=1, measures=names, layers=False)
    values: list[list[float]] = []
    for step, loss in enumerate(released(context, model, alpha, seed)):
        if step == context.config["most_steps"]:
            raise RuntimeError(f"α = {alpha}: the loss is not below {levels[len(values) - 1]:.2f} after {step} steps")
        passed = 1 if step == 0 else int(np.sum(loss < levels[len(values) - 1 :]))
        if passed:
            record = probe.log(step)
            assert record is not None  # every step is one to measure at
            values += [[record[name] for name in METRICS.values()]] * passed
        if len(values) > len(levels):
            break
    return values
