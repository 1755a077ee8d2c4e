"""Hooks that live with an optimizer: what its layers saw, and what the loss's own backward pass sent back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.utils.hooks import RemovableHandle

from torchtangent.jacobians.call import eagerly, engine_at_work
from torchtangent.jacobians.factors import LayerJacobian
from torchtangent.jacobians.inputs import leaves, wide
from torchtangent.jacobians.rules import RULES, NoRule, row_axes
from torchtangent.optim.attention import Projection, Unread, has_tokens_first, projections, samples_of, tokens_first
from torchtangent.optim.witness import Witness


class Call(NamedTuple):
    """One call of a layer with a rule.

    Attributes:
        x: Its input.
        d: The cotangent of its output.
        training: Whether the layer was in training mode.
        axis: That of samples, if it is known.
        doubt: Whether some layers of the model see tokens first, perhaps this one.
    """

    x: Tensor
    d: Tensor
    training: bool
    axis: int | None
    doubt: bool

    def factors(self, module: nn.Module, n: int) -> dict[str, LayerJacobian]:
        """The factors of the layer's parameters, by their names in it, in a batch of n samples."""
        x, d = self._samples_first(module, n)
        rows = len(x)
        if d.dim() == 0 or rows != len(d) or x.dim() <= len(getattr(module, "normalized_shape", ())):
            raise NoRule(f"from {tuple(x.shape)} to {tuple(d.shape)} it kept no sample axis, which should be the first")
        if rows == 0 or rows % n:
            raise NoRule(f"it saw {rows} rows for {n} samples")
        found = RULES[type(module)](_as_it_was(module, self), wide(x), wide(d).unsqueeze(1))
        return found if rows == n else {name: jacobian.regroup(n) for name, jacobian in found.items()}

    def _samples_first(self, module: nn.Module, n: int) -> tuple[Tensor, Tensor]:
        """Where tokens come before samples, which is known or the only possibility, the other way round."""
        if isinstance(module, nn.Embedding) and self.x.dim() == 1 and n > 1 and _counts(self.x):
            raise NoRule("the same positions for all samples")
        if n == 1 or row_axes(module, self.d.dim()) == 1 or self.d.shape[1] != n:
            return self.x, self.d
        either = len(self.d) % n == 0 and (len(self.d) > n or self.doubt)
        if either and self.axis is None:
            raise NoRule(f"of {tuple(self.d.shape)} either of two axes could be that of {n} samples")
        if self.axis == 1 or len(self.d) % n:
            return self.x.transpose(0, 1), self.d.transpose(0, 1)
        return self.x, self.d


Use = Call | Projection | Unread


@dataclass(eq=False)
class Batch:
    """One backward pass.

    Attributes:
        samples: How many went through it.
        uses: For each layer (by its path) the uses that it went through.
        opened: How many calls of the model may belong to it.
        calls: Those of them that it did go through.
        again: Whether its cotangents can be differentiated again, as where a loss is made of gradients.
    """

    samples: int
    uses: dict[str, list[Use]] = field(default_factory=lambda: defaultdict(list))
    opened: int = 0
    calls: set[int] = field(default_factory=set)
    again: bool = False


