"""Curvature that is never formed: products with the Fisher matrix and the Hessian."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.curvature.cotangents import Cotangents
from torchtangent.curvature.data import Batches
from torchtangent.curvature.representation import Accumulator, Representation, Scope
from torchtangent.jacobians.capture import Capture
from torchtangent.jacobians.inputs import Inputs, batch_size, map_leaves, wide
from torchtangent.jacobians.products import Replayed, pull, push, replayed
from torchtangent.operators import ImplicitOperator

Loss = Callable[[Tensor, Any], Tensor]
_BUDGET = 256 << 20  # bytes of activations at a time
_KEPT = 64 << 20  # bytes of graphs that are kept between products
_PATIENCE = 4  # products after which it pays to keep them


@dataclass(frozen=True)
class Implicit(Representation):
    """F v = (1/N) Σ_n J_nᵀ Λ_n J_n v by one forward-mode and one reverse-mode pass over the data for each v.

    It takes next to no memory. `trace`, `diag`, `logdet` and `dense` need a product for each parameter: for those
    another representation is faster, or the operator's `estimate_trace` and `estimate_diag`.
    """

    def start(self, scope: Scope) -> Accumulator:
        raise ValueError("Implicit works on the whole model: it cannot be mixed with other representations in a dict.")


class FisherProduct:
    """V ↦ F V, a sweep over the data for each product.

    After a few products, data that fits into a small budget is linearized and kept, which saves later forward passes.
    """

    def __init__(self, capture: Capture, batches: Batches, cotangents: Cotangents) -> None:
        self.capture, self.batches, self.cotangents = capture, batches, cotangents
        self._kept: list[tuple[Replayed, Tensor]] = []
        self._products = 0

    def __call__(self, V: Float[Tensor, "P K"]) -> Float[Tensor, "P K"]:
        self._products += 1
        if self._products == _PATIENCE:
            self._keep()
        if self._kept and V.shape[1]:
            self.capture.check_unmoved()
            products = [self._replayed(column.contiguous()) for column in V.unbind(1)]
            return products[0].unsqueeze(1) if len(products) == 1 else torch.stack(products, 1)
        total, n = V.new_zeros(V.shape[1], V.shape[0]), 0  # a row for each column of V: its parameters are views of it
        pairs = [
            (self.capture.space.split(column.contiguous()), self.capture.space.split(row))
            for column, row in zip(V.unbind(1), total, strict=True)
        ]
        pulled = self.cotangents.start()
        for x, y in self.batches.pieces(self._size):
            n += batch_size(x)
            self.capture.check(x)
            u: Tensor | None = None
            for v, product in pairs:
                f, w = push(self.capture, x, v)
                u = pulled(f, y) if u is None else u
                _add(product, pull(self.capture, x, self.cotangents.weigh(u, w)))
        return total.div_(n).T.contiguous()

    def _replayed(self, v: Float[Tensor, " P"]) -> Float[Tensor, " P"]:
        """F v from what was kept."""
        split = {k: t.to(self.capture.params[k].dtype) for k, t in self.capture.space.split(v).items()}
        n = sum(root.shape[1] for _, root in self._kept)
        total: Tensor | None = None
        for model, root in self._kept:
            pulled = model.pull(self.cotangents.weigh(root, model.push(split)).div_(n))
            product = torch.cat([wide(pulled[name]).flatten() for name in split])
            total = product if total is None else total.add_(product)
        assert total is not None
        return total

    def _keep(self) -> None:
        """Linearize the data and keep it, if it is small and the model allows it."""
        kept: list[tuple[Replayed, Tensor]] = []
        pulled, size = self.cotangents.start(), 0
        for x, y in self.batches.pieces(self._size):
            size += batch_size(x) * 2 * sum(self.capture.bytes_per_sample)
            x = map_leaves(Tensor.clone, x)  # loaders may refill a buffer
            model = replayed(self.capture, x) if size <= self.capture.budget(_KEPT) else None
            if model is None:
                return
            kept.append((model, pulled(model.outputs, y)))
        self._kept = kept

    def _size(self, x: Inputs) -> int:
        return self.capture.samples_within(_BUDGET, 1)


def _add(total: dict[str, Tensor], v: dict[str, Tensor]) -> None:
    for name, t in v.items():
        total[name].add_(t)


class HessianProduct:
    """V ↦ H V for a loss that is a mean over samples, by differentiating its gradient."""

    def __init__(self, capture: Capture, batches: Batches, loss: Loss) -> None:
        self.capture, self.batches, self.loss = capture, batches, loss
        self._checked = False

    def _check_mean(self, f: Float[Tensor, "N *out"], y: Any) -> bool:
        """The loss must be a mean: the same for each sample taken twice. Returns whether it is one over samples.

        It is not where samples have weights, or some are ignored. Outputs are those of the next sample, since a loss
        that is zero tells nothing.
        """
        f = f.detach().roll(1, 0)

        def loss(f: Tensor, pick: Callable[[Tensor], Tensor]) -> Tensor:
            return self.loss(pick(f), None if y is None else map_leaves(pick, y)).detach()

        once, twice = loss(f, lambda t: t), loss(f, lambda t: torch.cat([t, t]))
        if once.dim() != 0:
            raise ValueError(
                f"The loss should be one number, the mean over the samples; got shape {tuple(once.shape)}."
            )
        if not torch.isclose(twice, once, rtol=1e-3, atol=1e-6, equal_nan=True):
            raise ValueError(
                f"The loss should be the mean over the samples, but it is {once:.4g} for a batch and {twice:.4g} "
                'for the same batch twice. Use reduction="mean".'
            )
        if len(f) == 1:
            return True
        first, others = loss(f, lambda t: t[:1]), loss(f, lambda t: t[1:])
        return bool(torch.isclose((first + (len(f) - 1) * others) / len(f), once, rtol=1e-3, atol=1e-6))

    def __call__(self, V: Float[Tensor, "P K"]) -> Float[Tensor, "P K"]:
        total, n = torch.zeros_like(V), 0
        params = list(self.capture.params.values())
        means = []
        for x, y in self.batches.pieces(batch_size):
            size = batch_size(x)
            n += size
            self.capture.check(x)
            with self.capture.network.undisturbed():
                f = self.capture.network(x, as_returned=True)
                if not self._checked:
                    means.append(self._check_mean(f, y))
                if len(means) > 1 and not all(means):
                    raise ValueError(
                        "The loss is no mean over samples of what each has by itself (does it ignore some, or weigh "
                        "them?), so that those of several batches do not add up to that of all. Pass one batch."
                    )
                value = self.loss(f, y)
                grads = torch.autograd.grad(value, params, create_graph=True, materialize_grads=True)
                flat = torch.cat([wide(g).flatten() for g in grads])
                for k, column in enumerate(V.unbind(1)):
                    if flat.requires_grad:
                        second = torch.autograd.grad(
                            flat, params, column.to(flat.dtype), retain_graph=True, materialize_grads=True
                        )
                        total[:, k] += size * torch.cat([wide(s).flatten() for s in second])
        self._checked = True
        return total / n


def implicit(capture: Capture, product: Callable[[Tensor], Tensor]) -> ImplicitOperator:
    """An operator on the capture's parameters from its products."""
    params = list(capture.params.values())
    dtype = reduce(torch.promote_types, (p.dtype for p in params), torch.float32)
    return ImplicitOperator(product, capture.space.size, dtype, params[0].device)
