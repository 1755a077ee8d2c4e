"""From gradients and recorded factors to preconditioned gradients; nothing is written here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from torchtangent.jacobians.factors import LayerJacobian, Outer
from torchtangent.optim.layer import Layer
from torchtangent.optim.method import Method, State
from torchtangent.optim.plan import Plan
from torchtangent.optim.ranks import Ranks


class NotFinite(ArithmeticError):
    """A parameter's second moments have NaN or infinity."""


@dataclass(frozen=True, eq=False)
class Step:
    """What one step knows, by parameter.

    Attributes:
        raw: Mean gradients.
        full: The same with weight decay, or the same mapping.
        seen: Per-sample gradients, factored, one for each backward pass.
        states: What earlier steps left.
        dampings: ε.
        n: Samples, over all ranks.
        share: The part of them that is on this rank.
        scale: What makes recorded cotangents those of each sample's own loss.
        renew: Whether decompositions are due.
    """

    raw: Mapping[str, Tensor]
    full: Mapping[str, Tensor]
    seen: Mapping[str, list[LayerJacobian]]
    states: Mapping[str, State]
    dampings: Mapping[str, float]
    n: int
    share: float
    scale: float
    renew: bool

    def outers(self, layer: Layer) -> list[Outer]:
        """Per-sample gradients of a layer's weight."""
        return [j for j in self.seen.get(layer.weight, []) if isinstance(j, Outer)]

    def due(self, name: str) -> bool:
        """Whether a parameter needs a decomposition, or its like, now."""
        return self.renew or not self.states[name]

    def possible(self, name: str, method: Method) -> bool:
        """Whether enough is known to move a parameter: if no sample went through it, it stays."""
        return name in self.seen or not (method.fresh or self.due(name))


def directions(plan: Plan, method: Method, step: Step, ranks: Ranks) -> tuple[dict[str, Tensor], dict[str, State]]:
    """Preconditioned gradients, and the states that belong to them."""
    found = {name: g for name, g in step.full.items() if name in plan.plain}
    states = _renewed(plan, method, step, ranks)
    for layer in plan.layers:
        present = [name for name in layer.names if name in step.full]
        if not present or not step.possible(layer.weight, method):
            continue
        state = states.get(layer.weight, step.states[layer.weight])
        raw = layer.join(_filled(layer, step.raw))
        full = raw if step.full is step.raw else layer.join(_filled(layer, step.full))
        squares = partial(_rotated, layer, step, ranks)
        damping = step.dampings[layer.weight]
        u, states[layer.weight] = method.solve(layer, state, raw, full, damping, squares, step.n)
        found.update({name: t for name, t in layer.split(u).items() if name in present})
    for name in plan.diagonal:
        if name not in step.full or not step.possible(name, method):
            continue
        squares = partial(_diagonal, name, step, ranks)
        values = squares() if step.due(name) else step.states[name]["values"]
        values = method.scale(values, step.raw[name], squares, step.n)
        states[name] = {"values": values}
        found[name] = step.full[name] / (values + step.dampings[name])
    return found, states


def _renewed(plan: Plan, method: Method, step: Step, ranks: Ranks) -> dict[str, State]:
    """New decompositions where they are due, divided among the ranks."""
    tasks = {}
    for layer in plan.layers:
        outers = step.outers(layer)
        if not outers or not step.due(layer.weight):
            continue
        B, A = layer.moments(outers, step.n)
        B, A = ranks.total(B * step.scale**2), ranks.total(A * step.share)
        if not bool(torch.isfinite(B.sum() + A.sum())):
            raise NotFinite(layer.weight)
        tasks[layer.weight] = partial(method.decompose, layer, B, A, step.dampings[layer.weight])
    return ranks.divide(tasks, step.full)


def _rotated(layer: Layer, step: Step, ranks: Ranks, left: Tensor, right: Tensor) -> Tensor:
    """The mean of (Uᵀ∇_n)²."""
    return ranks.total(layer.squares(step.outers(layer), left, right) * (step.scale**2 / step.n))


def _diagonal(name: str, step: Step, ranks: Ranks) -> Tensor:
    """The mean of ∇_n²."""
    total = torch.stack([jacobian.square_sum() for jacobian in step.seen[name]]).sum(0)
    return ranks.total(total * (step.scale**2 / step.n))


def _filled(layer: Layer, grads: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Zero for a part of a layer that has no gradient."""
    like = next(grads[name] for name in layer.names if name in grads)
    shapes = zip(layer.names, layer.space.shapes, strict=True)
    return {name: grads[name] if name in grads else like.new_zeros(shape) for name, shape in shapes}
