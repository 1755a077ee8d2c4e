"""Hooks that live with an optimizer: what its layers saw, and what the loss's own backward pass sent back."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.utils.hooks import RemovableHandle

from torchtangent.jacobians.call import eagerly, engine_at_work, engine_at_work_anywhere
from torchtangent.jacobians.graph import Graph
from torchtangent.jacobians.layout import find_strides
from torchtangent.jacobians.operations import Operation
from torchtangent.optim.attention import Projection, Unread, has_tokens_first, projections, samples_of, tokens_first
from torchtangent.optim.uses import Batch, Call, Use, version_of
from torchtangent.optim.witness import Witness


class Recorder:
    """Records the uses of some layers in every backward pass, in whatever mode the model is.

    An input is held by the autograd graph until its cotangent arrives, so what is never differentiated leaves nothing
    behind. Copies of a recorder (copies of the model take its hooks along) record nothing.
    """

    def __init__(self) -> None:
        self.wanted: Set[str] = frozenset()  # paths of the layers to record
        self.welcome: Set[str] = frozenset()  # of others, to record where it can be done: they save work
        self.batches: list[Batch] = []  # those with backward passes since the last `clear`
        self.witness = Witness()  # of parameters whose factors are to be checked
        self.follow: Callable[[], None] = lambda: None  # what is called before the first pass of a step
        self._reached: set[int] = set()  # the passes that came to parameters
        self._added: set[int] = set()  # those that added to their gradients, which `torch.autograd.grad` does not
        self._left: dict[str, tuple[Tensor, tuple]] = {}  # parameters, with where and how they left their gradients
        self._keys = count()
        self._aside = False
        self._axis = 0  # of samples in the model's input
        self._inputs: set[tuple] = set()  # where these are
        self._inside = False  # whether the model is being called, not a part of it
        self._edges: list[tuple[GradientEdge, dict[str, int]]] = []  # outputs of its layers, and where to say of what
        self._parts: dict[str, int] | None = None  # rows of the parts that were called instead, if any were
        self._current: Batch | None = None
        self._met: dict[int, list[Batch]] = defaultdict(list)  # the batches that a pass came to so far
        self._door: list[RemovableHandle] = []  # hooks of the model, which stay
        self._handles: list[RemovableHandle] = []

    def __reduce__(self) -> tuple[type[Recorder], tuple[()]]:
        return Recorder, ()

    def attach(
        self, model: nn.Module, layers: Mapping[str, nn.Module], params: Mapping[str, Tensor], axis: int = 0
    ) -> None:
        """Put the hooks on a model, whose input has samples along `axis`, and on its layers, which are all wanted."""
        self._detach()
        self.wanted = frozenset(layers)
        if not self._door:
            self._door = [
                model.register_forward_pre_hook(self._begin, with_kwargs=True),
                model.register_forward_hook(self._end),
            ]
        for name, p in params.items():
            self._handles.append(p.register_hook(partial(self._coming, name, p)))
            self._handles.append(p.register_post_accumulate_grad_hook(partial(self._came, name)))
        self._axis = axis
        swapped, doubt = tokens_first(model), has_tokens_first(model)
        for path, module in layers.items():
            own = 1 if axis == 1 or module in swapped else None
            hook: Callable[..., None] = partial(self._seen, path, axis=own, doubt=doubt)
            if isinstance(module, nn.MultiheadAttention):
                hook = partial(self._attended, path)
            self._handles.append(module.register_forward_hook(hook, prepend=True, with_kwargs=True))

    @property
    def attached(self) -> bool:
        """Whether the hooks are there."""
        return bool(self._door)

    @property
    def samples(self) -> int:
        """Samples of all batches."""
        return sum(batch.samples for batch in self.batches)

    @property
    def opened(self) -> int:
        """Samples of the last call of the model, if no backward pass was recorded since."""
        return self._current.samples if self._current is not None else 0

    def clear(self, *, done: bool = False) -> None:
        """Forget all backward passes; one that has not begun yet will still be recorded.

        With `done` also what one more pass through the same graph would need: graphs may live on with a loss.
        """
        for batch in self.batches:  # a graph that is still alive knows its batch
            batch.forget(done=done)
        if self._current in self.batches:
            self._current = None
        self.batches = []
        self._inside, self._edges = False, []  # nor is it after a call that failed
        self._met.clear()
        self._reached, self._added, self._left = set(), set(), {}
        self.witness.clear()

    def settle(self) -> None:
        """Forget passes that added to no gradient; if none did, those count whose gradients were asked for."""
        self._keep(self._added or self._reached)
        self.witness.settle()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """While this is open, nothing is recorded."""
        self._aside = True
        try:
            yield
        finally:
            self._aside = False

    def _keep(self, tasks: Set[int]) -> None:
        """Forget all passes but some."""
        for batch in self.batches:
            for task in batch.passes.keys() - tasks:
                del batch.passes[task]
        self.batches = [batch for batch in self.batches if batch.passes]

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._door:
            handle.remove()
        self._door = []
        self._detach()

    def _detach(self) -> None:
        """Remove all hooks but those of the model."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self.witness.watch(())
        self.clear()

    @eagerly
    def _begin(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The model is called: passes that meet in one backward pass over the same samples are one batch."""
        if not torch.is_grad_enabled() or _by_others():
            return
        if self.batches and self._left and self._thrown_away(next(iter(self._left))):
            self.clear()
        if not _in_backward():
            self._keep(self._reached)  # others were of inputs alone, as for adversarial examples
            if not self.batches:
                self.follow()
        first, every = ([t for t in _tensors(x) if t.dim() > self._axis] for x in (args[:1], [*args, *kwargs.values()]))
        self._inputs = {_place(t) for t in every}
        self._inside, self._parts, self._edges = True, None, []
        if every:
            told = any(t.shape[self._axis] != 1 for t in first)
            self._open(_samples(first if told else every, self._axis))
        else:
            self._current = None  # the first layer will tell

    @eagerly
    def _end(self, _: nn.Module, args: tuple[Any, ...], y: Any) -> None:
        """The model was called: a pass that comes to its output comes to its batch."""
        batch, inside, edges = self._current, self._inside, self._edges
        self._inside, self._edges = False, []
        if inside and batch is not None:
            outputs = [t for t in _tensors(y) if t.grad_fn is not None]
            for t in outputs:
                t.register_hook(partial(self._meet, batch))
            if edges and self._axis == 0 and batch.samples > 1:
                _tell_strides([t for t in outputs if t.dim() and len(t) == batch.samples], edges)

    def _meet(self, batch: Batch, _: Tensor | None = None) -> None:
        met = self._met[torch._C._current_graph_task_id()]
        if batch not in met:
            met.append(batch)

    def _thrown_away(self, name: str) -> bool:
        """Whether someone else cleared the gradients since the last pass, `model.zero_grad()` for instance."""
        if name not in self._left:
            return False
        p, left = self._left[name]
        if p.grad is None:
            return True
        if p.grad.is_sparse or (*_place(p.grad), p.grad._version) == left:
            return False
        return not bool(p.grad.any())

    def _coming(self, name: str, p: Tensor, grad: Tensor | None) -> None:
        """Autograd has the gradient of a parameter, but has not added it yet."""
        if grad is None or self._aside or engine_at_work_anywhere():
            return
        if self._thrown_away(name):
            self._keep({torch._C._current_graph_task_id()})
            self._reached, self._added, self._left = set(), set(), {}
            self.witness.clear()
        self._reached.add(torch._C._current_graph_task_id())
        self.witness.coming(name, grad)

    def _came(self, name: str, p: Tensor) -> None:
        """Autograd has added to the gradient of a parameter."""
        if p.grad is not None and not self._aside and not engine_at_work_anywhere():
            self._added.add(torch._C._current_graph_task_id())
            self._left[name] = p, (*_place(p.grad), p.grad._version)
            self.witness.came(name)

    def _open(self, samples: int) -> Batch:
        now = self._current
        if now is None or now in self.batches or now.samples != samples:
            now = self._current = Batch(samples)
        now.opened += 1
        return now

    def _owner(self, path: str, rows: int) -> tuple[Batch, bool]:
        """The batch that a call of a layer with so many rows belongs to, and whether that is known for sure."""
        now = self._current
        if self._inside:
            free = now is not None and (now not in self.batches or _in_backward())
            return (now if now is not None and free else self._open(rows)), True
        if _in_backward():  # a checkpoint, which computes again what it did not keep
            met = self._met[torch._C._current_graph_task_id()] or ([] if now is None else [now])
            alike = [batch for batch in met if batch.samples == rows] or met
            return (alike[0] if alike else self._open(rows)), len(alike) < 2
        return self._owner_of_part(path, rows), True

    def _owner_of_part(self, path: str, rows: int) -> Batch:
        """The same where not the model is called but a part of it: its first layer's rows tell the samples."""
        now = None if self._current in self.batches else self._current
        if now is not None and self._parts is None:  # the model was called before
            now = now if now.samples == rows else None
        elif now is not None and (rows % now.samples or (self._parts or {}).get(path, rows) != rows):
            now = None
        if now is None:
            now = self._current = Batch(rows, opened=1, parts=True)
            self._parts = None
        self._parts = {**(self._parts or {}), path: rows}
        return now

    @eagerly
    def _seen(
        self,
        path: str,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        y: Any,
        *,
        axis: int | None,
        doubt: bool,
    ) -> None:
        """A layer with a rule was called."""
        x = args[0] if args else kwargs.get("input")
        if not (isinstance(y, Tensor) and y.requires_grad and isinstance(x, Tensor) and x.dim()):
            return
        if self._handles and not _by_others():
            x, training = x.detach(), module.training
            axis = self._axis if axis is None and _place(x) in self._inputs else axis
            told: dict[str, int] = {}
            if self._inside and path in self.wanted:
                self._edges.append((get_gradient_edge(y), told))
            known = {"version": version_of(x), "training": training, "axis": axis, "doubt": doubt}
            make = partial(_called, known=known, told=told)
            self._expect(y.register_hook, path, len(x), make, x)

    @eagerly
    def _attended(self, path: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], y: Any) -> None:
        """Attention was called."""
        assert isinstance(module, nn.MultiheadAttention)
        y = y[0]
        if not (y.requires_grad and self._handles) or _by_others():
            return
        samples, found = samples_of(module, args, kwargs), projections(module, args, kwargs, y)
        if found is None:
            why = "its products cannot be read off autograd's graph (is it compiled, or in a checkpoint?)"
            self._expect(y.register_hook, path, samples, partial(_unread, why))
            return
        for node, operation in found:
            make = partial(_projected, operation, samples)
            self._expect(partial(_hook_node, node), path, samples, make)

    def _expect(
        self,
        register: Callable[[Callable], Any],
        path: str,
        rows: int,
        make: Callable[[Tensor, Any], Use],
        x: Tensor | None = None,
    ) -> None:
        """Register a hook for a cotangent that belongs to the current batch, and makes a use of it (with an input).

        The graph holds the input until the cotangent arrives, then the batch does.
        """
        batch, sure = self._owner(path, rows)
        if not sure:
            make = partial(_unread, "a checkpoint computed it again, and it may belong to either of several calls")
        call, key, place = batch.opened, next(self._keys), [x]
        del x  # or the hook would hold it too

        def arrived(d: Tensor) -> None:
            if not self.attached or self._aside or batch.samples == 0:
                return
            if batch not in self.batches:
                self.batches.append(batch)
            self._meet(batch)
            here = batch.passes[torch._C._current_graph_task_id()]
            here.calls.add(call)
            batch.again = batch.again or d.requires_grad
            if path not in self.wanted and path not in self.welcome:
                place.clear()
                return
            if place:
                batch.inputs[key] = place, place.pop()
            if key not in batch.inputs:
                here.lost.add(path)
                return
            # d itself where it has no graph: autograd then knows that it may not be written over.
            here.uses[path][key] = make(d.detach() if d.requires_grad else d, batch.inputs[key][1])

        register(arrived)


