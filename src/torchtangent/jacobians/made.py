"""Tensors that a graph computes from parameters alone, such as a normalized weight: from their Jacobians to theirs."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from torchtangent.jacobians.call import undisturbed
from torchtangent.jacobians.factors import Dense, LayerJacobian
from torchtangent.jacobians.graph import dtype_at, shape_at
from torchtangent.jacobians.rules import NoRule

_SMALL_MAP = 1 << 14  # most entries of a matrix with which to multiply is faster than a backward pass per row


@dataclass(frozen=True, eq=False)
class Behind:
    """The Jacobian of a tensor that was computed from a parameter, still to be pulled back to the parameter itself."""

    jacobian: LayerJacobian
    place: GradientEdge
    p: Tensor


def pull_behind(parts: Iterable[Behind], params: Sequence[Tensor]) -> list[Dense]:
    """The Jacobians of parameters, from those of all tensors that were computed from them, by one backward pass.

    If both are small, forming ∂(tensor)/∂p and multiplying by it is faster than pulling every row back.
    """
    at: dict[GradientEdge, Tensor] = {}
    for made in parts:
        J = made.jacobian.flat()
        if J.dtype != dtype_at(made.place):
            raise NoRule("made in another format")
        at[made.place] = at[made.place] + J if made.place in at else J
    n, c = next(iter(at.values())).shape[:2]
    sizes = [J.shape[2] for J in at.values()]
    size = sum(sizes)
    by_unit = size < n * c and size * sum(p.numel() for p in params) <= _SMALL_MAP
    by_unit = by_unit and len({J.dtype for J in at.values()}) == 1 and not next(iter(at.values())).is_complex()
    if by_unit:
        J = torch.cat(list(at.values()), 2).flatten(0, 1)
        d = torch.eye(size, dtype=J.dtype, device=J.device).split(sizes, 1)
    else:
        d = tuple(J.flatten(0, 1) for J in at.values())
    d = tuple(t.reshape(len(t), *shape_at(place)) for t, place in zip(d, at, strict=True))
    with undisturbed(), warnings.catch_warnings():
        warnings.filterwarnings("error", message="There is a performance drop")
        try:
            found = torch.autograd.grad(list(at), list(params), d, retain_graph=True, is_grads_batched=True)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, UserWarning) as error:
            raise NoRule(str(error)) from None
    if by_unit:
        found = tuple(_product(J, t.reshape(size, -1)) for t in found)
    return [Dense(t.reshape(n, c, *p.shape), p.shape) for t, p in zip(found, params, strict=True)]


def _product(J: Tensor, derivative: Tensor) -> Tensor:
    """J times a derivative, in the finer of their dtypes: the network may compute in another than its parameters'."""
    dtype = torch.promote_types(J.dtype, derivative.dtype)
    return J.to(dtype) @ derivative.to(dtype)
