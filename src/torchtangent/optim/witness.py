"""Whether recorded factors are the whole gradient: a penalty, or a use that no hook sees, may add to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.jacobians.factors import LayerJacobian, Outer
from torchtangent.jacobians.matrices import as_matrices

_TOLERANCE = {torch.float64: 1e-6}


class Witness:
    """The gradients of parameters as autograd computes them, before anything clips or scales them.

    Attributes:
        total: Their sums over the passes that added to gradients; after `settle`, over all if none did.
    """

    def __init__(self) -> None:
        self.total: dict[str, Tensor] = {}
        self._watched: frozenset[str] = frozenset()
        self._coming: dict[str, Tensor] = {}  # of the pass that is under way
        self._others: dict[str, Tensor] = {}  # of passes that added to nothing

    def watch(self, names: Iterable[str]) -> None:
        """From now on these parameters, and no others."""
        self._watched = frozenset(names)
        self.clear()

    def coming(self, name: str, grad: Tensor) -> None:
        """Autograd has a gradient, which may be added or not."""
        if name not in self._watched:
            return
        if name in self._coming:
            _add(self._others, name, self._coming.pop(name))
        grad = grad.detach()
        self._coming[name] = grad.to_dense() if grad.is_sparse else grad.clone()

    def came(self, name: str) -> None:
        """It was added."""
        if name in self._coming:
            _add(self.total, name, self._coming.pop(name))

    def settle(self) -> None:
        """There will be no more of them."""
        if not self.total:
            for name, grad in self._coming.items():
                _add(self._others, name, grad)
            self.total = self._others
        self._coming, self._others = {}, {}

    def clear(self) -> None:
        """Forget what was seen."""
        self.total, self._coming, self._others = {}, {}, {}

    def denied(self, found: Mapping[str, Sequence[LayerJacobian]], rounding: float) -> list[str]:
        """The parameters for which Σ_n J_n differs from the gradient by more than the rounding of its terms.

        Matrices are compared by what they make of one random vector r.
        """
        if not found:
            return []
        errors, sizes = {}, {}
        directions = {name: _direction(jacobians[0]) for name, jacobians in found.items()}
        for name, jacobians in found.items():
            r = directions[name]
            total = _times(jacobians[0], self.total[name], r)
            errors[name] = _norm(sum(_sum(part, r) for part in _pieces(jacobians)) - total)
            sizes[name] = _norm(total)
        doubtful = _larger(errors, sizes, rounding)
        # The terms are at least as large as their sum, and only looked at where it does not already tell.
        for name in doubtful:
            r = directions[name].abs()
            sizes[name] = _norm(sum(_sum(part.magnitude(), r) for part in _pieces(found[name])))
        return _larger({name: errors[name] for name in doubtful}, sizes, rounding)


def _add(sums: dict[str, Tensor], name: str, grad: Tensor) -> None:
    sums[name] = sums[name] + grad if name in sums else grad


def rounding(dtypes: set[torch.dtype]) -> float:
    """How far two orders of summation may differ, relative to the size of the terms."""
    return max(_TOLERANCE.get(dtype, 1e-3 if dtype == torch.float32 else 3e-2) for dtype in dtypes)


def _larger(errors: Mapping[str, Tensor], sizes: Mapping[str, Tensor], rounding: float) -> list[str]:
    """The names of errors that no rounding explains, with one transfer for all."""
    if not errors:
        return []
    large = torch.stack([error > rounding * sizes[name] for name, error in errors.items()]).tolist()
    return [name for name, is_large in zip(errors, large, strict=True) if is_large]


def _norm(t: Tensor | int) -> Tensor:
    assert isinstance(t, Tensor)
    return torch.linalg.vector_norm(t)


def _pieces(jacobians: Sequence[LayerJacobian]) -> Iterator[LayerJacobian]:
    """Convolutions a few samples at a time: their patches are large."""
    for jacobian in jacobians:
        if isinstance(jacobian, Outer):
            _, G, _, S, O = jacobian.d.shape
            yield from jacobian.chunks(jacobian.d.element_size() * S * (jacobian.shape.numel() // O + G * O))
        else:
            yield jacobian


def _direction(jacobian: LayerJacobian) -> Float[Tensor, "I"]:
    """r, the same at every call; of no length where the parameter is no matrix."""
    size = jacobian.shape.numel() // (jacobian.groups * jacobian.d.shape[4]) if isinstance(jacobian, Outer) else 0
    return torch.randn(size, generator=torch.Generator().manual_seed(0), device="cpu").to(jacobian.d)


def _sum(jacobian: LayerJacobian, r: Float[Tensor, "I"]) -> Tensor:
    """Σ_n J_n, times r if it is a matrix."""
    if isinstance(jacobian, Outer):
        return torch.einsum("ngcso,ngs->go", jacobian.d, jacobian.a @ r)
    return jacobian.pullback(jacobian.d.new_ones(jacobian.samples, jacobian.outputs))


def _times(jacobian: LayerJacobian, total: Tensor, r: Float[Tensor, "I"]) -> Tensor:
    """A gradient, times r if it is a matrix."""
    if not isinstance(jacobian, Outer):
        return total
    return as_matrices(total, jacobian.groups, jacobian.order).to(r) @ r
