"""The hooks of an optimizer: they record what its layers were given, and what the backward pass sent back to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.utils.hooks import RemovableHandle

from torchtangent.jacobians.call import eagerly, engine_at_work, engine_at_work_anywhere
from torchtangent.jacobians.inputs import version_of
from torchtangent.optim.attention import Projection, Unread, has_tokens_first, projections, samples_of, tokens_first
from torchtangent.optim.calls import ModelCalls, in_backward, place_of
from torchtangent.optim.recorded import Batch, LayerCall, LayerUse, Pending, Stride
from torchtangent.optim.witness import Witness


class Recorder:
    """Records the uses of some layers in every backward pass, whether the model is in training or eval mode.

    An input is held by the autograd graph until its cotangent arrives, so a forward pass that is never differentiated
    leaves nothing behind. A copy of a recorder records nothing (copying a model copies its hooks).
    """

    def __init__(self) -> None:
        self.wanted: Set[str] = frozenset()  # paths of the layers to record
        self.welcome: Set[str] = frozenset()  # others, whose record saves work but is not needed
        self.batches: list[Batch] = []  # those with backward passes since the last `clear`
        self.witness = Witness()  # the gradients that recorded factors are checked against
        # A weak reference to what is called before the first forward pass of a step.
        self.follow: Callable[[], Callable[[], None] | None] = lambda: None
        self._reached: set[int] = set()  # ids of the backward passes that reached parameters
        self._added: set[int] = set()  # those that changed `.grad`, as torch.autograd.grad does not
        self._left: dict[str, tuple[Tensor, tuple]] = {}  # parameters, and the memory and version of their `.grad`
        self._aside = False
        self._calls = ModelCalls()
        self._door: list[RemovableHandle] = []  # hooks on the model itself, which stay
        self._handles: list[RemovableHandle] = []

    def __reduce__(self) -> tuple[type[Recorder], tuple[()]]:
        return Recorder, ()

    def attach(
        self, model: nn.Module, layers: Mapping[str, nn.Module], params: Mapping[str, Tensor], axis: int
    ) -> None:
        """Put hooks on a model, whose input has samples along `axis`, and on these layers, all of them wanted."""
        self._detach()
        self.wanted = frozenset(layers)
        if not self._door:
            self._door = [
                model.register_forward_pre_hook(self._begin, with_kwargs=True),
                model.register_forward_hook(self._end, always_call=True),
            ]
        for name, p in params.items():
            self._handles.append(p.register_hook(partial(self._coming, name)))
            self._handles.append(p.register_post_accumulate_grad_hook(partial(self._came, name)))
        self._calls.axis = axis
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
        """The number of samples in all batches."""
        return sum(batch.samples for batch in self.batches)

    @property
    def opened(self) -> int:
        """The number of samples in the last call of the model, if no backward pass was recorded since."""
        return self._calls.current.samples if self._calls.current is not None else 0

    def clear(self, *, done: bool = False) -> None:
        """Forget all backward passes. Forward passes that were not differentiated yet can still be recorded.

        With `done`, give up also the inputs that another pass through the same graphs would need: a graph lives as long
        as somebody holds its loss.
        """
        self._calls.clear()
        for batch in self.batches:  # a graph that is still alive refers to its batch
            batch.forget(done=done)
        self.batches = []
        self._reached, self._added, self._left = set(), set(), {}
        self.witness.clear()

    def settle(self) -> None:
        """Keep the passes that added to a `.grad`; if there are none, those that reached a parameter."""
        self._keep(self._added or self._reached)
        self.witness.settle()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """A context in which nothing is recorded."""
        self._aside = True
        try:
            yield
        finally:
            self._aside = False

    def _keep(self, tasks: Set[int]) -> None:
        """Forget all passes but these."""
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
        """The model is about to be called."""
        if not (self.attached and torch.is_grad_enabled()) or _by_others():
            return
        if self.batches and self._left and self._thrown_away(next(iter(self._left))):
            self.clear()
        if not in_backward():
            self._keep(self._reached)  # others differentiated inputs only, as for adversarial examples
            if not self.batches and (follow := self.follow()) is not None:
                follow()
        self._calls.begin(args, kwargs)

    @eagerly
    def _end(self, _: nn.Module, args: tuple[Any, ...], y: Any) -> None:
        """The model was called."""
        self._calls.end(y)

    def _thrown_away(self, name: str) -> bool:
        """Whether the gradients were cleared since the last pass, but not by us: `model.zero_grad()`, for instance."""
        if name not in self._left:
            return False
        p, left = self._left[name]
        if p.grad is None:
            return True
        if p.grad.is_sparse or (*place_of(p.grad), p.grad._version) == left:
            return False
        return not bool(p.grad.any())

    def _coming(self, name: str, grad: Tensor | None) -> None:
        """Autograd has computed the gradient of a parameter, and not yet added it to `.grad`."""
        if grad is None or self._aside or engine_at_work_anywhere():
            return
        if self._thrown_away(name):
            self._keep({torch._C._current_graph_task_id()})
            self._reached, self._added, self._left = set(), set(), {}
            self.witness.clear()
        self._reached.add(torch._C._current_graph_task_id())
        self.witness.coming(name, grad)

    def _came(self, name: str, p: Tensor) -> None:
        """Autograd has added to the `.grad` of a parameter."""
        if p.grad is not None and not self._aside and not engine_at_work_anywhere():
            self._added.add(torch._C._current_graph_task_id())
            self._left[name] = p, (*place_of(p.grad), p.grad._version)
            self.witness.came(name)

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
            x, version, training = x.detach(), version_of(x), module.training
            axis = self._calls.axis if axis is None and self._calls.is_input(x) else axis
            stride = self._calls.stride_of(y) if path in self.wanted else Stride()
            make = partial(LayerCall, x=x, version=version, training=training, axis=axis, doubt=doubt, stride=stride)
            self._expect(y.register_hook, path, len(x), make)

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
            self._expect(y.register_hook, path, samples, partial(Unread, why=why))
            return
        for node, operation in found:
            self._expect(partial(_hook_node, node), path, samples, partial(Projection.arrived, operation, samples))

    def _expect(self, register: Callable[[Callable], Any], path: str, rows: int, make: Callable[..., LayerUse]) -> None:
        """Register a hook that turns the cotangent, when it arrives, into a use of the layer in the current batch.

        Args:
            register: Registers the hook.
            path: The path of the layer.
            rows: The length of its input, from which the batch may be told.
            make: From the cotangent d to the use.
        """
        batch, sure = self._calls.owner(path, rows)
        if not sure:
            make = partial(Unread, why="a checkpoint computed it again, and it may belong to either of several calls")
        call, pending = batch.opened, Pending(make)

        def arrived(d: Tensor) -> None:
            if not self.attached or self._aside or batch.samples == 0:
                return
            if batch not in self.batches:
                self.batches.append(batch)
            self._calls.meet(batch)
            here = batch.passes[torch._C._current_graph_task_id()]
            here.calls.add(call)
            batch.again = batch.again or d.requires_grad
            if path not in self.wanted and path not in self.welcome:
                pending.make = None
            elif pending.make is None:
                here.lost.add(path)
            else:
                # d itself if it has no graph: from the reference autograd knows not to overwrite it.
                here.uses[path][pending] = pending.make(d=d.detach() if d.requires_grad else d)

        register(arrived)


def _hook_node(node: Node, arrived: Callable[[Tensor], None]) -> None:
    """Call `arrived` with the cotangent of a node's output; it must not refer to the node, or both would leak."""
    node.register_prehook(lambda grads: None if grads[0] is None else arrived(grads[0]))


def _by_others() -> bool:
    """Whether the model is called for another purpose: to compute a Jacobian, or inside `torch.func`."""
    return engine_at_work() or torch._C._functorch.peek_interpreter_stack() is not None
