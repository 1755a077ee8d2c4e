"""float32 convolutions on the tensor cores of a GPU, as sums of TF32 products.

Each number is split into its leading 11 bits and the rest, x = h + l and w = h′ + l′. Then x·w ≈ h·h′ + (h·l′ + l·h′):
three products in TF32 are nearly as exact as one in float32, and faster. Tensor cores truncate the low bits of their
running sum instead of rounding, an error that grows with the number of terms; so h·h′ is summed in pieces.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from torchtangent.jacobians.call import float32_products

_TERMS = 576  # terms of a piece: its relative error is then 1e-6
_FEWEST = 1024  # with fewer terms a convolution in float32 is faster
_MASK = -(1 << 13)  # selects the bits of a float32 that TF32 keeps

aten = torch.ops.aten


class SplitConvolutions(TorchDispatchMode):
    """A mode that splits large float32 convolutions on a GPU, in the forward pass and in the gradients of inputs."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True would import torch._dynamo, which takes a second

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        if func is aten.convolution.default:
            x, weight, bias, *geometry = args
            if _suits(x, weight, geometry, terms=weight[0].numel()):
                y = convolve(x, weight, geometry)
                return y if bias is None else y.add_(bias.view(-1, *[1] * (y.dim() - 2)))
        if func is aten.convolution_backward.default:
            g, x, weight, _, *geometry, wanted = args
            if wanted == [True, False, False] and _suits(g, weight, geometry, terms=weight[:, 0].numel()):
                return pull_back(g, x, weight, geometry), None, None
        return func(*args, **(kwargs or {}))


def convolve(x: Tensor, weight: Tensor, geometry: list[Any]) -> Tensor:
    """The convolution of x, (N, channels, ...), with a weight (O, channels, *taps)."""

    def one(x: Tensor, weight: Tensor) -> Tensor:
        return aten.convolution(x, weight, None, *geometry)

    return _in_pieces(one, x, weight, axis=1)


def pull_back(g: Tensor, x: Tensor, weight: Tensor, geometry: list[Any]) -> Tensor:
    """The cotangent of a convolution's input x, from the cotangent g of its output."""

    def one(g: Tensor, weight: Tensor) -> Tensor:
        return aten.convolution_backward(g, x, weight, None, *geometry, [True, False, False])[0]

    return _in_pieces(one, g, weight, axis=0)


def _in_pieces(product: Callable[[Tensor, Tensor], Tensor], x: Tensor, weight: Tensor, axis: int) -> Tensor:
    """The split product: sums run over the channels of x, which are the given axis of the weight."""
    x, weight = _split(x, 1), _split(weight, axis)
    (high, _), (w_high, w_low) = x.chunk(2, 1), weight.chunk(2, axis)
    step = max(1, _TERMS // weight[0, 0].numel())
    with float32_products(convolution="tf32"):
        total = product(x, torch.cat([w_low, w_high], axis))
        for a, b in zip(high.split(step, 1), w_high.split(step, axis), strict=True):
            total += product(a, b)
    return total


def _split(x: Tensor, axis: int) -> Tensor:
    """[h, l] along an axis: the leading bits of all numbers, then the rests."""
    both = torch.cat([x, x], axis)
    high, low = both.chunk(2, axis)
    high.view(torch.int32).bitwise_and_(_MASK)
    low -= high
    return both


def _suits(x: Tensor, weight: Tensor, geometry: list[Any], terms: int) -> bool:
    """Whether a convolution can be split, and is large enough to be faster."""
    *_, transposed, _, groups = geometry
    plain = groups == 1 and not transposed and x.dtype == weight.dtype == torch.float32
    return plain and x.is_cuda and terms >= _FEWEST
