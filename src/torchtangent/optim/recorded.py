"""What an optimizer's hooks record: uses of layers, backward passes through them, and the samples of a batch."""

from __future__ import annotations

from collections import defaultdict
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
from torchtangent.jacobians.rules import RULES, NoRule, row_axes
from torchtangent.optim.attention import Projection, Unread


@dataclass(eq=False)
class Stride:
    """How far apart samples are in a tensor, as the graph behind the model's output tells (see jacobians/layout.py).

    Attributes:
        value: 0 if it is known not to be told, None if it is not known.
    """

    value: int | None = None


class Call(NamedTuple):
    """One call of a layer with a rule.

    Attributes:
        x: Its input.
        version: How often x had been written to when the layer saw it.
        d: The cotangent of its output.
        training: Whether the layer was in training mode.
        axis: That of samples, if it is known.
        doubt: Whether some layers of the model see tokens first, perhaps this one.
        stride: Of samples in the output.
    """

    x: Tensor
    version: int
    d: Tensor
    training: bool
    axis: int | None
    doubt: bool
    stride: Stride

    def factors(self, module: nn.Module, n: int) -> dict[str, LayerJacobian]:
        """The factors of the layer's parameters, by their names in it, in a batch of n samples."""
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
        found = RULES[type(module)](_as_it_was(module, self), wide(x), wide(d).unsqueeze(1))
        return found if rows == n else {name: jacobian.regroup(n) for name, jacobian in found.items()}

    def _as_told(self, module: nn.Module, n: int, stride: int) -> tuple[Tensor, Tensor]:
        """Rows sample by sample, as the graph says that they are."""
        axes = row_axes(module, self.d.dim())
        inner = inner_axis(stride, self.d.numel(), self.d.shape[:axes].numel(), n)
        if inner is False:
            return self.x, self.d
        x, d = self.x.flatten(0, axes - 1), self.d.flatten(0, axes - 1)
        if not inner or len(x) != len(d) or len(d) % n:
            raise NoRule(f"its rows are not samples, one after the other, in {tuple(self.d.shape)}")
        return outward(x, n), outward(d, n)

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
class Pass:
    """One backward pass.

    Attributes:
        uses: For each layer (by its path) the uses that it went through, by what was called.
        calls: The calls of the model that it went through.
        lost: Layers of which it met a use whose input has already been given up.
    """

    uses: dict[str, dict[int, Use]] = field(default_factory=lambda: defaultdict(dict))
    calls: set[int] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)


@dataclass(eq=False)
class Batch:
    """Some samples, and the backward passes that went through them.

    Attributes:
        samples: How many.
        opened: How many calls of the model may belong to it.
        passes: By autograd's number for each.
        inputs: Of layers in these passes, by what was called, each with the place where the graph looks for it.
        again: Whether cotangents can be differentiated again, as where a loss is made of gradients.
        parts: Whether parts of the model were called, not the model: samples are the rows of the first.
    """

    samples: int
    opened: int = 0
    again: bool = False
    parts: bool = False
    passes: dict[int, Pass] = field(default_factory=lambda: defaultdict(Pass))
    inputs: dict[int, tuple[list[Tensor | None], Tensor | None]] = field(default_factory=dict)

    @property
    def begun(self) -> bool:
        """Whether a backward pass went through it."""
        return bool(self.passes)

    @property
    def uses(self) -> dict[str, list[Use]]:
        """The uses of each layer: a second pass through the same use adds to its cotangent."""
        found: dict[str, dict[int, Use]] = defaultdict(dict)
        for each in self.passes.values():
            for path, uses in each.uses.items():
                for key, use in uses.items():
                    before = found[path].get(key)
                    found[path][key] = use if before is None else use._replace(d=before.d + use.d)
        return {path: list(uses.values()) for path, uses in found.items()}

    @property
    def calls(self) -> set[int]:
        """The calls of the model that passes went through."""
        return {call for each in self.passes.values() for call in each.calls}

    def forget(self, *, done: bool) -> None:
        """Let go of what was recorded. A graph that may be differentiated again gets its inputs back."""
        for place, x in self.inputs.values():
            place.extend([] if done else [x])
        self.inputs.clear()
        self.passes.clear()


def _counts(index: Tensor) -> bool:
    """Whether it is 0, 1, 2, …"""
    return torch.equal(index, torch.arange(len(index), device=index.device, dtype=index.dtype))


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
