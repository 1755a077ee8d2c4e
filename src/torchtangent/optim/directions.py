"""From gradients and recorded factors to preconditioned gradients; nothing is written here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from torchtangent.optim.layer import Layer, Parts, Passes
from torchtangent.optim.method import Method, State, Task
from torchtangent.optim.plan import Plan
from torchtangent.optim.ranks import Ranks
from torchtangent.optim.replay import Replay

_MEMORY = 0.95  # of averages of mean gradients, in a step


class NotFinite(ArithmeticError):
    """A parameter's second moments have NaN or infinity."""


@dataclass(frozen=True, eq=False)
class Step:
    """What one step knows.

    Attributes:
        raw: Mean gradients by parameter.
        full: The same with weight decay, or the same mapping.
        passes: Per-sample gradients by parameter, factored, for each backward pass.
        whole: Whether `raw` is of these samples, not of other labels or of other ranks too.
        states: What earlier steps left, by parameter.
        dampings: ε, by parameter.
        n: Samples, over all ranks.
        share: The part of them that is on this rank.
        scale: What makes recorded cotangents those of each sample's own loss.
        renew: The blocks whose decompositions are due.
    """

    raw: Mapping[str, Tensor]
    full: Mapping[str, Tensor]
    passes: Passes
    whole: bool
    states: Mapping[str, State]
    dampings: Mapping[str, float]
    n: int
    share: float
    scale: float | Tensor
    renew: Set[str]

    def due(self, name: str) -> bool:
        """Whether a block gets a decomposition, or its like, now: it needs one, and samples tell it."""
        return self.seen(name) and (name in self.renew or not self.states[name])

    def seen(self, name: str) -> bool:
        """Whether samples of this step went through a parameter."""
        return any(name in found for found in self.passes)

    def possible(self, name: str, method: Method) -> bool:
        """Whether enough is known to move a parameter."""
        return self.seen(name) or (not method.fresh and bool(self.states[name]))


def directions(
    plan: Plan, method: Method, step: Step, ranks: Ranks, replay: Replay
) -> tuple[dict[str, Tensor], dict[str, State]]:
    """Preconditioned gradients, in memory of their own, and the states that belong to them."""
    found, states = _unseen(plan, step)
    states.update(_renewed(plan, method, step, ranks))
    tasks = []
    for layer in plan.layers:
        if any(name in step.full for name in layer.names) and step.possible(layer.key, method):
            raw = _filled(layer, step.raw, plan)
            full = raw if step.full is step.raw else _filled(layer, step.full, plan)
            state = states.get(layer.key, step.states[layer.key])
            project = partial(_projected, layer, raw, step, ranks)
            passes = step.passes if step.whole else ()
            tasks.append(Task(layer, state, raw, full, step.dampings[layer.key], passes, project))
    for together in _divided(tasks):
        for task, (parts, state) in zip(together, replay.solve(method, together, step.n), strict=True):
            states[task.layer.key] = state
            found.update({name: u for name, u in parts.items() if name in step.full})
    for name in plan.diagonal:
        if name not in step.full or not step.possible(name, method):
            continue
        squares = partial(_diagonal, name, step, ranks)
        values = squares() if step.due(name) else step.states[name]["values"]
        values = method.scale(values, step.raw[name], squares, step.n)
        states[name] = {"values": values}
        found[name] = step.full[name] / (values + step.dampings[name])
    return found, states


def _unseen(plan: Plan, step: Step) -> tuple[dict[str, Tensor], dict[str, State]]:
    """Parameters of which no sample's gradient is known: as they are, or divided by an average of n ∇² (and ε).

    That is what EKFAC-ra takes for the mean of squared per-sample gradients, with a longer memory.
    """
    found, states = {}, {}
    for name in plan.unseen:
        if name not in step.full:
            continue
        full, squares = step.full[name], step.raw[name].square() * step.n
        if plan.plain:
            found[name] = full.clone()
            continue
        before = step.states[name].get("values", squares)
        if before.shape == squares.shape:  # else it is of the block that it was in
            squares = torch.lerp(before, squares, 1 - _MEMORY)
        states[name] = {"values": squares}
        found[name] = full / (squares + step.dampings[name])
    return found, states


def _renewed(plan: Plan, method: Method, step: Step, ranks: Ranks) -> dict[str, State]:
    """New decompositions where they are due, divided among the ranks."""
    moments, by_rows = {}, method.by_rows and ranks.size == 1
    for layer in plan.layers:
        if step.due(layer.key):
            B, A = layer.moments(step.passes, step.n, step.share, step.scale, by_rows=by_rows)
            moments[layer.key] = layer, ranks.total(B), ranks.total(A)
    if moments:
        sums = torch.stack([_sum(B) + _sum(A) for _, B, A in moments.values()])
        if not bool(torch.isfinite(sums).all()):
            raise NotFinite(next(name for name, total in zip(moments, sums, strict=True) if not total.isfinite()))
    large_first = sorted(moments.items(), key=lambda item: -item[1][1].numel() - item[1][2].numel())
    tasks = {key: partial(method.decompose, layer, B, A, step.dampings[key]) for key, (layer, B, A) in large_first}
    return ranks.divide(tasks, step.full)


def _sum(M: Tensor) -> Tensor:
    """Not finite if a second moment is not; of one that is given by rows, its trace."""
    return M.sum() if M.shape[1] == M.shape[2] else M.square().sum()


def _projected(
    layer: Layer, raw: Parts, step: Step, ranks: Ranks, left: Tensor, right: Tensor
) -> tuple[Tensor, Tensor]:
    """Uᵀ∇ and the mean of (Uᵀ∇_n)²."""
    g, squares = layer.project(raw, step.passes, left, right, step.scale / math.sqrt(step.n))
    return g, ranks.total(squares)


def _diagonal(name: str, step: Step, ranks: Ranks) -> Tensor:
    """The mean of ∇_n²."""
    total = torch.stack([seen[name].square_sum() for seen in step.passes if name in seen]).sum(0)
    return ranks.total(total * (step.scale**2 / step.n))


def _divided(tasks: list[Task]) -> list[list[Task]]:
    """What is done at once: on a CPU a layer, while it is in the cache, elsewhere all, for the fewest launches.

    All together need two or three numbers more for each parameter while they are in work.
    """
    if not tasks:
        return []
    device = next(iter(tasks[0].raw.values())).device.type
    return [[task] for task in tasks] if device == "cpu" else [tasks]


def _filled(layer: Layer, grads: Mapping[str, Tensor], plan: Plan) -> dict[str, Tensor]:
    """Zero for a part of a layer that has no gradient."""
    like = next(grads[name] for name in layer.names if name in grads)
    return {name: grads[name] if name in grads else like.new_zeros(plan.shapes[name]) for name in layer.names}
