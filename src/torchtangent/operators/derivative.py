"""Derivatives of linear maps that autograd cannot trace: they are products with the adjoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchtangent.operators.autocast import without_autocast

Map = Callable[[Tensor], Tensor]


def linear(times: Map, adjoint: Map, v: Tensor) -> Tensor:
    """times(v) for a linear map, differentiable in v by means of its adjoint."""
    if not (torch.is_grad_enabled() and v.requires_grad):
        return times(v)
    return _Linear.apply(v, times, adjoint)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(v: Tensor, times: Map, adjoint: Map) -> Tensor:
        return times(v.detach())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Map, Map], output: Tensor) -> None:
        _, ctx.times, ctx.adjoint = inputs

    @staticmethod
    @without_autocast
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor, None, None]:
        return linear(ctx.adjoint, ctx.times, u), None, None
