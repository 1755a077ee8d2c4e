"""Preconditioning as a CUDA graph, once several steps in a row have done the same computation.

Preconditioning a layer takes about ten small kernels, which the host launches more slowly than the GPU runs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from torchtangent.notice import warn
from torchtangent.operators.recorded import record
from torchtangent.optim.layer import Parts
from torchtangent.optim.method import Method, Solved, System

_LARGEST = 1 << 25  # parameters: a graph keeps about eight numbers for each, and large layers keep a GPU busy anyway
_PATIENCE = 2  # equal steps before the first graph is recorded; doubles with each further graph


class Replay:
    """`Method.solve`, replayed from a CUDA graph if the last steps were like this one; never on other devices."""

    def __init__(self) -> None:
        self._graph: _Graph | None = None
        self._last: tuple = ()
        self._alike = 0  # equal steps in a row, other than those of the graph
        self._patience: float = _PATIENCE

    def solve(self, method: Method, systems: Sequence[System], n: int) -> Solved:
        """The same as `method.solve(systems, n)`, as new tensors."""
        if not _suit(method, systems):
            return method.solve(systems, n)
        key = _key(systems, n)
        if self._graph is None or self._graph.key != key:
            self._alike = self._alike + 1 if key == self._last else 1
            self._last = key
            if self._alike <= self._patience or not self._recorded(method, systems, n, key):
                return method.solve(systems, n)
        assert self._graph is not None
        return self._graph.solve(systems)

    def _recorded(self, method: Method, systems: Sequence[System], n: int, key: tuple) -> bool:
        """Try to record a graph for steps like this one; returns whether that succeeded."""
        self._graph, self._patience = None, 2 * self._patience  # frees the memory of the old graph
        try:
            self._graph = _Graph(method, systems, n, key)
        except RuntimeError as error:
            self._patience = float("inf")
            said = str(error).splitlines()[0]
            warn(f"{method.kind}: steps are slower than they could be, as they cannot be a CUDA graph ({said}).")
        return self._graph is not None


class _Graph:
    """A recorded `Method.solve`, with the tensors that it reads from and writes to."""

    def __init__(self, method: Method, systems: Sequence[System], n: int, key: tuple) -> None:
        self.key = key
        self._inputs = [t.clone() for t in _tensors(systems)]
        self._seen: list[tuple[Tensor | None, int]] = [(None, 0)] * len(self._inputs)  # what was copied into each last
        placed = _placed(systems, self._inputs)
        solved, self._replay = record(lambda: method.solve(placed, n))
        known = {id(t) for t in self._inputs}
        written = [t for parts, state in solved for t in (*parts.values(), *state.values()) if id(t) not in known]
        self._outputs = written
        index = {id(t): i for i, t in enumerate([*self._inputs, *written])}
        self._solved = [
            ({name: index[id(t)] for name, t in parts.items()}, {name: index[id(t)] for name, t in state.items()})
            for parts, state in solved
        ]

    def solve(self, systems: Sequence[System]) -> Solved:
        """Replay the graph for other systems with the same key."""
        given, states = _tensors(systems), {id(t) for system in systems for t in system.state.values()}
        # Gradients are copied at every step: writes through `.data` do not raise their version counter.
        now = [(t if id(t) in states else None, t._version) for t in given]
        pairs = enumerate(zip(now, self._seen, strict=True))
        changed = [i for i, ((t, version), (then, old)) in pairs if t is None or t is not then or version != old]
        torch._foreach_copy_([self._inputs[i] for i in changed], [given[i] for i in changed])
        self._seen = now
        self._replay()
        own = [torch.empty_like(t) for t in self._outputs]
        torch._foreach_copy_(own, self._outputs)
        found = [*given, *own]
        return [
            ({name: found[i] for name, i in parts.items()}, {name: found[i] for name, i in state.items()})
            for parts, state in self._solved
        ]


def _suit(method: Method, systems: Sequence[System]) -> bool:
    """Whether the systems depend on gradients and states only, are small enough, and are on one GPU."""
    if method.fresh:
        return False
    devices = {t.device for system in systems for t in system.raw.values()}
    if {device.type for device in devices} != {"cuda"} or len(devices) > 1 or torch.cuda.is_current_stream_capturing():
        return False
    return sum(t.numel() for system in systems for t in system.raw.values()) <= _LARGEST


def _key(systems: Sequence[System], n: int) -> tuple:
    """Everything that a graph depends on, except for the values of its inputs."""
    sizes = tuple((t.shape, t.dtype) for t in _tensors(systems))
    names = tuple((system.layer, system.damping, system.full is system.raw, tuple(system.state)) for system in systems)
    return n, torch.backends.cuda.matmul.fp32_precision, names, sizes


def _tensors(systems: Sequence[System]) -> list[Tensor]:
    """All tensors that the systems read."""
    return [t for system in systems for parts in _mappings(system) for t in parts.values()]


def _placed(systems: Sequence[System], places: Sequence[Tensor]) -> list[System]:
    """The same systems, reading from these tensors instead."""
    rest = iter(places)
    found = []
    for system in systems:
        raw, state, *full = ({name: next(rest) for name in parts} for parts in _mappings(system))
        found.append(replace(system, raw=raw, full=full[0] if full else raw, state=state, per_sample=()))
    return found


def _mappings(system: System) -> list[Parts]:
    return [system.raw, system.state] if system.full is system.raw else [system.raw, system.state, system.full]
