"""In which call of the model, and so with which samples, a layer was called; and where these are in its output."""

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


class ModelCalls:
    """The calls of a model, grouped into batches: calls with equally many samples before one backward pass.

    Attributes:
        axis: The axis of samples in the model's input.
        current: The batch of the last call.
        inside: Whether the model is being called now; a layer that is called otherwise is part of no call.
    """

    def __init__(self) -> None:
        self.axis = 0
        self.current: Batch | None = None
        self.inside = False
        self._inputs: set[tuple] = set()  # where the model's inputs are in memory
        self._outputs: list[tuple[GradientEdge, Stride]] = []  # outputs of layers, to learn where samples are
        self._parts: dict[str, int] | None = None  # rows of parts called without the model, if any were
        self._met: dict[int, list[Batch]] = defaultdict(list)  # the batches that each backward pass has met

    def begin(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """The model is about to be called."""
        first, every = ([t for t in _tensors(x) if t.dim() > self.axis] for x in (args[:1], [*args, *kwargs.values()]))
        self._inputs = {place_of(t) for t in every}
        self.inside, self._parts, self._outputs = True, None, []
        if every:
            told = any(t.shape[self.axis] != 1 for t in first)
            self._open(_samples(first if told else every, self.axis))
        else:
            self.current = None  # the first layer will tell

    def end(self, y: Any) -> None:
        """The model was called: a backward pass that starts from its output meets its batch."""
        batch, inside, outputs = self.current, self.inside, self._outputs
        self.inside, self._outputs = False, []
        if inside and batch is not None:
            found = [t for t in _tensors(y) if t.grad_fn is not None]
            for t in found:
                t.register_hook(partial(self.meet, batch))
            if outputs and self.axis == 0 and batch.samples > 1:
                _tell([t for t in found if t.dim() and len(t) == batch.samples], outputs)

    def clear(self) -> None:
        """Forget backward passes, and a call that raised; a call that was not differentiated yet still counts."""
        if self.current is not None and self.current.begun:
            self.current = None
        self.inside, self._outputs = False, []
        self._met.clear()

    def is_input(self, x: Tensor) -> bool:
        """Whether x is an argument of the current call of the model."""
        return place_of(x) in self._inputs

    def stride_of(self, y: Tensor) -> Stride:
        """Where samples are in a layer's output: an object that is filled in when the call of the model ends."""
        stride = Stride()
        if self.inside:
            self._outputs.append((get_gradient_edge(y), stride))
        return stride

    def meet(self, batch: Batch, _: Tensor | None = None) -> None:
        """The current backward pass meets a batch."""
        met = self._met[torch._C._current_graph_task_id()]
        if batch not in met:
            met.append(batch)

    def owner(self, path: str, rows: int) -> tuple[Batch, bool]:
        """The batch that the call of a layer with this many rows belongs to, and whether that is certain."""
        now = self.current
        if self.inside:
            free = now is not None and (not now.begun or in_backward())
            return (now if now is not None and free else self._open(rows)), True
        if in_backward():  # a checkpoint recomputes it
            met = self._met[torch._C._current_graph_task_id()] or ([] if now is None else [now])
            alike = [batch for batch in met if batch.samples == rows] or met
            return (alike[0] if alike else self._open(rows)), len(alike) < 2
        return self._owner_of_part(path, rows), True

    def _owner_of_part(self, path: str, rows: int) -> Batch:
        """The same if a part of the model is called directly: the rows of its first layer count the samples."""
        now = self.current
        parts = self._parts or {}
        if now is None or now.begun:
            fits = False
        elif self._parts is None:  # the model itself was called before
            fits = now.samples == rows
        else:
            fits = rows % now.samples == 0 and parts.get(path, rows) == rows
        if now is None or not fits:
            now, parts = Batch(rows, opened=1, parts=True), {}
        self.current, self._parts = now, {**parts, path: rows}
        return now

    def _open(self, samples: int) -> Batch:
        """The batch for one more call with this many samples: the current one if it fits, or a new one."""
        now = self.current
        if now is None or now.begun or now.samples != samples:
            now = self.current = Batch(samples)
        now.opened += 1
        return now


def in_backward() -> bool:
    """Whether a backward pass is under way: a layer that is called in it is recomputed by a checkpoint."""
    return torch._C._current_graph_task_id() != -1


def place_of(t: Tensor) -> tuple:
    """Where a tensor is in memory."""
    try:
        return t.data_ptr(), t.shape, t.stride()
    except RuntimeError:  # it is sparse, or a fake tensor of `torch.export`
        return (id(t),)


def _tell(outputs: list[Tensor], layers: list[tuple[GradientEdge, Stride]]) -> None:
    """Fill in how far apart samples are in the output of each layer, as far as the graph of the model's outputs tells.

    It does not tell what happens in custom autograd functions, checkpoints and compiled parts.
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
    """The number of samples: the length that most inputs have, not counting length 1; ties go to more dimensions."""
    lengths = [t.shape[axis] for t in inputs]
    several = [t for t in inputs if t.shape[axis] != 1] if max(lengths) > 1 else inputs
    votes = Counter(t.shape[axis] for t in several)
    best = max(several, key=lambda t: (votes[t.shape[axis]], t.dim()))  # the first of those
    return best.shape[axis]
