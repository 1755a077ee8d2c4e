"""Products with the Fisher matrix and the Hessian, which are never formed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.curvature.cotangents import Cotangents, Weigh
from torchtangent.curvature.data import Batches
from torchtangent.curvature.losses import Loss, LossCotangents, MeanCheck
from torchtangent.curvature.representation import Accumulator, Representation, Scope
from torchtangent.jacobians.call import eagerly, float32_products
from torchtangent.jacobians.capture import BUDGET, Capture
from torchtangent.jacobians.compare import is_adjoint, noise
from torchtangent.jacobians.inputs import Inputs, batch_size, check_product, map_leaves, take, wide
from torchtangent.jacobians.products import Replayed, Tangent, pull, push, push_otherwise, replayed
from torchtangent.notice import listed
from torchtangent.operators import ImplicitOperator
from torchtangent.operators.derivative import Map
from torchtangent.operators.recorded import Repeated

_KEPT = 64 << 20  # most bytes of graphs that are kept between products,
_SHARE = 8  # or on a GPU this part of its memory
_PATIENCE = 4  # the product from which on it pays to keep them


@dataclass(frozen=True)
class Implicit(Representation):
    """F v = (1/N) Σ_n J_nᵀ Λ_n J_n v by one forward-mode and one reverse-mode pass over the data for each v.

    It takes little memory: graphs are kept for later products if they fit into 64 MB and twice the size of the model,
    or into an eighth of a GPU. `trace`, `diag`, `logdet` and `dense` need one product per parameter: another
    representation is faster, or an estimate: `estimate_trace` and `estimate_diag` of the operator, and
    `tt.spectrum.density(F).trace(f)`, for f(λ) = log(λ + damping) of the log-determinant.
    """

    def start(self, scope: Scope) -> Accumulator:
        raise ValueError("Implicit works on the whole model: it cannot be mixed with other representations in a dict.")


class _Product(ABC):
    """V ↦ M V for a matrix M on parameter space."""

    @eagerly
    @float32_products()
    def __call__(self, V: Float[Tensor, "P K"]) -> Float[Tensor, "P K"]:
        found = self._of(V)
        check_product(found, V)
        return found

    @abstractmethod
    def _of(self, V: Float[Tensor, "P K"]) -> Float[Tensor, "P K"]: ...


class FisherProduct(_Product):
    """V ↦ F V, by a pass over the data for each product.

    After a few products, the network is linearized at data that fits into a small budget, and the graphs are kept: this
    saves later forward passes.
    """

    def __init__(self, capture: Capture, batches: Batches, cotangents: Cotangents | LossCotangents) -> None:
        self.capture, self.batches, self.cotangents = capture, batches, cotangents
        self._kept: Repeated | None = None
        self._products = 0

    def _of(self, V: Float[Tensor, "P K"]) -> Float[Tensor, "P K"]:
        self._products += 1
        if self._products == _PATIENCE:
            self._keep()
        by_vmap = torch._C._functorch.is_functorch_wrapped_tensor(V)  # for which what was traced need not be right
        if self._kept is not None and V.shape[1] and not by_vmap:
            self.capture.check_unmoved()
            with self.capture.network.undisturbed():  # here, as random states must not be touched while it is recorded
                products = [self._kept(column.contiguous()) for column in V.unbind(1)]
            return products[0].unsqueeze(1) if len(products) == 1 else torch.stack(products, 1)
        total, n = V.new_empty(V.shape[1], V.shape[0]), 0  # a row for each column of V, so that `split` gives views
        pairs = [
            (self.capture.space.split(column.contiguous()), self.capture.space.split(row))
            for column, row in zip(V.unbind(1), total, strict=True)
        ]
        weigh = self.cotangents.weigh()
        for x, y in self.batches.pieces(self._size):
            add = Tensor.add_ if n else Tensor.copy_
            n += batch_size(x)
            self.capture.look(x)
            times: Weigh | None = None
            for v, product in pairs:
                f, w = push(self.capture, x, v, graph=True)
                times = weigh(f.detach(), y) if times is None else times
                for name, g in self._pull(x, v, f, w, times).items():
                    add(product[name], g)
        return total.div_(n).T.contiguous()

    def _pull(self, x: Inputs, v: Tangent, f: Tensor, w: Tensor, times: Weigh) -> Tangent:
        """JᵀΛJv for f and w = Jv. Until the graphs are kept, wᵀΛw = vᵀJᵀΛJv shows whether forward mode can be used."""
        u = times(w)
        g = pull(self.capture, x, u, f)
        watched = self._products < _PATIENCE and not torch._C._functorch.is_functorch_wrapped_tensor(w)  # by vmap
        if watched and not is_adjoint(u, w, g, v, self.capture.rounding(w)):
            found = push_otherwise(self.capture, x, v)
            if found is not None:
                f, w = found
                return pull(self.capture, x, times(w), f)
        return g

    def _keep(self) -> None:
        """Linearize the network at all data and keep the graphs, if they are small and the model can be traced."""
        kept: list[tuple[Replayed, Weigh]] = []
        weigh, size, device = self.cotangents.weigh(), 0, self.capture.device
        stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        for x, y in self.batches.pieces(self._size):
            size += batch_size(x) * 2 * sum(self.capture.bytes_per_sample)
            x = map_leaves(Tensor.clone, x)  # a loader may reuse its buffer
            model = replayed(self.capture, x, stream) if size <= self.capture.budget(_KEPT, _SHARE) else None
            if model is None:
                return
            kept.append((model, weigh(model.outputs, y)))
        if kept:
            self._kept = Repeated(_from_graphs(self.capture, kept), stream=stream, patience=2)

    def _size(self, x: Inputs) -> int:
        return self.capture.samples_within(BUDGET, 2)  # twice, because J v has a graph, too


def _from_graphs(capture: Capture, kept: Sequence[tuple[Replayed, Weigh]]) -> Map:
    """v ↦ F v from the graphs that were kept."""
    n = sum(len(model.outputs) for model, _ in kept)

    def times(v: Float[Tensor, " P"]) -> Float[Tensor, " P"]:
        split = {name: t.to(capture.params[name].dtype) for name, t in capture.space.split(v).items()}
        total: Tensor | None = None
        for model, weigh in kept:
            pulled = model.pull(weigh(model.push(split)) / n)
            product = torch.cat([wide(pulled[name]).flatten() for name in split])
            total = product if total is None else total.add_(product)
        assert total is not None
        return total

    return times


class HessianProduct(_Product):
    """V ↦ H V for a loss that is a mean over samples, by differentiating its gradient."""

    def __init__(self, capture: Capture, batches: Batches, loss: Loss) -> None:
        self.capture, self.batches, self.loss = capture, batches, loss
        self._checked = False

    def _of(self, V: Float[Tensor, "P K"]) -> Float[Tensor, "P K"]:
        total, n = torch.zeros_like(V), 0
        check = None if self._checked else MeanCheck(self.loss)
        for x, y in self.batches:
            size = batch_size(x)
            self.capture.look(x)
            total += size * self._of_batch(x, y, V, check)
            if check is not None and n == 0:
                self._check_symmetric(take(x, slice(0, 2)), None if y is None else take(y, slice(0, 2)))
            n += size
        self._checked = True
        return total / n

    def _of_batch(self, x: Inputs, y: Any, V: Float[Tensor, "P K"], check: MeanCheck | None) -> Float[Tensor, "P K"]:
        """H V for the loss of a batch: the derivatives of its gradient along V."""
        params = list(self.capture.params.values())
        with self.capture.network.undisturbed():
            f = self.capture.network(x)
            self.capture.compare(x, f.detach())
            f = self.capture.network.as_returned(f)
            if check is not None:
                check(f, y)
            grads = torch.autograd.grad(self.loss(f, y), params, create_graph=True, materialize_grads=True)
            flat = torch.cat([wide(g).flatten() for g in grads])
            products = torch.zeros_like(V)
            for product, v in zip(products.unbind(1), V.unbind(1), strict=True):
                if flat.requires_grad:
                    second = torch.autograd.grad(
                        flat, params, v.to(flat.dtype), retain_graph=True, materialize_grads=True
                    )
                    product.copy_(torch.cat([wide(s).flatten() for s in second]))
        return products

    def _check_symmetric(self, x: Inputs, y: Any) -> None:
        """Raise if uᵀHv is not vᵀHu: torch's second derivatives of some operations are wrong."""
        like = torch.empty(self.capture.space.size, 2, dtype=self.capture.wide_dtype, device=self.capture.device)
        U = noise(like, torch.Generator().manual_seed(0))
        terms = (U.flip(1) * self._of_batch(x, y, U, None)).double()  # v ∘ Hu and u ∘ Hv
        gap, size = float((terms[:, 0].sum() - terms[:, 1].sum()).abs()), float(terms.norm())
        kinds = {p.dtype for p in self.capture.params.values()} | self.capture.kinds
        if gap > max(torch.finfo(kind).eps for kind in kinds) ** (1 / 3) * size:
            normed = [name for name, m in self.capture.model.named_modules() if "WeightNorm" in type(m).__name__]
            where = f" in {listed(normed)}" if normed else ""
            raise ValueError(
                f"The Hessian of this model is not symmetric, by {gap / size:.0%}: torch's second derivative of one of "
                f"its operations is wrong, as that of weight_norm is on a CPU{where}. Write the operation out, such as "
                "w = g v / ‖v‖. The model's Jacobian, Fisher and Gauss-Newton matrices are right."
            )


def implicit(capture: Capture, product: Callable[[Tensor], Tensor]) -> ImplicitOperator:
    """The operator on parameter space that has these products."""
    return ImplicitOperator(product, capture.space.size, capture.wide_dtype, capture.device)
