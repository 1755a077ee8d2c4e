"""A step before anything is written: the update, or the name of what is not finite in it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchtangent.optim.directions import Diverged, Step, directions
from torchtangent.optim.method import BlockState, Method
from torchtangent.optim.partition import Partition
from torchtangent.optim.replay import Replay
from torchtangent.optim.update import Slopes


@dataclass(frozen=True, eq=False)
class Update:
    """Preconditioned gradients, the new states of their blocks, and the quadratic model of a step along them."""

    found: Mapping[str, Tensor]
    states: Mapping[str, BlockState]
    slopes: Slopes


def attempt(partition: Partition, method: Method, step: Step, replay: Replay, loss: Any) -> Update | str:
    """The update; or the name of what has NaN or infinity: the loss (if it is known), a gradient, a curvature."""
    try:
        found, states = directions(partition, method, step, replay)
    except Diverged as error:
        return _wrong(loss, step.raw, {}) or f"the curvature of {error}"
    flat = partition.unseen if partition.plain else {}
    curved = {name: u for name, u in found.items() if name not in flat}
    slopes = Slopes.of(curved, step.raw, step.full, step.groups)
    values = {name: state["values"] for name, state in states.items() if "values" in state}
    plain = [u for name, u in found.items() if name in flat]
    # A single number that is not finite shows in the sum of all, which takes one transfer from the device.
    sums = slopes.raw + _sums([*values.values(), *plain])
    sums += [loss.detach().sum()] if isinstance(loss, Tensor) else []
    if sums and not math.isfinite(float(step.replicas.total(torch.stack(sums).sum()))):
        wrong = _wrong(loss, step.raw, {**values, **found})
        if wrong or step.replicas.size > 1:  # the sum may overflow although its terms are finite
            return wrong or "something on another rank"
    return Update(found, states, slopes)


def _wrong(loss: Any, grads: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> str | None:
    """The first thing that is not finite, in the order in which they were computed."""
    if isinstance(loss, Tensor) and _not_finite({"loss": loss}):
        return "the loss"
    if name := _not_finite(grads):
        return f"the gradient of {name}"
    name = _not_finite(found)
    return f"the preconditioned gradient of {name}" if name else None


def _sums(tensors: list[Tensor]) -> list[Tensor]:
    """A number per tensor that is finite only if it is. Norms take one launch; on a CPU, subnormal squares are slow."""
    if not tensors or tensors[0].device.type == "cpu":
        return [t.sum() for t in tensors]
    return list(torch._foreach_norm(tensors))


def _not_finite(tensors: Mapping[str, Tensor]) -> str | None:
    return next((name for name, t in tensors.items() if not bool(torch.isfinite(t).all())), None)
