"""Networks trained on images of which some have random labels: the spectrum and alignment of their tangent kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import torchtangent as tt
from torchtangent.lab.recipes.baratin2021.training import (
    Images,
    descend,
    halts,
    images,
    network,
    scores,
    with_random_labels,
)
from torchtangent.lab.runner import Context
from torchtangent.lab.study import Part
from torchtangent.lab.train import deterministic

SETS = {"train": "", "test": "test/"}
"""Which samples a kernel is of, and what the probe's keys begin with."""

_MEASURES = ("spectrum", "effective_rank", "trace_ratio", "cka", "kernel_alignment")
_SHARED = ("indices", "shares")  # which eigenvalues and which trace ratios: the same for all seeds


@deterministic()
def watched(context: Context) -> Mapping[str, Any]:
    """TG-Fig6.2, 6.3, B.8, TG-lr-claim: a network watched while it trains on labels of which a share is random.

    Kernels are those of the first training images, with the labels that they are trained on, and of the first test
    images, with their true ones. Curves are (seeds, steps), those with an index (seeds, steps, indices).
    """
    config = context.config
    stops = halts(config["steps"], config["halts"])
    data = images(context)
    runs = [_run(context, data, seed, stops) for seed in config["seeds"]]
    return {
        "steps": np.array(stops),
        **{name: runs[0][name] for name in _SHARED},
        **{name: np.stack([run[name] for run in runs]) for name in runs[0] if name not in _SHARED},
    }


def _run(context: Context, data: Images, seed: int, stops: list[int]) -> dict[str, np.ndarray]:
    config = context.config
    y = with_random_labels(data.y, config["noise"], seed)
    model = network(config, data.x.shape[1:], seed).to(context.device)
    n = config["samples"]
    probe = tt.TangentProbe(
        model, data.x[:n], y[:n], x_test=data.x_test[:n], y_test=data.y_test[:n], steps=stops, measures=_MEASURES
    )
    rows = []
    for step, _ in context.track(
        descend(model, data.x, y, lr=config["lr"], batch=config["batch"], seed=seed, stops=stops), len(stops)
    ):
        probe.log(step)
        m = config["evaluated"]
        rows.append([*scores(model, data.x[:m], y[:m]), scores(model, data.x_test, data.y_test)[1]])
    accuracies = dict(zip(("train_loss", "train_accuracy", "test_accuracy"), np.array(rows).T, strict=True))
    return {name: curve.astype(np.float32) for name, curve in accuracies.items()} | kernel_curves(probe)


def kernel_curves(probe: tt.TangentProbe) -> dict[str, np.ndarray]:
    """What a probe recorded of a training and a test set, as arrays with a row for each record."""

    def curve(key: str) -> np.ndarray:
        return probe.series(key)[1].astype(np.float32)

    def below(prefix: str) -> list[str]:
        """What follows this prefix in the keys of records."""
        return [key.removeprefix(prefix) for key in probe.records[0] if key.startswith(prefix)]

    found: dict[str, np.ndarray] = {}
    for name, prefix in SETS.items():
        indices = ["max", *(key for key in below("spectrum/") if key.isdigit())]
        columns = {
            "eigenvalues": [f"{prefix}spectrum/{key}" for key in indices],
            "shares": [f"{prefix}trace_ratio/{key}" for key in below("trace_ratio/")],
            "layers": [f"{prefix}cka/{key}" for key in below("cka/")],
        }
        found |= {f"{name}_{key}": np.stack([curve(c) for c in keys], axis=1) for key, keys in columns.items()}
        single = {"mean": "spectrum/mean", "rank": "effective_rank", "cka": "cka", "start": "kernel_alignment"}
        found |= {f"{name}_{key}": curve(prefix + source) for key, source in single.items()}
    found["indices"] = np.array([1, *(int(key) for key in indices[1:])])
    found["shares"] = np.array([int(key) for key in below("trace_ratio/")])
    return found


PARTS = (
    *(Part(f"noise-{percent}", watched, long=True) for percent in (0, 20, 50)),
    *(Part(f"slow-{percent}", watched, long=True) for percent in (0, 50)),
)


def configuration(pick: Callable[[Any, Any, Any], Any]) -> dict[str, dict[str, Any]]:
    """Of the parts above. `paper` is VGG19 on a fifth of CIFAR-10, `smoke` a deep MLP on digits."""
    common = {
        "data": pick("digits", "cifar10", "digits"),
        "side": pick(8, 32, 8),
        "network": pick("MLP", "VGG19", "MLP"),
        "base": 64,
        "depth": pick(9, 9, 3),
        "width": pick(60, 60, 16),
        "train": pick(500, 10_000, 40),
        "test": pick(300, 5000, 20),
        "evaluated": pick(500, 2000, 20),
        "samples": pick(40, 100, 8),
        "seeds": pick([100, 101], [100], [100]),
        "batch": pick(50, 100, 10),
        "halts": pick(14, 18, 4),
    }
    steps = {
        "noise-0": pick(600, 5000, 10),
        "noise-20": pick(600, 4000, 10),
        "noise-50": pick(600, 9000, 10),
        "slow-0": pick(600, 3000, 10),
        "slow-50": pick(600, 3000, 10),
    }
    return {
        part: common
        | {
            "noise": int(part.split("-")[1]) / 100,
            "lr": 0.01 if part.startswith("noise") else 0.003,
            "steps": count,
        }
        for part, count in steps.items()
    }