class Recorder:
    """Records the uses of some layers in every backward pass, in whatever mode the model is.

    An input is held by the autograd graph until its cotangent arrives, so what is never differentiated leaves nothing
    behind. Copies of a recorder (copies of the model take its hooks along) record nothing.
    """

    def __init__(self) -> None:
        self.wanted: Set[str] = frozenset()  # paths of the layers to record
        self.welcome: Set[str] = frozenset()  # of others, to record where it can be done: they save work
        self.batches: list[Batch] = []  # backward passes since the last `clear`
        self.witness = Witness()  # of parameters whose factors are to be checked
        self._params: list[Tensor] = []
        self._axis = 0  # of samples in the model's input
        self._inputs: set[tuple] = set()  # where these are
        self._current: Batch | None = None
        self._handles: list[RemovableHandle] = []

    def __reduce__(self) -> tuple[type[Recorder], tuple[()]]:
        return Recorder, ()

    def attach(
        self, model: nn.Module, layers: Mapping[str, nn.Module], params: Mapping[str, Tensor], axis: int = 0
    ) -> None:
        """Put the hooks on a model, whose input has samples along `axis`, and on its layers, which are all wanted."""
        self.close()
        self.wanted = frozenset(layers)
        self._params = list(params.values())
        self._handles = [model.register_forward_pre_hook(self._begin, with_kwargs=True)]
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
        return bool(self._handles)

    @property
    def samples(self) -> int:
        """Samples of all backward passes."""
        return sum(batch.samples for batch in self.batches)

    @property
    def opened(self) -> int:
        """Samples of the last call of the model, if no backward pass was recorded since."""
        return self._current.samples if self._current is not None else 0

    def clear(self) -> None:
        """Forget all backward passes; one that has not begun yet will still be recorded."""
        for batch in self.batches:  # a graph that is still alive knows its batch
            batch.uses.clear()
        if self._current in self.batches:
            self._current = None
        self.batches = []
        self.witness.clear()

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self.witness.watch({})
        self.clear()

    @eagerly
    def _begin(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The model is called: passes that meet in one backward pass over the same samples are one batch."""
        if not torch.is_grad_enabled() or _by_others():
            return
        if self.batches and self._thrown_away():
            self.clear()
        found = [t for t in leaves(args) + leaves(kwargs) if t.dim() > self._axis]
        self._inputs = {_place(t) for t in found}
        if found:
            self._open(found[0].shape[self._axis])

    def _thrown_away(self) -> bool:
        """Whether someone else cleared the gradients of what was recorded, `model.zero_grad()` for instance."""
        grads = [p.grad for p in self._params if p.grad is not None]
        return not any(g.is_sparse or bool(g.any()) for g in grads)  # mostly the first one tells

    def _open(self, samples: int) -> Batch:
        now = self._current
        if now is None or now in self.batches or now.samples != samples:
            now = self._current = Batch(samples)
        now.opened += 1
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
            self._expect(y.register_hook, path, len(x), lambda d: Call(x, d, training, axis, doubt))

    @eagerly
    def _attended(self, path: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], y: Any) -> None:
        """Attention was called."""
        assert isinstance(module, nn.MultiheadAttention)
        y = y[0]
        if not (y.requires_grad and self._handles) or _by_others():
            return
        samples, found = samples_of(module, args, kwargs), projections(module, args, kwargs, y)
        if found is None:
            self._expect(y.register_hook, path, samples, Unread)
            return
        for node, operation in found:
            self._expect(partial(_hook_node, node), path, samples, partial(Projection.arrived, operation, samples))

    def _expect(self, register: Callable[[Callable], Any], path: str, rows: int, make: Callable[[Tensor], Use]) -> None:
        """Register a hook for a cotangent that belongs to the current batch."""
        batch = self._current
        if batch is None or (batch in self.batches and not _in_backward()):
            # Only a part of the model was called: the first layer's input tells the number of samples.
            batch = self._open(rows)
        call = batch.opened

        def arrived(d: Tensor) -> None:
            if not self.attached:
                return
            if batch not in self.batches:
                self.batches.append(batch)
            batch.calls.add(call)
            batch.again = batch.again or d.requires_grad
            if path in self.wanted or path in self.welcome:
                # d itself where it has no graph: autograd then knows that it may not be written over.
                batch.uses[path].append(make(d.detach() if d.requires_grad else d))

        register(arrived)


def _hook_node(node: Node, arrived: Callable[[Tensor], None]) -> None:
    """Have it told the cotangent of a node's output. It must not know the node itself, or neither would ever go."""
    node.register_prehook(lambda grads: None if grads[0] is None else arrived(grads[0]))


def _by_others() -> bool:
    """Whether the model is called for something else: a Jacobian, or inside of `torch.func`."""
    return engine_at_work() or torch._C._functorch.peek_interpreter_stack() is not None


def _place(t: Tensor) -> tuple:
    """Where a tensor is in memory."""
    return t.data_ptr(), t.shape, t.stride()


def _counts(index: Tensor) -> bool:
    """Whether it is 0, 1, 2, …"""
    return torch.equal(index, torch.arange(len(index), device=index.device, dtype=index.dtype))


def _in_backward() -> bool:
    """Whether a layer is called by the backward pass: a checkpoint, which computes again what it did not keep."""
    return torch._C._current_graph_task_id() != -1


def _as_it_was(module: nn.Module, use: Call) -> nn.Module:
    """The layer as a function of its parameters: in training mode a norm takes its statistics from the batch."""
    own = use.training or getattr(module, "running_mean", None) is None
    if isinstance(module, _InstanceNorm):
        return type(module)(module.num_features, eps=module.eps) if own else module
    if isinstance(module, _BatchNorm) and own:
        x = wide(use.x)
        frozen = type(module)(module.num_features, eps=module.eps, affine=False)
        axes = [axis for axis in range(x.dim()) if axis != 1]
        frozen.running_var, frozen.running_mean = torch.var_mean(x, axes, correction=0)
        return frozen
    return module
