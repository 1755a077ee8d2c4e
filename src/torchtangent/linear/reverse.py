"""f(x) and J v by reverse mode alone: for networks without forward mode, and for inputs that require a gradient."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from torchtangent.jacobians.call import eagerly, pull_back
from torchtangent.jacobians.products import transpose_twice
from torchtangent.linear.frozen import Args, Frozen, Kwargs, Tangent

Product = Callable[[Tensor, list[Tensor], Sequence[Tensor]], Tensor]


def reverse_twice(frozen: Frozen, v: Tangent, args: Args, kwargs: Kwargs) -> tuple[Tensor, Tensor]:
    """Two reverse passes: J v is the transpose of Jᵀu, which is linear in u."""
    if needs_gradient(args, kwargs):
        return _with_inputs(frozen, v, args, kwargs)
    return _at_a_point(transpose_twice, frozen, v, args, kwargs)


def row_by_row(frozen: Frozen, v: Tangent, args: Args, kwargs: Kwargs) -> tuple[Tensor, Tensor]:
    """One reverse pass per entry of f, for networks that can be differentiated only once."""
    return _at_a_point(_rows, frozen, v, args, kwargs)


def _rows(f: Tensor, at: list[Tensor], v: Sequence[Tensor]) -> Tensor:
    def times_v(entry: Tensor) -> Tensor:
        grads = torch.autograd.grad(entry, at, retain_graph=True, allow_unused=True)
        return sum(((g * t).sum() for g, t in zip(grads, v, strict=True) if g is not None), f.new_zeros(()))

    return torch.stack([times_v(entry) for entry in f.flatten()]).view_as(f)


class _Point(NamedTuple):
    """The point at which J is taken, with the graph of f there, and a function that computes J v."""

    product: Product
    frozen: Frozen
    at: Tangent
    f: Tensor


@eagerly
def _at_a_point(product: Product, frozen: Frozen, v: Tangent, args: Args, kwargs: Kwargs) -> tuple[Tensor, Tensor]:
    at = frozen.leaves(v)
    with torch.enable_grad():
        f = frozen.value(args, kwargs, at)
    return f.detach(), _Push.apply(_Point(product, frozen, at, f), *v.values())


class _Push(torch.autograd.Function):
    """v ↦ J v, whose derivative is Jᵀ: one reverse pass through the network."""

    @staticmethod
    def forward(ctx: Any, point: _Point, *v: Tensor) -> Tensor:
        ctx.point = point
        if not point.f.requires_grad:
            return torch.zeros_like(point.f)
        with torch.enable_grad(), point.frozen.at(point.at):
            return point.product(point.f, list(point.at.values()), v).detach()

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> tuple[Any, ...]:
        return None, *_Pull.apply(ctx.point, u)


class _Pull(torch.autograd.Function):
    """u ↦ Jᵀu, whose derivative is J: without it, second derivatives would silently vanish."""

    @staticmethod
    def forward(ctx: Any, point: _Point, u: Tensor) -> tuple[Tensor, ...]:
        ctx.point = point
        with point.frozen.at(point.at):
            return tuple(pull_back(point.f, point.at, u, keep_graph=True).values())

    @staticmethod
    def backward(ctx: Any, *v: Tensor) -> tuple[None, Tensor]:
        return None, _Push.apply(ctx.point, *v)


@eagerly
def _with_inputs(frozen: Frozen, v: Tangent, args: Args, kwargs: Kwargs) -> tuple[Tensor, Tensor]:
    leaves, spec = tree_flatten((args, kwargs))
    f = functools.partial(_value, frozen, leaves, spec)
    return _WithInputs.apply(frozen, f, list(v), *v.values(), *filter(_moves, leaves))


def _value(frozen: Frozen, leaves: list[Any], spec: TreeSpec, x: Sequence[Tensor]) -> Tensor:
    """f with x in the place of the inputs that require a gradient."""
    rest = iter(x)
    args, kwargs = tree_unflatten([next(rest) if _moves(t) else t for t in leaves], spec)
    return frozen(*args, **kwargs)


def _moves(t: Any) -> bool:
    return isinstance(t, Tensor) and t.requires_grad


def needs_gradient(args: Args, kwargs: Kwargs) -> bool:
    """Whether an input requires a gradient."""
    return torch.is_grad_enabled() and any(map(_moves, tree_leaves((args, kwargs))))


class _WithInputs(torch.autograd.Function):
    """f and J v as functions of v and of the inputs x."""

    @staticmethod
    def forward(
        ctx: Any, frozen: Frozen, f: Callable[[Sequence[Tensor]], Tensor], names: list[str], *tensors: Tensor
    ) -> tuple[Tensor, Tensor]:
        v, x = tensors[: len(names)], tensors[len(names) :]
        at, leaves = frozen.leaves(names), [t.detach().requires_grad_() for t in x]
        with torch.enable_grad(), frozen.at(at):
            value = f(leaves)
            w = transpose_twice(value, list(at.values()), v)
        ctx.frozen, ctx.f, ctx.at, ctx.leaves, ctx.value = frozen, f, at, leaves, value
        ctx.save_for_backward(*tensors)
        return value.detach(), w.detach()

    @staticmethod
    def backward(ctx: Any, df: Tensor, dw: Tensor) -> tuple[Any, ...]:
        at, again = list(ctx.at.values()), torch.is_grad_enabled()
        v, x = ctx.saved_tensors[: len(at)], ctx.saved_tensors[len(at) :]
        with torch.enable_grad(), ctx.frozen.at(ctx.at):
            # Views of the inputs, on which df and dw do not depend, for higher derivatives.
            x = [t.view_as(t) for t in x] if again else ctx.leaves
            value = ctx.f(x) if again else ctx.value
            g = torch.autograd.grad(value, at, dw, create_graph=True, allow_unused=True)
            pairs = [(value, df), *((a, t) for a, t in zip(g, v, strict=True) if a is not None and a.requires_grad)]
            heads, directions = [a for a, _ in pairs], [t for _, t in pairs]
            dx = torch.autograd.grad(heads, x, directions, retain_graph=True, create_graph=again, allow_unused=True)
        return None, None, None, *(g if again else tree_map_only(Tensor, torch.detach, g)), *dx
