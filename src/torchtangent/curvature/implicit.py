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
from torchtangent.jacobians.graph import Graph
from torchtangent.jacobians.inputs import Inputs, batch_size, check_product, map_leaves, take, wide
from torchtangent.jacobians.products import Replayed, Tangent, pull, push, push_otherwise, replayed
from torchtangent.notice import listed
from torchtangent.operators import ImplicitOperator
from torchtangent.operators.derivative import Map
from torchtangent.operators.recorded import Repeated
from torchtangent.operators.streams import any_stream, following

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
    """V ↦ M V for a matrix M on parameter space.

    After a few products, the graphs of data that fit into a small budget are kept: this saves later forward passes.
    """

    def __init__(self, capture: Capture, batches: Batches) -> None:
        self.capture, self.batches = capture, batches
        self._products = 0
        self._kept: Repeated | None = None

    @eagerly
    @float32_products()
    @any_stream()
    def __call__(self, V: Float[Tensor, "P K"]) -> Float[Tensor, "P K"]:
        self._products += 1
        if self._products == _PATIENCE:
            self._kept = self._keep()
        if self._kept is None or not V.shape[1]:
            found = self._of(V)
        else:
            self.capture.check_unmoved()
            with self.capture.network.undisturbed():  # here, as random states must not be touched while it is recorded
                columns = [self._kept(column.contiguous()) for column in V.unbind(1)]
            found = columns[0].unsqueeze(1) if len(columns) == 1 else torch.stack(columns, 1)
        check_product(found, V)
        return found

    def __getstate__(self) -> dict[str, Any]:
        """What copies have of it: graphs belong to this one."""
        return self.__dict__ | {"_products": 0, "_kept": None}

    @abstractmethod
    def _of(self, V: Float[Tensor, "P K"]) -> Float[Tensor, "P K"]:
        """M V by a pass over the data."""

    @abstractmethod
    def _keep(self) -> Repeated | None:
        """v ↦ M v from graphs of all data; None if they are too large or cannot be made."""

    def _stream(self) -> torch.cuda.Stream | None:
        """Where graphs are made, so that their backward passes can be recorded."""
        device = self.capture.device
        return torch.cuda.Stream(device) if device.type == "cuda" else None


class FisherProduct(_Product):
    """V ↦ F V, by a pass over the data for each product, until graphs are kept."""

    def __init__(self, capture: Capture, batches: Batches, cotangents: Cotangents | LossCotangents) -> None:
        super().__init__(capture, batches)
        self.cotangents = cotangents
        self._samples = 0  # of all data, known after the first product

    def _of(self, V: Float[Tensor, "P K"]) -> Float[Tensor, "P K"]:
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
        self._samples = n
        return total.div_(n).T.contiguous()

    def _pull(self, x: Inputs, v: Tangent, f: Tensor, w: Tensor, times: Weigh) -> Tangent:
        """JᵀΛJv for f and w = Jv. Until the graphs are kept, wᵀΛw = vᵀJᵀΛJv shows whether forward mode can be used."""
        u = times(w)
        g = pull(self.capture, x, u, f)
        if self._products < _PATIENCE and not is_adjoint(u, w, g, v, self.capture.rounding(w)):
            found = push_otherwise(self.capture, x, v)
            if found is not None:
                f, w = found
                return pull(self.capture, x, times(w), f)
        return g

    def _keep(self) -> Repeated | None:
        """Linearize the network at all data, if the model can be traced, which is checked there."""
        if self._samples * 2 * sum(self.capture.bytes_per_sample) > self.capture.budget(_KEPT, _SHARE):
            return None
        kept: list[tuple[Replayed, Weigh]] = []
        weigh, stream = self.cotangents.weigh(), self._stream()
        for x, y in self.batches.pieces(self._size):
            x = map_leaves(Tensor.clone, x)  # a loader may reuse its buffer
            model = replayed(self.capture, x, stream)
            if model is None:
                return None
            kept.append((model, weigh(model.outputs, y)))
        return Repeated(_from_graphs(self.capture, kept), stream=stream, patience=2) if kept else None

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
        super().__init__(capture, batches)
        self.loss = loss
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
        gradient = self._gradient(x, y, check)
        products = torch.empty_like(V)
        with self.capture.network.undisturbed():
            for product, v in zip(products.unbind(1), V.unbind(1), strict=True):
                product.copy_(_derivative(gradient, self.capture, v))
        return products

    def _gradient(self, x: Inputs, y: Any, check: MeanCheck | None = None) -> Float[Tensor, " P"]:
        """The gradient of the loss of a batch, with its graph."""
        with self.capture.network.undisturbed():
            f = self.capture.network(x)
            self.capture.compare(x, f.detach())
            f = self.capture.network.as_returned(f)
            if check is not None:
                check(f, y)
            params = list(self.capture.params.values())
            grads = torch.autograd.grad(self.loss(f, y), params, create_graph=True, materialize_grads=True)
            return torch.cat([wide(g).flatten() for g in grads])

    def _keep(self) -> Repeated | None:
        kept, held, n, stream = [], 0, 0, self._stream()
        known = [*self.capture.model.parameters(), *self.capture.model.buffers()]
        for x, y in self.batches:
            x, y = map_leaves(Tensor.clone, x), None if y is None else map_leaves(Tensor.clone, y)
            with following(stream):  # of copies, as a loader may reuse its buffer
                gradient = self._gradient(x, y)
            held += Graph(gradient).saved_bytes(without=known)
            if held > self.capture.budget(_KEPT, _SHARE):
                return None
            kept.append((gradient, batch_size(x)))
            n += batch_size(x)
        capture = self.capture

        def times(v: Float[Tensor, " P"]) -> Float[Tensor, " P"]:
            parts = [_derivative(gradient, capture, v).mul_(size / n) for gradient, size in kept]
            return torch.stack(parts).sum(0).to(v.dtype) if len(parts) > 1 else parts[0].to(v.dtype)

        return Repeated(times, stream=stream, patience=2)

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


def _derivative(gradient: Float[Tensor, " P"], capture: Capture, v: Float[Tensor, " P"]) -> Float[Tensor, " P"]:
    """The derivative of ⟨gradient, v⟩ by the parameters; the gradient keeps its graph."""
    if not gradient.requires_grad:
        return torch.zeros_like(gradient)
    params = list(capture.params.values())
    found = torch.autograd.grad(gradient, params, v.to(gradient.dtype), retain_graph=True, materialize_grads=True)
    return torch.cat([wide(g).flatten() for g in found])


def implicit(capture: Capture, product: Callable[[Tensor], Tensor]) -> ImplicitOperator:
    """The operator on parameter space that has these products."""
    return ImplicitOperator(product, capture.space.size, capture.wide_dtype, capture.device)
