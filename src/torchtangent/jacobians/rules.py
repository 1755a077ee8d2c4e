"""One small function per layer type: the layer's input and its cotangents in, the factors of its parameters out.

A rule is found by the exact type of the module (a subclass may compute something else), or by its name if it is of
another package, and registered by a decorator; the contract tests pick it up from `RULES`. `x` is the layer's input,
samples first, and `d` the cotangents of its output, (N, C, *output shape).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.modules.instancenorm import _InstanceNorm

from torchtangent.jacobians.factors import LayerJacobian, Lookup, Outer, Scale, outer
from torchtangent.jacobians.matrices import transposed_order
from torchtangent.jacobians.patches import Patches

Rule = Callable[..., dict[str, LayerJacobian]]
RULES: dict[type[nn.Module] | str, Rule] = {}


class NoRule(Exception):
    """A use of a parameter that no rule describes; it goes to the fallback."""


def rule(*types: type[nn.Module] | str) -> Callable[[Rule], Rule]:
    """Register a function for module types, those of other packages by their full name."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(types, function))
        return function

    return register


def rule_of(module: nn.Module) -> Rule | None:
    """The rule for a module. A `forward` that was put into this very object may compute anything."""
    if "forward" in vars(module):
        return None
    kind = type(module)
    return RULES.get(kind) or RULES.get(f"{kind.__module__}.{kind.__qualname__}")


def factors_of(module: nn.Module, x: Tensor, d: Tensor) -> dict[str, LayerJacobian]:
    """The factors of a module's parameters by its rule."""
    rule = rule_of(module)
    if rule is None:
        raise NoRule("it got another forward")
    return rule(module, x, d)


def row_axes(module: nn.Module, dims: int) -> int:
    """How many leading axes of a layer's output, of `dims` axes, are rows: all but those of its features.

    At least one, and one for layers of other types.
    """
    if isinstance(module, nn.LayerNorm | nn.RMSNorm):
        return max(1, dims - len(module.normalized_shape))
    return max(1, dims - 1) if isinstance(module, nn.Embedding) or is_linear(module) else 1


def is_linear(module: nn.Module) -> bool:
    """Whether a layer multiplies vectors by a matrix."""
    return isinstance(module, nn.Linear) or rule_of(module) is transposed_linear


def weight_order(module: nn.Module, dims: int) -> tuple[int, ...]:
    """The axes of a layer's weight (of one group) in the order of its matrix: first that of its outputs."""
    first_inputs = isinstance(module, _ConvTransposeNd) or rule_of(module) is transposed_linear
    return transposed_order(dims) if first_inputs else tuple(range(dims))


@rule(nn.Linear)
def linear(module: Any, x: Tensor, d: Tensor) -> dict[str, LayerJacobian]:
    """y[s] = W x[s] + b on any leading shape; all axes between samples and features are locations."""
    if x.dim() < 2:
        raise NoRule("a vector without a sample axis")
    N, C, O = d.shape[0], d.shape[1], d.shape[-1]
    d = d.reshape(N, C, -1, O)
    x = x.reshape(N, d.shape[2], x.shape[-1])
    return {"weight": outer(x, d, module.weight.shape), "bias": Scale(None, d, torch.Size((O,)))}


@rule("transformers.pytorch_utils.Conv1D")
def transposed_linear(module: Any, x: Tensor, d: Tensor) -> dict[str, LayerJacobian]:
    """y[s] = x[s] W + b, as in Hugging Face's GPT-2."""
    found = linear(module, x, d)
    weight = found["weight"]
    assert isinstance(weight, Outer)
    return found | {"weight": replace(weight, order=transposed_order(2))}


