"""Which call of the model a layer was called in, and so with which samples; and where these are in its output."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, get_gradient_edge

from torchtangent.jacobians.graph import Graph
from torchtangent.jacobians.layout import SHARED, find_strides
from torchtangent.optim.recorded import Batch, Stride


class Calls:
    """The calls of a model: those with equally many samples before one backward pass are one batch.

    Attributes:
        axis: That of samples in the model's input.
        current: The batch of the last call.
        inside: Whether the model is being called, not a part of it.
    """

    def __init__(self) -> None:
        self.axis = 0
        self.current: Batch | None = None
        self.inside = False
        self._inputs: set[tuple] = set()  # where they are
        self._outputs: list[tuple[GradientEdge, Stride]] = []  # of layers that want to know their samples' stride
        self._parts: dict[str, int] | None = None  # rows of the parts that were called instead, if any were
        self._met: dict[int, list[Batch]] = defaultdict(list)  # the batches that a backward pass came to so far

    def begin(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """The model is called."""
        first, every = ([t for t in _tensors(x) if t.dim() > self.axis] for x in (args[:1], [*args, *kwargs.values()]))
        self._inputs = {place_of(t) for t in every}
        self.inside, self._parts, self._outputs = True, None, []
        if every:
            told = any(t.shape[self.axis] != 1 for t in first)
            self._open(_samples(first if told else every, self.axis))
        else:
            self.current = None  # the first layer will tell

    def end(self, y: Any) -> None:
        """It was called: a pass that comes to its output comes to its batch."""
        batch, inside, outputs = self.current, self.inside, self._outputs
        self.inside, self._outputs = False, []
        if inside and batch is not None:
            found = [t for t in _tensors(y) if t.grad_fn is not None]
            for t in found:
                t.register_hook(partial(self.meet, batch))
            if outputs and self.axis == 0 and batch.samples > 1:
                _tell([t for t in found if t.dim() and len(t) == batch.samples], outputs)

    def clear(self) -> None:
        """Forget backward passes, and a call that failed; one that was not differentiated yet still counts."""
        if self.current is not None and self.current.begun:
            self.current = None
        self.inside, self._outputs = False, []
        self._met.clear()

    def is_input(self, x: Tensor) -> bool:
        """Whether the model was given it."""
        return place_of(x) in self._inputs

    def stride_of(self, y: Tensor) -> Stride:
        """Where samples are in the output of a layer, which will be known after the call of the model."""
        stride = Stride()
        if self.inside:
            self._outputs.append((get_gradient_edge(y), stride))
        return stride

    def meet(self, batch: Batch, _: Tensor | None = None) -> None:
        """A backward pass came to a batch."""
        met = self._met[torch._C._current_graph_task_id()]
        if batch not in met:
            met.append(batch)

    def owner(self, path: str, rows: int) -> tuple[Batch, bool]:
        """The batch that a call of a layer with so many rows belongs to, and whether that is known for sure."""
        now = self.current
        if self.inside:
            free = now is not None and (not now.begun or in_backward())
            return (now if now is not None and free else self._open(rows)), True
        if in_backward():  # a checkpoint, which computes again what it did not keep
            met = self._met[torch._C._current_graph_task_id()] or ([] if now is None else [now])
            alike = [batch for batch in met if batch.samples == rows] or met
            return (alike[0] if alike else self._open(rows)), len(alike) < 2
        return self._owner_of_part(path, rows), True

    def _owner_of_part(self, path: str, rows: int) -> Batch:
        """The same where not the model is called but a part of it: its first layer's rows tell the samples."""
        now = self.current
        parts = self._parts or {}
        if now is None or now.begun:
            fits = False
        elif self._parts is None:  # the model was called before
            fits = now.samples == rows
        else:
            fits = rows % now.samples == 0 and parts.get(path, rows) == rows
        if now is None or not fits:
            now, parts = Batch(rows, opened=1, parts=True), {}
        self.current, self._parts = now, {**parts, path: rows}
        return now

    def _open(self, samples: int) -> Batch:
        now = self.current
        if now is None or now.begun or now.samples != samples:
            now = self.current = Batch(samples)
        now.opened += 1
        return now


def in_backward() -> bool:
    """Whether a layer is called by the backward pass: a checkpoint, which computes again what it did not keep."""
    return torch._C._current_graph_task_id() != -1


def place_of(t: Tensor) -> tuple:
    """Where a tensor is in memory."""
    try:
        return t.data_ptr(), t.shape, t.stride()
    except RuntimeError:  # it is sparse, or only pretended to be there, for `torch.export`
        return (id(t),)


def _tell(outputs: list[Tensor], layers: list[tuple[GradientEdge, Stride]]) -> None:
    """Say of each layer's output how far apart samples are in it, as far as the graph behind the model's tells.

    It cannot tell what happens in functions of one's own, in checkpoints, and in what was compiled.
    """
    for f in outputs:
        graph = Graph(f)
        opaque = any(isinstance(node, BackwardCFunction) for node in graph.nodes)
        found = find_strides(f, graph)
        for edge, stride in layers:
            known = found.get((edge.node, edge.output_nr))
            known = 0 if known == SHARED else known
            if known or (known == 0 and not opaque):
                stride.value = known if stride.value in (None, known) else 0


def _tensors(x: Any) -> list[Tensor]:
    """All tensors in a model's arguments."""
    if isinstance(x, Tensor):
        return [x]
    values = x.values() if isinstance(x, Mapping) else x if isinstance(x, list | tuple) else ()
    return [t for value in values for t in _tensors(value)]


def _samples(inputs: list[Tensor], axis: int) -> int:
    """How many samples there are: what most inputs say but those of length 1, of two equally many the larger ones."""
    lengths = [t.shape[axis] for t in inputs]
    several = [t for t in inputs if t.shape[axis] != 1] if max(lengths) > 1 else inputs
    votes = Counter(t.shape[axis] for t in several)
    best = max(several, key=lambda t: (votes[t.shape[axis]], t.dim()))  # the first of those
    return best.shape[axis]
