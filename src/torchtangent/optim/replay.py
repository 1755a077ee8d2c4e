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
from torchtangent.optim.method import Method, State, Task

_LARGEST = 1 << 25  # parameters: a graph keeps about eight numbers for each, and large layers keep a GPU busy anyway
_PATIENCE = 2  # equal steps before the first graph is recorded; doubles with each further graph

Solved = list[tuple[dict[str, Tensor], State]]


class Replay:
    """`Method.solve`, replayed from a CUDA graph if the last steps were like this one; never on other devices."""

    def __init__(self) -> None:
        self._graph: _Graph | None = None
        self._last: tuple = ()
        self._alike = 0  # equal steps in a row, other than those of the graph
        self._patience: float = _PATIENCE

    def solve(self, method: Method, tasks: Sequence[Task], n: int) -> Solved:
        """The same as `method.solve(tasks, n)`, as new tensors."""
        if not _suit(method, tasks):
            return method.solve(tasks, n)
        key = _key(tasks, n)
        if self._graph is None or self._graph.key != key:
            self._alike = self._alike + 1 if key == self._last else 1
            self._last = key
            if self._alike <= self._patience or not self._recorded(method, tasks, n, key):
                return method.solve(tasks, n)
        assert self._graph is not None
        return self._graph.solve(tasks)

    def _recorded(self, method: Method, tasks: Sequence[Task], n: int, key: tuple) -> bool:
        """Try to record a graph for steps like this one; returns whether that succeeded."""
        self._graph, self._patience = None, 2 * self._patience  # frees the memory of the old graph
        try:
            self._graph = _Graph(method, tasks, n, key)
        except RuntimeError as error:
            self._patience = float("inf")
            said = str(error).splitlines()[0]
            warn(f"{method.kind}: steps are slower than they could be, as they cannot be a CUDA graph ({said}).")
        return self._graph is not None


class _Graph:
    """A recorded `Method.solve`, with the tensors that it reads from and writes to."""

    def __init__(self, method: Method, tasks: Sequence[Task], n: int, key: tuple) -> None:
        self.key = key
        self._inputs = [t.clone() for t in _tensors(tasks)]
        self._seen: list[tuple[Tensor | None, int]] = [(None, 0)] * len(self._inputs)  # what was copied into each last
        placed = _placed(tasks, self._inputs)
        solved, self._replay = record(lambda: method.solve(placed, n))
        known = {id(t) for t in self._inputs}
        written = [t for parts, state in solved for t in (*parts.values(), *state.values()) if id(t) not in known]
        self._outputs = written
        index = {id(t): i for i, t in enumerate([*self._inputs, *written])}
        self._solved = [
            ({name: index[id(t)] for name, t in parts.items()}, {name: index[id(t)] for name, t in state.items()})
            for parts, state in solved
        ]

    def solve(self, tasks: Sequence[Task]) -> Solved:
        """Replay the graph for other tasks with the same key."""
        given, states = _tensors(tasks), {id(t) for task in tasks for t in task.state.values()}
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


def _suit(method: Method, tasks: Sequence[Task]) -> bool:
    """Whether the tasks depend on gradients and states only, are small enough, and are on one GPU."""
    if method.fresh:
        return False
    devices = {t.device for task in tasks for t in task.raw.values()}
    if {device.type for device in devices} != {"cuda"} or len(devices) > 1 or torch.cuda.is_current_stream_capturing():
        return False
    return sum(t.numel() for task in tasks for t in task.raw.values()) <= _LARGEST


def _key(tasks: Sequence[Task], n: int) -> tuple:
    """Everything that a graph depends on, except for the values of its inputs."""
    sizes = tuple((t.shape, t.dtype) for t in _tensors(tasks))
    names = tuple((task.layer, task.damping, task.full is task.raw, tuple(task.state)) for task in tasks)
    return n, torch.backends.cuda.matmul.fp32_precision, names, sizes


def _tensors(tasks: Sequence[Task]) -> list[Tensor]:
    """All tensors that the tasks read."""
    return [t for task in tasks for parts in _mappings(task) for t in parts.values()]


def _placed(tasks: Sequence[Task], places: Sequence[Tensor]) -> list[Task]:
    """The same tasks, reading from these tensors instead."""
    rest = iter(places)
    found = []
    for task in tasks:
        raw, state, *full = ({name: next(rest) for name in parts} for parts in _mappings(task))
        found.append(replace(task, raw=raw, full=full[0] if full else raw, state=state, passes=()))
    return found


def _mappings(task: Task) -> list[Parts]:
    return [task.raw, task.state] if task.full is task.raw else [task.raw, task.state, task.full]