@rule(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def conv(module: _ConvNd, x: Tensor, d: Tensor) -> dict[str, LayerJacobian]:
    """y[s] = W patch(x)[s] + b; a group is a convolution of its own channels."""
    _require_batched(module, x)
    return _convolution(module, x, d, Patches.of(module), tuple(range(module.weight.dim())))


@rule(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
def conv_transpose(module: _ConvTransposeNd, x: Tensor, d: Tensor) -> dict[str, LayerJacobian]:
    """y[s] = W a[s] + b where a[s] holds the inputs that reach s, one for each channel and tap."""
    _require_batched(module, x)
    return _convolution(module, x, d, Spread(module, d.shape[3:]), weight_order(module, module.weight.dim()))


def _convolution(
    module: _ConvNd, x: Tensor, d: Tensor, locate: Callable, order: tuple[int, ...]
) -> dict[str, LayerJacobian]:
    N, C, O = d.shape[:3]
    d = d.reshape(N, C, O, -1)
    grouped = d.unflatten(2, (module.groups, -1)).permute(0, 2, 1, 4, 3)
    return {
        "weight": Outer(x, locate, grouped, module.weight.shape, order),
        "bias": Scale(None, d.transpose(2, 3), torch.Size((O,))),
    }


@dataclass(frozen=True)
class Spread:
    """The geometry of a transposed convolution; called on its input it gives what its taps read, (N, G, S, I).

    Args:
        module: The layer.
        size: Of its output.
    """

    module: _ConvTransposeNd
    size: torch.Size

    def __call__(self, x: Tensor) -> Tensor:
        m, N, channels = self.module, x.shape[0], x.shape[1]
        taps = math.prod(m.kernel_size)
        one_hot = torch.eye(taps, dtype=x.dtype, device=x.device).view(1, taps, *m.kernel_size)
        geometry = zip(self.size, x.shape[2:], m.kernel_size, m.stride, m.padding, m.dilation, strict=True)
        extra = [o - ((n - 1) * s - 2 * int(p) + g * (k - 1) + 1) for o, n, k, s, p, g in geometry]
        spread = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[len(self.size) - 1]
        a = spread(
            x,
            one_hot.expand(channels, *one_hot.shape[1:]),
            stride=m.stride,
            padding=[int(p) for p in m.padding],
            output_padding=extra,
            groups=channels,
            dilation=m.dilation,
        )
        return a.reshape(N, m.groups, -1, math.prod(self.size)).transpose(2, 3)


def _require_batched(module: _ConvNd, x: Tensor) -> None:
    if x.dim() != module.weight.dim():
        raise NoRule("an input without a sample axis")


@rule(nn.Embedding)
def embedding(module: nn.Embedding, x: Tensor, d: Tensor) -> dict[str, LayerJacobian]:
    """Row x[s] of the table; the row of `padding_idx` has no gradient."""
    N, C, O = d.shape[0], d.shape[1], d.shape[-1]
    index, d = x.reshape(N, -1), d.reshape(N, C, -1, O)
    if module.padding_idx is not None:
        d = d * (index != module.padding_idx)[:, None, :, None]
    return {"weight": Lookup(index, d, module.weight.shape, module.padding_idx)}


@rule(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
def batch_norm(module: _BatchNorm, x: Tensor, d: Tensor) -> dict[str, LayerJacobian]:
    """In eval mode: x̂ = (x − running mean) / √(running variance + ε), channel by channel."""
    mean, variance = (t if t is None else t.to(x) for t in (module.running_mean, module.running_var))
    normal = F.batch_norm(x, mean, variance, eps=module.eps)
    return _channel_scale(normal, d)


@rule(nn.GroupNorm)
def group_norm(module: nn.GroupNorm, x: Tensor, d: Tensor) -> dict[str, LayerJacobian]:
    return _channel_scale(F.group_norm(x, module.num_groups, eps=module.eps), d)


@rule(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
def instance_norm(module: _InstanceNorm, x: Tensor, d: Tensor) -> dict[str, LayerJacobian]:
    if x.dim() != 2 + int(type(module).__name__[-2]):
        raise NoRule("an input without a sample axis")
    own = module.running_mean is None
    normal = F.instance_norm(x, module.running_mean, module.running_var, use_input_stats=own, eps=module.eps)
    return _channel_scale(normal, d)


@rule(nn.LayerNorm)
def layer_norm(module: nn.LayerNorm, x: Tensor, d: Tensor) -> dict[str, LayerJacobian]:
    shape = tuple(module.normalized_shape)
    return _trailing_scale(F.layer_norm(x, shape, eps=module.eps), d, shape)


@rule(nn.RMSNorm)
def rms_norm(module: nn.RMSNorm, x: Tensor, d: Tensor) -> dict[str, LayerJacobian]:
    shape = tuple(module.normalized_shape)
    return _trailing_scale(F.rms_norm(x, shape, eps=module.eps), d, shape)


@rule(nn.PReLU)
def prelu(module: nn.PReLU, x: Tensor, d: Tensor) -> dict[str, LayerJacobian]:
    """y = max(0, x) + w min(0, x), with one w for all or one per channel."""
    negative = x.clamp(max=0)
    if module.num_parameters > 1:
        return {"weight": _channel_scale(negative, d)["weight"]}
    N, C = d.shape[:2]
    return {"weight": Scale(negative.reshape(N, -1, 1), d.reshape(N, C, -1, 1), module.weight.shape)}


def _channel_scale(normal: Tensor, d: Tensor) -> dict[str, LayerJacobian]:
    """y = w x̂ + b with one w and b per channel (axis 1 of the layer's input)."""
    if normal.dim() < 2:
        raise NoRule("an input without a sample axis")
    N, C, K = d.shape[:3]
    d = d.reshape(N, C, K, -1).transpose(2, 3)
    shape = torch.Size((K,))
    return {
        "weight": Scale(normal.reshape(N, K, -1).transpose(1, 2), d, shape),
        "bias": Scale(None, d, shape),
    }


def _trailing_scale(normal: Tensor, d: Tensor, shape: tuple[int, ...]) -> dict[str, LayerJacobian]:
    """y = w * x̂ + b with w and b of the shape of the last axes."""
    if normal.dim() <= len(shape):
        raise NoRule("an input without a sample axis")
    N, C, K = d.shape[0], d.shape[1], math.prod(shape)
    d = d.reshape(N, C, -1, K)
    return {
        "weight": Scale(normal.reshape(N, -1, K), d, torch.Size(shape)),
        "bias": Scale(None, d, torch.Size(shape)),
    }
