"""Whether recorded factors are the whole gradient: a weight may also be used where no hook sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from torchtangent.jacobians.factors import LayerJacobian, Outer

_TOLERANCE = {torch.float64: 1e-6}


class Witness:
    """The gradients of parameters as autograd computes them, before anything clips or scales them."""

    def __init__(self, params: Mapping[str, Tensor]) -> None:
        self.total: dict[str, Tensor] = {}
        self._handles = {name: p.register_hook(partial(self._add, name)) for name, p in params.items()}

    def _add(self, name: str, grad: Tensor) -> None:
        grad = grad.detach()
        grad = grad.to_dense() if grad.is_sparse else grad
        self.total[name] = self.total[name] + grad if name in self.total else grad.clone()

    def __contains__(self, name: str) -> bool:
        """Whether a parameter is still watched."""
        return name in self._handles

    def clear(self) -> None:
        """Forget what was seen."""
        self.total = {}

    def release(self, name: str) -> None:
        """A parameter was checked: once is enough."""
        if name in self._handles:
            self._handles.pop(name).remove()
        self.total.pop(name, None)

    def close(self) -> None:
        """Remove all hooks."""
        for name in list(self._handles):
            self.release(name)

    def denies(self, name: str, jacobians: Sequence[LayerJacobian], rounding: float) -> bool:
        """Whether Σ_n J_n differs from the gradient by more than the rounding of its terms."""
        wanted = self.total.get(name)
        if wanted is None:
            return False
        parts = [part for jacobian in jacobians for part in _pieces(jacobian)]
        found = sum(_sum(part) for part in parts)
        size = sum(_sum(part.magnitude()) for part in parts)
        return float(torch.linalg.vector_norm(found - wanted)) > rounding * float(torch.linalg.vector_norm(size))


def rounding(dtypes: set[torch.dtype]) -> float:
    """How far two orders of summation may differ, relative to the size of the terms."""
    return max(_TOLERANCE.get(dtype, 1e-3 if dtype == torch.float32 else 3e-2) for dtype in dtypes)


def _pieces(jacobian: LayerJacobian) -> Sequence[LayerJacobian]:
    """Convolutions a few samples at a time: their patches are large."""
    if not isinstance(jacobian, Outer):
        return [jacobian]
    _, G, _, S, O = jacobian.d.shape
    return list(jacobian.chunks(jacobian.d.element_size() * S * (jacobian.shape.numel() // O + G * O)))


def _sum(jacobian: LayerJacobian) -> Tensor:
    one = jacobian.d.new_ones(jacobian.samples, jacobian.outputs)
    return jacobian.pullback(one)
