"""Training α(f − f₀), and a look at groups of samples whenever the loss has fallen by another 4 %."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

import torchtangent as tt
from torchtangent.jacobians.call import float32_products
from torchtangent.lab.recipes.george2022.linearity import METRICS
from torchtangent.lab.recipes.george2022.progress import Progress
from torchtangent.lab.recipes.george2022.setting import MOMENTUM
from torchtangent.lab.runner import Context
from torchtangent.lab.train import Descent, batches, deterministic

_EVALUATED = 2000  # samples at a time
_EVERY = 5  # levels from one measurement of linearity to the next
_BETWEEN = 40  # parts of the epochs after which there is a look whatever the level

Samples = tuple[Float[Tensor, "_ c h w"], Int[Tensor, "_"]]


@dataclass(frozen=True)
class Task:
    """Samples to train on and groups of samples to look at.

    Attributes:
        x: Inputs.
        y: Classes; of a network with one output 0 and 1.
        groups: The samples to look at, by name.
        probed: Test inputs on which linearity is measured.
    """

    x: Float[Tensor, "n c h w"]
    y: Int[Tensor, " n"]
    groups: Mapping[str, Samples]
    probed: Float[Tensor, "p c h w"]


def train(context: Context, model: nn.Module, task: Task) -> dict[str, Any]:
    """Train a network in place on α(f − f₀) at the learning rate η/α².

    It is looked at before training and whenever the loss of a batch (or its running mean, see `Progress`) has fallen to
    another of the levels ℓ₀·0.96ᵏ; linearity is measured at every fifth level. Between levels, which become rare, there
    is a look after every fortieth part of the epochs, and one at the end. Training ends with the epoch in which the
    level `until` is reached, or after `epochs`, or when a loss is not finite.

    Returns:
        `groups`, their names; for every look its `steps`, and `losses` and `accuracies` (looks, groups); `measured_at`,
        the looks at which linearity was measured, the `metrics`, and `linearity` (measured, metrics); whether training
        stayed `finite`.
    """
    config = context.config
    alpha = config["alpha"]
    with exact():
        watch = _Watch(model, task, alpha)
        f0 = outputs(model, task.x)
        descent = Descent(
            model, lambda f, f0, y: loss_of(alpha * (f - f0), y), lr=config["lr"] / alpha**2, momentum=MOMENTUM
        )
        progress = Progress(math.log(max(f0.shape[1], 2)), config["smoothing"])
        order = torch.Generator().manual_seed(config["seed"])
        steps = 0
        watch.look(steps, progress)
        for epoch in context.track(range(config["epochs"])):
            for index in batches(len(task.x), config["batch"], order, context.device):
                loss = descent(task.x[index], f0[index], task.y[index])
                steps += 1
                if progress.reached(float(loss)):  # waits for the GPU: a look has to come before the next step
                    watch.look(steps, progress)
            done = progress.level <= config["until"] or epoch == config["epochs"] - 1
            if done or epoch % max(1, config["epochs"] // _BETWEEN) == 0:
                watch.look(steps, progress)
            if done or not watch.finite:
                break
    return watch.arrays()


@contextmanager
def exact() -> Iterator[None]:
    """On a GPU convolutions in full float32, always summed in the same order.

    α(f − f₀) loses as many digits as α has, and of TF32's three none would be left.
    """
    with deterministic(), float32_products():
        yield


def loss_of(f: Float[Tensor, "n C"], y: Int[Tensor, " n"], reduction: str = "mean") -> Tensor:
    """The cross-entropy; of a single output the logistic loss."""
    if f.shape[1] == 1:
        return F.binary_cross_entropy_with_logits(f[:, 0], y.to(f.dtype), reduction=reduction)
    return F.cross_entropy(f, y, reduction=reduction)


@torch.no_grad()
def outputs(model: nn.Module, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n C"]:
    """f(x), some samples at a time."""
    return torch.cat([model(part) for part in x.split(_EVALUATED)])


class _Watch:
    """Losses and accuracies of groups of samples, and the measures of linearity, while a network trains."""

    def __init__(self, model: nn.Module, task: Task, alpha: float) -> None:
        self._model, self._alpha, self._names = model, alpha, list(task.groups)
        self._sizes = [len(x) for x, _ in task.groups.values()]
        self._x = torch.cat([x for x, _ in task.groups.values()])
        self._y = torch.cat([y for _, y in task.groups.values()])
        self._f0 = outputs(model, self._x)
        names = {name.partition("/")[0] for name in METRICS.values()}
        self._probe = tt.TangentProbe(model, task.probed, steps=1, measures=names, layers=False)
        self._steps: list[int] = []
        self._seen: list[Tensor] = []  # (2, groups) each
        self._linearity: dict[int, list[float]] = {}  # by the number of a look
        self._due = 0  # the level at which it is measured next
        self.finite = True

    def look(self, step: int, progress: Progress) -> None:
        """What the groups are like now; nothing if the last look was at this step, or if a loss is not finite."""
        if self._steps and self._steps[-1] == step:
            return
        f = self._alpha * (outputs(self._model, self._x) - self._f0)
        right = (f[:, 0] > 0).long() == self._y if f.shape[1] == 1 else f.argmax(1) == self._y
        both = torch.stack([loss_of(f, self._y, "none"), right.to(f.dtype)])
        self.finite = bool(both.isfinite().all())
        if not self.finite:
            return
        self._seen.append(torch.stack([part.mean(1) for part in both.split(self._sizes, dim=1)], dim=1))
        self._steps.append(step)
        if progress.passed >= self._due:
            record = self._probe.log(step)
            assert record is not None  # every step is one to measure at
            self._linearity[len(self._steps) - 1] = [record[name] for name in METRICS.values()]
            self._due = progress.passed // _EVERY * _EVERY + _EVERY

    def arrays(self) -> dict[str, Any]:
        """All that was seen."""
        losses, accuracies = torch.stack(self._seen, 1).cpu().numpy().astype(np.float32)
        return {
            "groups": np.array(self._names),
            "steps": np.array(self._steps),
            "losses": losses,
            "accuracies": accuracies,
            "metrics": np.array(list(METRICS)),
            "measured_at": np.array(list(self._linearity)),
            "linearity": np.array(list(self._linearity.values())),
            "finite": np.array(self.finite),
        }
