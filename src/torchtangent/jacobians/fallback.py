"""Jacobians of parameters that no rule covers: torch.func, or a loop over samples. Exact for every module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.jacobians.factors import Dense, LayerJacobian
from torchtangent.jacobians.inputs import Inputs, map_leaves, take

Function = Callable[[dict[str, Tensor], Inputs], Tensor]


def vectorized(
    f: Function, params: dict[str, Tensor], x: Inputs, cotangents: Float[Tensor, "C N *out"]
) -> dict[str, LayerJacobian]:
    """Pull cotangents back sample by sample with `torch.func.vmap`.

    Args:
        f: The model as a function of the parameters and a batch of one sample, returning (1, *out).
        params: The parameters to differentiate with respect to.
        x: A batch of N samples.
        cotangents: What to pull back.
    """
    values = {name: p.detach() for name, p in params.items()}

    def one(sample: Any, u: Float[Tensor, "C *out"]) -> dict[str, Tensor]:
        def at(p: dict[str, Tensor]) -> Tensor:
            return f(p, map_leaves(lambda v: v.unsqueeze(0), sample))[0]

        _, pull = torch.func.vjp(at, values)
        return torch.func.vmap(pull)(u)[0]

    batched = map_leaves(lambda v: 0, x)
    axes = (_axes(batched), 1)
    with torch.no_grad():
        found = torch.func.vmap(one, in_dims=axes)(x, cotangents)
    return {name: Dense(found[name], p.shape) for name, p in params.items()}


def looped(
    f: Function, params: dict[str, Tensor], x: Inputs, cotangents: Float[Tensor, "C N *out"]
) -> dict[str, LayerJacobian]:
    """The same one sample at a time, with plain autograd: for models that `vmap` cannot take."""
    c, n = cotangents.shape[:2]
    found = {name: p.new_zeros(n, c, *p.shape, requires_grad=False) for name, p in params.items()}
    values = {name: p.detach().requires_grad_() for name, p in params.items()}
    for i in range(n):
        out = f(values, take(x, slice(i, i + 1)))
        for j in range(c):
            grads = torch.autograd.grad(
                out, list(values.values()), cotangents[j, i : i + 1], retain_graph=True, allow_unused=True
            )
            for name, grad in zip(values, grads, strict=True):
                if grad is not None:
                    found[name][i, j] = grad
    return {name: Dense(found[name], p.shape) for name, p in params.items()}


def _axes(batched: Any) -> Any:
    """vmap's `in_dims`: 0 for per-sample tensors, None for everything that is passed along."""
    if isinstance(batched, dict):
        return {k: 0 if type(v) is int else None for k, v in batched.items()}
    if isinstance(batched, tuple):
        return tuple(0 if type(v) is int else None for v in batched)
    return 0
