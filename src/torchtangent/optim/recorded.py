"""What the hooks of an optimizer record: uses of layers, the backward passes through them, and batches of samples."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from torchtangent.jacobians.factors import LayerJacobian
from torchtangent.jacobians.inputs import version_of, wide
from torchtangent.jacobians.layout import inner_axis
from torchtangent.jacobians.rows import outward
from torchtangent.jacobians.rules import NoRule, factors_of, row_axes
from torchtangent.optim.attention import Projection, Unread


@dataclass(eq=False)
class Stride:
    """How far apart samples are in a tensor, according to the graph of the model's output (see jacobians/layout.py).

    Attributes:
        value: 0 if the tensor is in the graph but has no single stride, None if the graph says nothing about it.
    """

    value: int | None = None


class LayerCall(NamedTuple):
    """One call of a layer with a rule.

    Attributes:
        x: Its input.
        version: The version counter of x at the call, by which later writes are noticed.
        d: The cotangent of its output.
        training: Whether the layer was in training mode.
        axis: The axis of samples, if it is known.
        doubt: Whether some layers of the model see tokens first, so that this one may, too.
        stride: How far apart samples are in the output.
    """

    x: Tensor
    version: int
    d: Tensor
    training: bool
    axis: int | None
    doubt: bool
    stride: Stride

    def factors(self, module: nn.Module, n: int) -> dict[str, LayerJacobian]:
        """The factored Jacobians of the layer's parameters, by their names in it, for a batch of n samples."""
        if self.x.layout != torch.strided:
            raise NoRule(f"its input is no plain tensor, but {self.x.layout}")
        if version_of(self.x) != self.version:
            raise RuntimeError(
                "The input of a layer was written over between the forward pass and step(), so the curvature is lost: "
                "a buffer that holds the next batch, perhaps. Call step() before, or give the model a copy, x.clone()."
            )
        x, d = self._as_told(module, n, self.stride.value) if self.stride.value else self._samples_first(module, n)
        rows = len(x)
        if d.dim() == 0 or rows != len(d) or x.dim() <= len(getattr(module, "normalized_shape", ())):
            raise NoRule(f"from {tuple(x.shape)} to {tuple(d.shape)} it kept no sample axis, which should be the first")
        if rows == 0 or rows % n:
            raise NoRule(f"it saw {rows} rows for {n} samples")
        if rows != n and self.stride.value == 0:
            raise NoRule(f"of {rows} rows for {n} samples it is not known which are whose")
        found = factors_of(_as_it_was(module, self), wide(x), wide(d).unsqueeze(1))
        return found if rows == n else {name: jacobian.regroup(n) for name, jacobian in found.items()}

    def _as_told(self, module: nn.Module, n: int, stride: int) -> tuple[Tensor, Tensor]:
        """x and d with samples first, where the graph tells the stride of samples."""
        axes = row_axes(module, self.d.dim())
        inner = inner_axis(stride, self.d.numel(), self.d.shape[:axes].numel(), n)
        if inner is False:
            return self.x, self.d
        x, d = self.x.flatten(0, axes - 1), self.d.flatten(0, axes - 1)
        if not inner or len(x) != len(d) or len(d) % n:
            raise NoRule(f"its rows are not samples, one after the other, in {tuple(self.d.shape)}")
        return outward(x, n), outward(d, n)

    def _samples_first(self, module: nn.Module, n: int) -> tuple[Tensor, Tensor]:
        """x and d with samples first: transposed if tokens are known, or the only way, to come before samples."""
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


LayerUse = LayerCall | Projection | Unread


@dataclass(eq=False)
class Pending:
    """A use whose cotangent is still to come. The autograd graph holds it.

    Attributes:
        make: From the cotangent d to the use. It holds the layer's input, and is None once that was given up.
    """

    make: Callable[..., LayerUse] | None


@dataclass(eq=False)
class Pass:
    """One backward pass.

    Attributes:
        uses: The uses that it went through, by the path of the layer and by what was pending.
        calls: The calls of the model that it went through.
        lost: Paths of layers whose input had already been given up.
    """

    uses: dict[str, dict[Pending, LayerUse]] = field(default_factory=lambda: defaultdict(dict))
    calls: set[int] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)


@dataclass(eq=False)
class Batch:
    """Some samples, and the backward passes that went through them.

    Attributes:
        samples: The number of samples.
        opened: The number of calls of the model that may belong to it.
        passes: The passes, by autograd's number.
        again: Whether cotangents can be differentiated again, as if the loss contains gradients.
        parts: Whether parts of the model were called directly: samples are then the rows of the first.
    """

    samples: int
    opened: int = 0
    again: bool = False
    parts: bool = False
    passes: dict[int, Pass] = field(default_factory=lambda: defaultdict(Pass))

    @property
    def begun(self) -> bool:
        """Whether a backward pass went through it."""
        return bool(self.passes)

    @property
    def uses(self) -> dict[str, list[LayerUse]]:
        """The uses of each layer over all passes: a second pass through the same use adds to its cotangent."""
        found: dict[str, dict[Pending, LayerUse]] = defaultdict(dict)
        for each in self.passes.values():
            for path, uses in each.uses.items():
                for pending, use in uses.items():
                    before = found[path].get(pending)
                    found[path][pending] = use if before is None else use._replace(d=before.d + use.d)
        return {path: list(uses.values()) for path, uses in found.items()}

    @property
    def calls(self) -> set[int]:
        """The calls of the model that the passes went through."""
        return {call for each in self.passes.values() for call in each.calls}

    def forget(self, *, done: bool) -> None:
        """Drop what was recorded; if `done`, also the inputs that another pass through the graphs would need."""
        if done:
            for pending in (key for each in self.passes.values() for uses in each.uses.values() for key in uses):
                pending.make = None
        self.passes.clear()


def _counts(index: Tensor) -> bool:
    """Whether it is 0, 1, 2, …"""
    return torch.equal(index, torch.arange(len(index), device=index.device, dtype=index.dtype))


def _as_it_was(module: nn.Module, use: LayerCall) -> nn.Module:
    """A layer that computes what this one did at the call: BatchNorm in training mode used the batch's statistics."""
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