def _called(d: Tensor, x: Tensor, *, known: dict[str, Any], told: dict[str, int]) -> Call:
    return Call(x=x, d=d, stride=told.get("stride"), **known)


def _tell_strides(outputs: list[Tensor], edges: list[tuple[GradientEdge, dict[str, int]]]) -> None:
    """Say of each layer's output how far apart samples are in it, as far as the graph behind the model's tells.

    It cannot tell what happens in functions of one's own, in checkpoints, and in what was compiled.
    """
    for f in outputs:
        graph = Graph(f)
        opaque = any(isinstance(node, BackwardCFunction) for node in graph.nodes)
        found = find_strides(f, graph)
        for edge, told in edges:
            stride = found.get((edge.node, edge.output_nr))
            if stride or (stride == 0 and not opaque):
                told["stride"] = stride if told.get("stride", stride) == stride else 0


def _projected(operation: Operation, samples: int, d: Tensor, _: None) -> Projection:
    return Projection.arrived(operation, samples, d)


def _unread(why: str, d: Tensor, _: Any) -> Unread:
    return Unread(d, why)


def _hook_node(node: Node, arrived: Callable[[Tensor], None]) -> None:
    """Have it told the cotangent of a node's output. It must not know the node itself, or neither would ever go."""
    node.register_prehook(lambda grads: None if grads[0] is None else arrived(grads[0]))


def _by_others() -> bool:
    """Whether the model is called for something else: a Jacobian, or inside of `torch.func`."""
    return engine_at_work() or torch._C._functorch.peek_interpreter_stack() is not None


def _place(t: Tensor) -> tuple:
    """Where a tensor is in memory."""
    try:
        return t.data_ptr(), t.shape, t.stride()
    except RuntimeError:  # it is sparse, or only pretended to be there, for `torch.export`
        return (id(t),)


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


def _in_backward() -> bool:
    """Whether a layer is called by the backward pass: a checkpoint, which computes again what it did not keep."""
    return torch._C._current_graph_task_id() != -1
