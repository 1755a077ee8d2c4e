"""The complexity Σ ‖δw‖ ‖Φ‖ of training runs and other capacity measures, beside the generalization gap."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor, nn

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

SWEEPS = {"widths": "width", "corruption": "noise", "channels": "base"}
"""The parts, and which entry of the configuration takes the values of each."""


@deterministic()
def sweep(context: Context) -> Mapping[str, Any]:
    """TG-Fig6.6: networks trained to a loss of 0.01, for every value of one setting; arrays are (values, seeds, …).

    What is NaN of a network that diverged is kept as infinity.
    """
    config = context.config
    changed = SWEEPS[context.part.name]
    cases = [(value, seed) for value in config["values"] for seed in config["seeds"]]
    data = images(context)
    runs = [_run(data, {**config, changed: value}, seed) for value, seed in context.track(cases)]

    def table(values: list[Any]) -> np.ndarray:
        shaped = np.nan_to_num(np.array(values), nan=np.inf, posinf=np.inf, neginf=-np.inf)
        return shaped.reshape(len(config["values"]), len(config["seeds"]), *shaped.shape[1:])

    norms = list(runs[0].found.norms)
    return {
        "values": np.array(config["values"]),
        "goal": np.array(config["goal"]),
        "names": np.array([*norms, "fisher_rao", "parameters"]),
        "measures": table([[*(r.found.norms[k] for k in norms), r.found.fisher_rao, r.found.parameters] for r in runs]),
        "margins": table([r.found.margin for r in runs]),
        "complexity": table([r.complexity for r in runs]),
        "losses": table([r.loss for r in runs]),
        "steps": table([r.steps for r in runs]),
        "train_error": table([r.train_error for r in runs]),
        "test_error": table([r.test_error for r in runs]),
    }


@dataclass(frozen=True)
class _Run:
    """A network at the end of training."""

    complexity: float
    found: tt.complexity.Measures
    loss: float
    steps: int
    train_error: float
    test_error: float


def _run(data: Images, config: Mapping[str, Any], seed: int) -> _Run:
    y = with_random_labels(data.y, config["noise"], seed)
    model = network(config, data.x.shape[1:], seed).to(data.x.device)
    start = copy.deepcopy(model)
    complexity, loss, steps = _train(model, data.x, y, config, seed)
    m = config["measured"]
    return _Run(
        complexity,
        _measured(model, start, data.x[:m], y[:m]),
        loss,
        steps,
        1 - scores(model, data.x, y)[1],
        1 - scores(model, data.x_test, data.y_test)[1],
    )


def _measured(model: nn.Module, start: nn.Module, x: Tensor, y: Tensor) -> tt.complexity.Measures:
    """The capacity measures; NaN of a network that diverged."""
    if all(bool(p.isfinite().all()) for p in model.parameters()):
        return tt.complexity.measures(model, start, x, y)
    found = tt.complexity.measures(start, start, x, y)
    return replace(found, norms=dict.fromkeys(found.norms, math.nan), margin=math.nan, fisher_rao=math.nan)


def _train(model: nn.Module, x: Tensor, y: Tensor, config: Mapping[str, Any], seed: int) -> tuple[float, float, int]:
    """Train until the mean loss of an epoch is at most the goal; the complexity, that loss and the steps it took.

    The complexity adds up the ways between the steps 5·⌊1.15ᵏ⌋, as in the released code.
    """
    trajectory = tt.complexity.Trajectory(model, x[: config["samples"]])
    epoch = len(x) // config["batch"]
    marks = set(halts(config["steps"], config["halts"]))
    ends = set(range(epoch, config["steps"] + 1, epoch))
    total, seen, loss, step = 0.0, 0, math.inf, 0
    run = descend(model, x, y, lr=config["lr"], batch=config["batch"], seed=seed, stops=sorted(marks | ends))
    for stop, mean in run:
        total, seen, step = total + mean * (stop - step), seen + stop - step, stop
        if stop in marks and stop:
            trajectory.step()
        if stop in ends:
            loss, total, seen = total / seen, 0.0, 0
            if not loss > config["goal"]:  # reached, or no number any more
                break
    if step not in marks:
        trajectory.step()
    return trajectory.complexity, loss, step


PARTS = tuple(Part(name, sweep, long=True) for name in SWEEPS)


def configuration(pick: Callable[[Any, Any, Any], Any]) -> dict[str, dict[str, Any]]:
    """Of the parts above. The third sweep is of VGG19 up to 4 million parameters, of a small one at smoke scale."""
    mlp = {
        "network": "MLP",
        "depth": 2,
        "width": 256,
        "data": pick("digits", "mnist", "digits"),
        "side": pick(8, 28, 8),
        "train": pick(400, 5000, 40),
        "test": pick(300, 10_000, 20),
        "noise": 0.0,
        "seeds": pick([0, 1], [0, 1, 2], [0]),
        "batch": pick(40, 100, 10),
        "lr": pick(0.05, 0.02, 0.05),
        "goal": 0.01,
        "steps": pick(2000, 10_000, 8),
        "halts": pick(16, 18, 3),
        "samples": pick(40, 100, 5),
        "measured": pick(400, 2000, 10),
    }
    channels = mlp | {
        "network": pick("ConvNet", "VGG19", "ConvNet"),
        "data": pick("digits", "cifar10", "digits"),
        "side": pick(8, 32, 8),
        "seeds": pick([0, 1], [0], [0]),
        "lr": pick(0.05, 0.01, 0.05),
        "steps": pick(1000, 5000, 8),
    }
    return {
        "widths": mlp | {"values": pick([8, 16, 64, 256], [32, 64, 128, 256, 512, 2048], [4, 8])},
        "corruption": mlp | {"values": pick([0.0, 0.2, 0.4, 0.6], [0.0, 0.1, 0.2, 0.3, 0.45, 0.6], [0.0, 0.5])},
        "channels": channels | {"values": pick([2, 4, 8, 16], [8, 12, 18, 28], [2, 3])},
    }
