"""Hooks that live with an optimizer: what its layers saw, and what the loss's own backward pass sent back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.utils.hooks import RemovableHandle

from torchtangent.jacobians.factors import LayerJacobian
from torchtangent.jacobians.inputs import leaves
from torchtangent.jacobians.rules import RULES, NoRule
from torchtangent.optim.witness import Witness


class Use(NamedTuple):
    """One call of a layer: its input and the cotangent of its output."""

    x: Tensor
    d: Tensor


@dataclass(eq=False)
class Batch:
    """One backward pass: its samples, and for each layer (by its path) the uses that it went through."""

    samples: int
    uses: dict[str, list[Use]] = field(default_factory=lambda: defaultdict(list))


class Recorder:
    """Records the uses of some layers in every backward pass, in whatever mode the model is.

    An input is held by the autograd graph until its cotangent arrives, so what is never differentiated leaves nothing
    behind. Copies of a recorder (copies of the model take its hooks along) record nothing.
    """

    def __init__(self) -> None:
        self.wanted: Set[str] = frozenset()  # paths of the layers to record
        self.batches: list[Batch] = []  # backward passes since the last `clear`
        self.witness: Witness | None = None  # until the factors were checked once
        self._params: list[Tensor] = []
        self._current: Batch | None = None
        self._handles: list[RemovableHandle] = []

    def __reduce__(self) -> tuple[type[Recorder], tuple[()]]:
        return Recorder, ()

    def attach(self, model: nn.Module, layers: Mapping[str, nn.Module], params: Mapping[str, Tensor]) -> None:
        """Put the hooks on a model, on its layers (all of which are wanted) and on their parameters."""
        self.close()
        self.wanted = frozenset(layers)
        self.witness, self._params = Witness(params), list(params.values())
        self._handles = [model.register_forward_pre_hook(self._begin, with_kwargs=True)]
        for path, module in layers.items():
            hook = partial(self._seen, path)
            self._handles.append(module.register_forward_hook(hook, prepend=True, with_kwargs=True))

    @property
    def attached(self) -> bool:
        """Whether the hooks are there."""
        return bool(self._handles)

    @property
    def samples(self) -> int:
        """Samples of all backward passes."""
        return sum(batch.samples for batch in self.batches)

    def clear(self) -> None:
        """Forget all backward passes; one that has not begun yet will still be recorded."""
        self.batches = []
        if self.witness is not None:
            self.witness.clear()

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self.dismiss()
        self.clear()

    def dismiss(self) -> None:
        """The factors were checked."""
        if self.witness is not None:
            self.witness.close()
            self.witness = None

    def _begin(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The model is called: passes that meet in one backward pass over the same samples are one batch."""
        if not torch.is_grad_enabled():
            return
        if self.batches and all(p.grad is None for p in self._params):
            self.clear()  # gradients were thrown away, by model.zero_grad() for instance
        found = leaves(args) + leaves(kwargs)
        if found:
            self._open(len(found[0]))

    def _open(self, samples: int) -> Batch:
        now = self._current
        if now is None or now.uses or now.samples != samples:
            now = self._current = Batch(samples)
        return now

    def _seen(self, path: str, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], y: Any) -> None:
        x = args[0] if args else kwargs.get("input")
        if not (isinstance(y, Tensor) and y.requires_grad and isinstance(x, Tensor) and x.dim() and self._handles):
            return
        batch = self._current
        if batch is None or (batch.uses and batch not in self.batches):
            # Only a part of the model was called: the first layer's input tells the number of samples.
            batch = self._open(len(x))
        x = x.detach()

        def arrived(d: Tensor) -> None:
            if batch not in self.batches:
                self.batches.append(batch)
            if path in self.wanted:
                batch.uses[path].append(Use(x, d.detach()))

        y.register_hook(arrived)


def factors(module: nn.Module, use: Use, n: int) -> dict[str, LayerJacobian]:
    """The factors of a layer's parameters for one use in a batch of n samples, by the layer's rule."""
    rows = len(use.d)
    if len(use.x) != rows or rows == 0 or rows % n:
        raise NoRule(f"it saw {len(use.x)} rows for {n} samples")
    found = RULES[type(module)](_as_it_was(module, use.x), _wide(use.x), _wide(use.d).unsqueeze(1))
    return found if rows == n else {name: jacobian.regroup(n) for name, jacobian in found.items()}


def _as_it_was(module: nn.Module, x: Tensor) -> nn.Module:
    """The layer as a function of its parameters: in training mode a norm takes its statistics from the batch."""
    if isinstance(module, _InstanceNorm):
        own = module.training or module.running_mean is None
        return type(module)(module.num_features, eps=module.eps) if own else module
    if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
        x = _wide(x)
        frozen = type(module)(module.num_features, eps=module.eps, affine=False)
        axes = [axis for axis in range(x.dim()) if axis != 1]
        frozen.running_mean, frozen.running_var = x.mean(axes), x.var(axes, correction=0)
        return frozen
    return module


def _wide(t: Tensor) -> Tensor:
    """Half precision becomes float32: sums are never taken below it."""
    return t.float() if t.dtype in (torch.float16, torch.bfloat16) else t
