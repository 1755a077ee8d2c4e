"""Jacobians of parameters that no rule covers, by torch.func or a loop over samples. Exact for every module."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.jacobians.factors import Dense, LayerJacobian
from torchtangent.jacobians.inputs import Inputs, leaves, map_leaves, take, wide

Function = Callable[[Inputs, dict[int, Tensor]], Tensor]


def vectorized(
    f: Function, params: Mapping[str, Tensor], x: Inputs, cotangents: Float[Tensor, "C N *out"]
) -> dict[str, LayerJacobian]:
    """Pull cotangents back sample by sample with `torch.func.vmap`.

    Args:
        f: The model as a function of a batch of one sample and of parameters by id, returning (1, *out).
        params: The parameters to differentiate with respect to.
        x: A batch of N samples.
        cotangents: The cotangents to pull back.
    """
    values = {id(p): p.detach() for p in params.values()}

    def one(sample: list[Tensor], u: Float[Tensor, "C *out"]) -> dict[int, Tensor]:
        def at(p: dict[int, Tensor]) -> Tensor:
            parts = iter(sample)
            return f(map_leaves(lambda _: next(parts).unsqueeze(0), x), p)[0]

        pull = torch.func.vjp(at, values)[1]
        return torch.func.vmap(pull)(u)[0]

    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        J = torch.func.vmap(one, in_dims=(0, 1))(leaves(x), cotangents)
    c, n = cotangents.shape[:2]
    for name, p in params.items():
        if J[id(p)].shape != (n, c, *p.shape):  # a rule of torch's own is wrong, as that for PReLU is
            raise RuntimeError(f"the derivative of {name} has a wrong shape")
    return {name: Dense(wide(J[id(p)]), p.shape) for name, p in params.items()}


def looped(
    f: Function, params: Mapping[str, Tensor], x: Inputs, cotangents: Float[Tensor, "C N *out"]
) -> dict[str, LayerJacobian]:
    """The same one sample at a time, with plain autograd, for models that `vmap` cannot handle.

    It differentiates with respect to the parameters themselves, not replacements: a model may use them in ways that
    cannot be replaced, such as in a hook.
    """
    c, n = cotangents.shape[:2]
    J = {name: wide(p.detach()).new_zeros(n, c, *p.shape) for name, p in params.items()}
    for i in range(n):
        out = f(take(x, slice(i, i + 1)), {})
        for j in range(c):
            grads = torch.autograd.grad(
                out, list(params.values()), cotangents[j, i : i + 1], retain_graph=True, allow_unused=True
            )
            for name, grad in zip(params, grads, strict=True):
                if grad is not None:
                    J[name][i, j] = grad
    return {name: Dense(J[name], p.shape) for name, p in params.items()}
