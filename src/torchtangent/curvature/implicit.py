"""Curvature that is never formed: products with the Fisher matrix and the Hessian."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.curvature.cotangents import Cotangents
from torchtangent.curvature.data import Batches
from torchtangent.curvature.representation import Accumulator, Representation
from torchtangent.jacobians.call import run, undisturbed
from torchtangent.jacobians.capture import Capture
from torchtangent.jacobians.inputs import batch_size, pick
from torchtangent.jacobians.products import pull, push
from torchtangent.operators import ImplicitOperator, Space

Loss = Callable[[Tensor, Any], Tensor]
_BUDGET = 1 << 30


@dataclass(frozen=True)
class Implicit(Representation):
    """F v = (1/N) Σ_n J_nᵀ Λ_n J_n v by one forward-mode and one reverse-mode pass over the data for each v."""

    def start(self, space: Space, names: Sequence[str]) -> Accumulator:
        raise ValueError(
            "Implicit works on the whole model: it cannot be mixed with other representations in a dict."
        )


class FisherProduct:
    """V ↦ F V, a sweep over the data for each column."""

    def __init__(self, capture: Capture, batches: Batches, cotangents: Cotangents) -> None:
        self.capture, self.batches, self.cotangents = capture, batches, cotangents

    def __call__(self, V: Float[Tensor, "P K"]) -> Float[Tensor, "P K"]:
        total, n = torch.zeros_like(V), 0
        pulled = self.cotangents.start()
        for x, y in self.batches.pieces(lambda _: self.capture.samples_within(_BUDGET, 1)):
            n += batch_size(x)
            u = None
            for k, column in enumerate(V.unbind(1)):
                f, w = push(self.capture, x, self.capture.space.split(column.contiguous()))
                u = pulled(f, y) if u is None else u
                w = torch.einsum("mn...,mn->n...", u, (u * w).flatten(2).sum(2))
                total[:, k] += torch.cat([g.flatten() for g in pull(self.capture, x, w).values()])
        return total / n


class HessianProduct:
    """V ↦ H V for a loss that is a mean over samples, by differentiating its gradient."""

    def __init__(self, capture: Capture, batches: Batches, loss: Loss) -> None:
        self.capture, self.batches, self.loss = capture, batches, loss

    def __call__(self, V: Float[Tensor, "P K"]) -> Float[Tensor, "P K"]:
        total, n = torch.zeros_like(V), 0
        params = list(self.capture.params.values())
        for x, y in self.batches.pieces(batch_size):
            size = batch_size(x)
            n += size
            with undisturbed():
                f = pick(run(self.capture.model, x), self.capture.output, size)
                value = self.loss(f, y)
                if value.dim() != 0:
                    raise ValueError(
                        f"The loss should be one number, the mean over the samples; got shape {tuple(value.shape)}."
                    )
                grads = torch.autograd.grad(value, params, create_graph=True, materialize_grads=True)
                flat = torch.cat([g.flatten() for g in grads])
                for k, column in enumerate(V.unbind(1)):
                    if flat.requires_grad:
                        second = torch.autograd.grad(
                            flat, params, column.contiguous(), retain_graph=True, materialize_grads=True
                        )
                        total[:, k] += size * torch.cat([s.flatten() for s in second])
        return total / n


def implicit(capture: Capture, product: Callable[[Tensor], Tensor]) -> ImplicitOperator:
    """An operator on the capture's parameters from its products."""
    p = next(iter(capture.params.values()))
    return ImplicitOperator(product, capture.space.size, p.dtype, p.device)
