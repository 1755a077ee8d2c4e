"""Derivatives that autograd cannot trace: those of linear maps, which are products with the adjoint, and of numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable

from torchtangent.operators.autocast import without_autocast

Map = Callable[[Tensor], Tensor]


def linear(times: Map, adjoint: Map, v: Tensor) -> Tensor:
    """times(v) for a linear map of columns, (rows, K) to (..., K), differentiable in v by means of its adjoint."""
    wanted = torch.is_grad_enabled() and v.requires_grad
    if not wanted and not torch.compiler.is_compiling():  # the compiler cannot look
        wanted = torch._C._functorch.is_functorch_wrapped_tensor(v) or forward_ad._current_level >= 0
    return _Linear.apply(v, times, adjoint) if wanted else times(v)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(v: Tensor, times: Map, adjoint: Map) -> Tensor:
        return times(v.detach())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Map, Map], output: Tensor) -> None:
        _, ctx.times, ctx.adjoint = inputs

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], v: Tensor, times: Map, adjoint: Map) -> tuple[Tensor, int]:
        """All vectors as columns of one product: inside of vmap random numbers and a GPU's backward passes fail."""
        assert in_dims[0] is not None
        columns = v.movedim(in_dims[0], -1)
        product = linear(times, adjoint, columns.flatten(-2)).unflatten(-1, columns.shape[-2:])
        return product, product.dim() - 1

    @staticmethod
    @without_autocast
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:
        return linear(ctx.times, ctx.adjoint, tangent)

    @staticmethod
    @without_autocast
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor, None, None]:
        return linear(ctx.adjoint, ctx.times, u), None, None


def with_slope(value: Tensor, slope: Callable[[], Tensor], at: Tensor) -> Tensor:
    """The value of a function of one number, whose derivative by it is computed if a backward pass asks for that."""
    return _Value.apply(at, value, slope) if torch.is_grad_enabled() and at.requires_grad else value


class _Value(torch.autograd.Function):
    @staticmethod
    def forward(at: Tensor, value: Tensor, slope: Callable[[], Tensor]) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Callable[[], Tensor]], output: Tensor) -> None:
        at, _, ctx.slope = inputs
        ctx.like = torch.empty_like(at)

    @staticmethod
    @once_differentiable
    @without_autocast
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor, Tensor, None]:
        return (u * ctx.slope()).to(ctx.like).view_as(ctx.like), u, None
