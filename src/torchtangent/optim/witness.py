"""Checks that recorded factors add up to the whole gradient: a penalty, or a use that no hook sees, adds to it, too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.jacobians.factors import LayerJacobian, Outer
from torchtangent.jacobians.matrices import as_matrices

_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3}
_HALF = 3e-2  # the tolerance for narrower dtypes


class Witness:
    """The gradients of some parameters as autograd computed them, before anyone clipped or scaled them.

    Attributes:
        total: Their sums over the passes that added to `.grad`; after `settle`, over all passes if none did.
    """

    def __init__(self) -> None:
        self.total: dict[str, Tensor] = {}
        self._watched: frozenset[str] = frozenset()
        self._coming: dict[str, Tensor] = {}  # of the current pass
        self._others: dict[str, Tensor] = {}  # of passes that did not add to `.grad`

    def watch(self, names: Iterable[str]) -> None:
        """Watch these parameters from now on, and no others."""
        self._watched = frozenset(names)
        self.clear()

    def coming(self, name: str, grad: Tensor) -> None:
        """Autograd has computed a gradient, which it may or may not add to `.grad`."""
        if name not in self._watched:
            return
        if name in self._coming:
            _add(self._others, name, self._coming.pop(name))
        grad = grad.detach()
        self._coming[name] = grad.to_dense() if grad.is_sparse else grad.clone()

    def came(self, name: str) -> None:
        """Autograd has added it."""
        if name in self._coming:
            _add(self.total, name, self._coming.pop(name))

    def settle(self) -> None:
        """All passes are over: decide which of them count."""
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

        Matrices are compared by their products with one random vector r.
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
        # The terms are at least as large as their sum: look at them only where the sum does not settle it.
        for name in doubtful:
            r = directions[name].abs()
            sizes[name] = _norm(sum(_sum(part.magnitude(), r) for part in _pieces(found[name])))
        return _larger({name: errors[name] for name in doubtful}, sizes, rounding)


def _add(sums: dict[str, Tensor], name: str, grad: Tensor) -> None:
    sums[name] = sums[name] + grad if name in sums else grad


def tolerance(dtypes: set[torch.dtype]) -> float:
    """By how much two orders of summation may differ, relative to the size of the terms."""
    return max(_TOLERANCE.get(dtype, _HALF) for dtype in dtypes)


def _larger(errors: Mapping[str, Tensor], sizes: Mapping[str, Tensor], rounding: float) -> list[str]:
    """The names of errors larger than rounding explains, with a single transfer from the device."""
    if not errors:
        return []
    large = torch.stack([error > rounding * sizes[name] for name, error in errors.items()]).tolist()
    return [name for name, is_large in zip(errors, large, strict=True) if is_large]


def _norm(t: Tensor | int) -> Tensor:
    assert isinstance(t, Tensor)
    return torch.linalg.vector_norm(t)


def _pieces(jacobians: Sequence[LayerJacobian]) -> Iterator[LayerJacobian]:
    """The Jacobians, those of convolutions a few samples at a time: their patches are large."""
    for jacobian in jacobians:
        if isinstance(jacobian, Outer):
            _, G, _, S, O = jacobian.d.shape
            yield from jacobian.chunks(jacobian.d.element_size() * S * (jacobian.shape.numel() // O + G * O))
        else:
            yield jacobian


def _direction(jacobian: LayerJacobian) -> Float[Tensor, "I"]:
    """The fixed random vector r; empty if the parameter is no matrix."""
    size = jacobian.columns if isinstance(jacobian, Outer) else 0
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
