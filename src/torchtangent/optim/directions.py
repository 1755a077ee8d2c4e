"""From gradients and recorded factors to preconditioned gradients, without side effects."""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from torchtangent.optim.layer import Layer, Parts, PerSample
from torchtangent.optim.method import BlockState, Method, System
from torchtangent.optim.partition import Partition
from torchtangent.optim.replay import Replay
from torchtangent.optim.replicas import Replicas
from torchtangent.optim.update import Groups

_MEMORY = 0.95  # decay per step of the running averages of mean gradients


class Diverged(ArithmeticError):
    """The second moments of the parameter that is named have NaN or infinity."""


@dataclass(frozen=True, eq=False)
class Step:
    """The inputs of one step.

    Attributes:
        raw: Mean gradients by parameter.
        full: Mean gradients with weight decay; the same object as `raw` if there is none.
        per_sample: Factored per-sample gradients by parameter, for each batch.
        whole: Whether `raw` comes from the samples and labels of `per_sample`, and from no other rank.
        states: The states that earlier steps left, by parameter.
        groups: The group of each parameter, by name.
        replicas: The processes that take this step together.
        n: Number of samples on all ranks.
        share: The fraction of them that is on this rank.
        scale: The factor that turns recorded cotangents into those of each sample's own loss.
        renew: The blocks whose decompositions are due.
    """

    raw: Mapping[str, Tensor]
    full: Mapping[str, Tensor]
    per_sample: PerSample
    whole: bool
    states: Mapping[str, BlockState]
    groups: Groups
    replicas: Replicas
    n: int
    share: float
    scale: float | Tensor
    renew: Set[str]

    def damping(self, name: str) -> float:
        """ε of a parameter."""
        return self.groups[name]["damping"]

    def due(self, name: str) -> bool:
        """Whether to renew a block's decomposition (or diagonal): it needs that, and samples went through it."""
        return self.seen(name) and (name in self.renew or not self.states[name])

    def seen(self, name: str) -> bool:
        """Whether the samples of this step went through a parameter."""
        return any(name in found for found in self.per_sample)

    def possible(self, name: str, method: Method) -> bool:
        """Whether enough is known to precondition a parameter."""
        return self.seen(name) or (not method.fresh and bool(self.states[name]))


def directions(
    partition: Partition, method: Method, step: Step, replay: Replay
) -> tuple[dict[str, Tensor], dict[str, BlockState]]:
    """Preconditioned gradients, as new tensors by parameter, and the new states by block."""
    found, states = _unseen(partition, step)
    states.update(_renewed(partition, method, step))
    systems = []
    for layer in partition.layers:
        if any(name in step.full for name in layer.names) and step.possible(layer.key, method):
            raw = _filled(layer, step.raw, partition)
            full = raw if step.full is step.raw else _filled(layer, step.full, partition)
            state = states.get(layer.key, step.states[layer.key])
            project = partial(_projected, layer, raw, step)
            per_sample = step.per_sample if step.whole else ()
            systems.append(System(layer, state, raw, full, step.damping(layer.key), per_sample, project))
    for together in _batched(systems):
        for system, (parts, state) in zip(together, replay.solve(method, together, step.n), strict=True):
            states[system.layer.key] = state
            found.update({name: u for name, u in parts.items() if name in step.full})
    for name in partition.diagonal:
        if name not in step.full or not step.possible(name, method):
            continue
        squares = partial(_diagonal, name, step)
        last = None if step.due(name) else step.states[name]["values"]
        values = method.scale(last, step.raw[name], squares, step.n)
        states[name] = {"values": values}
        found[name] = step.full[name] / (values + step.damping(name))
    return found, states


def _unseen(partition: Partition, step: Step) -> tuple[dict[str, Tensor], dict[str, BlockState]]:
    """Directions and states of parameters whose per-sample gradients are unknown.

    The gradient is kept as it is (if the partition is `plain`), or divided by ε plus a running average of n ∇². That is
    how EKFAC-ra estimates the mean of squared per-sample gradients, here with a longer memory.
    """
    found, states = {}, {}
    for name in partition.unseen:
        if name not in step.full:
            continue
        full, squares = step.full[name], step.raw[name].square() * step.n
        if partition.plain:
            found[name] = full.clone()
            continue
        squares = torch.lerp(step.states[name].get("values", squares), squares, 1 - _MEMORY)
        states[name] = {"values": squares}
        found[name] = full / (squares + step.damping(name))
    return found, states


def _renewed(partition: Partition, method: Method, step: Step) -> dict[str, BlockState]:
    """The decompositions that are due, computed by all ranks together."""
    moments, by_rows = {}, method.by_rows and step.replicas.size == 1
    for layer in partition.layers:
        if step.due(layer.key):
            B, A = layer.moments(step.per_sample, step.n, step.share, step.scale, by_rows=by_rows)
            moments[layer.key] = layer, step.replicas.total(B), step.replicas.total(A)
    if moments:
        sums = torch.stack([_sum(B) + _sum(A) for _, B, A in moments.values()])
        if not bool(torch.isfinite(sums).all()):
            raise Diverged(next(name for name, total in zip(moments, sums, strict=True) if not total.isfinite()))
    large_first = sorted(moments.items(), key=lambda item: -item[1][1].numel() - item[1][2].numel())
    tasks = {key: partial(method.decompose, layer, B, A, step.damping(key)) for key, (layer, B, A) in large_first}
    return step.replicas.divide(tasks, step.full)


def _sum(M: Tensor) -> Tensor:
    """A number that is finite only if a second moment is: its sum, or its trace if it is given by rows."""
    return M.sum() if M.shape[1] == M.shape[2] else M.square().sum()


def _projected(layer: Layer, raw: Parts, step: Step, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Uᵀ∇, and the mean of (Uᵀ∇_n)² over the samples of all ranks."""
    g, squares = layer.project(raw, step.per_sample, left, right, step.scale / math.sqrt(step.n))
    return g, step.replicas.total(squares)


def _diagonal(name: str, step: Step) -> Tensor:
    """The mean of ∇_n² over the samples of all ranks."""
    total = torch.stack([seen[name].square_sum() for seen in step.per_sample if name in seen]).sum(0)
    return step.replicas.total(total * (step.scale**2 / step.n))


def _batched(systems: list[System]) -> list[list[System]]:
    """Systems to solve together: one by one on a CPU, while a layer is in the cache; all on a GPU, for fewer launches.

    Solving all at once temporarily takes two or three more numbers per parameter.
    """
    if not systems:
        return []
    device = next(iter(systems[0].raw.values())).device.type
    return [[system] for system in systems] if device == "cpu" else [systems]


def _filled(layer: Layer, grads: Mapping[str, Tensor], partition: Partition) -> dict[str, Tensor]:
    """The gradients of a layer's parameters; zero for one that has none."""
    like = next(grads[name] for name in layer.names if name in grads)
    return {name: grads[name] if name in grads else like.new_zeros(partition.shapes[name]) for name in layer.names}
