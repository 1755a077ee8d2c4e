"""J M Jᵀ sample by sample, from the factors of J where those of M have their form.

With the eigendecomposition M = Q Λ Qᵀ + ρ (I − Q Qᵀ), whose Q is made of blocks, the result is a sum over blocks of
(J Q) Λ (J Q)ᵀ and, if Q is thin, of ρ times what Q leaves of J. For a block Q_L ⊗ Q_R and J = Σ_s d_s ⊗ a_s, this is
J Q = Σ_s Q_Lᵀ d_s ⊗ Q_Rᵀ a_s: neither J nor a product with M is formed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.jacobians.blocks import matrix_segments, with_ones
from torchtangent.jacobians.factors import LayerJacobian, Outer
from torchtangent.jacobians.together import is_bias_of, side_by_side
from torchtangent.operators import (
    Basis,
    BlockBasis,
    Identity,
    InverseOperator,
    KroneckerBasis,
    Operator,
    Place,
    ScaledOperator,
    Segment,
    ShiftedOperator,
    Space,
)

_FORMED = {"cpu": 1 << 24, "cuda": 1 << 30}  # bytes of J in the basis of a block, or of rows of J, at a time

Layers = Mapping[str, LayerJacobian]


def covariance(layers: Layers, space: Space, M: Operator) -> Float[Tensor, "N C C"]:
    """J M Jᵀ for each sample."""
    blocks = _blocks(M)
    if blocks is None:
        return _by_rows([layers[name] for name in space.names], lambda rows: M._matmat(rows.T).T)
    found = [part for block in blocks for part in block.parts(layers, space)]
    return torch.stack(found).sum(0) if len(found) > 1 else found[0]


def _blocks(M: Operator) -> list[_Block] | None:
    """M by the eigenvalues and eigenvectors of blocks, if it solves by them and they are all of it."""
    base = M
    while isinstance(base, InverseOperator | ScaledOperator | ShiftedOperator):
        base = base.base
    if not base.keeps_factorization:
        return None
    spectrum = M._spectrum
    basis = spectrum.basis
    pairs = basis.blocks if isinstance(basis, BlockBasis) else ((Place.flat(0, M.size), basis),)
    if sum(place.size for place, _ in pairs) < M.size:
        return None
    values = spectrum.values.split([own.rank for _, own in pairs])
    return [_Block(place, own, part, spectrum.rest) for (place, own), part in zip(pairs, values, strict=True)]


@dataclass(frozen=True)
class _Block:
    """Q Λ Qᵀ + ρ (I − Q Qᵀ) for the parameters in a place."""

    place: Place
    basis: Basis
    values: Float[Tensor, " R"]
    rest: float

    def parts(self, layers: Layers, space: Space) -> Iterator[Float[Tensor, "N C C"]]:
        """J M Jᵀ, as terms of a sum."""
        names = _names_in(self.place, space)
        if isinstance(self.basis, Identity) and self.place.in_order:
            yield from self._entrywise(layers, space, names)
            return
        factors = self._factors(layers, space, names)
        if factors is None or not isinstance(self.basis, KroneckerBasis):
            yield self._by_rows(layers, space, names)
            return
        (a, d), left, right = factors, self.basis.left, self.basis.right
        values = self.values.view(left.rank, right.rank)
        inside = _project(left, d), _project(right, a)
        yield _weighted(*inside, values)
        if self.rest and self.basis.rank < self.basis.size:
            # I − P ⊗ R = (I − P) ⊗ I + P ⊗ (I − R), without the cancellation of ‖J‖² − ‖J Q‖².
            kept = _lift(left, inside[0])
            yield self.rest * _weighted(d - kept, a, None)
            yield self.rest * _weighted(kept, a - _lift(right, inside[1]), None)

    def _factors(self, layers: Layers, space: Space, names: list[str]) -> tuple[Tensor, Tensor] | None:
        """a (N, S, I) and d (N, C, S, O) of the matrix [W b] that this block is of; None if it is of something else."""
        first = self.place.segments[0]
        weight = space.names_in(Place((first,)))[0]
        layer, others = layers[weight], [name for name in names if name != weight]
        if not isinstance(layer, Outer):
            return None
        segments = matrix_segments(space, weight, layer, units=0)
        if first not in segments:
            return None
        g = segments.index(first)
        a, d = layer.a, layer.d[:, g]
        if others:
            rows = first.rows
            column = Segment(space.offsets[others[0]] + g * rows, (rows, 1), (0, 1))
            if self.place.segments[1:] != (column,) or not is_bias_of(layers[others[0]], layer):
                return None
            a = with_ones(a)
        elif len(self.place.segments) > 1:
            return None
        return a[:, g], d

    def _entrywise(self, layers: Layers, space: Space, names: list[str]) -> Iterator[Float[Tensor, "N C C"]]:
        """The same for a diagonal matrix, parameter by parameter."""
        diagonal = self.values.new_zeros(space.size, 1)
        self.place.scatter(self.values.unsqueeze(1), diagonal)
        for name in names:
            layer = layers[name]
            if isinstance(layer, Outer):
                a = layer.a
                for g, segment in enumerate(matrix_segments(space, name, layer, units=0)):
                    place = Place((segment,))
                    yield _weighted(layer.d[:, g], a[:, g], place.gather(diagonal).view(place.rows, place.cols))
            else:
                own = diagonal[space.offsets[name] :][: layer.shape.numel(), 0]
                yield _by_rows([layer], partial(torch.mul, own))

    def _by_rows(self, layers: Layers, space: Space, names: list[str]) -> Float[Tensor, "N C C"]:
        """The same from the rows of J."""
        starts, start = {}, 0
        for name in names:
            starts[name] = start - space.offsets[name]
            start += layers[name].shape.numel()
        owners = [space.names_in(Place((segment,)))[0] for segment in self.place.segments]
        moved = [replace(s, start=s.start + starts[name]) for s, name in zip(self.place.segments, owners, strict=True)]
        place = Place(tuple(moved))

        def times(rows: Float[Tensor, "n P"]) -> Float[Tensor, "n P"]:
            V = rows.T.contiguous()
            block = place.gather(V)
            C = self.basis.project(block)
            product = self.basis.lift(self.values.unsqueeze(1) * C)
            if self.rest and self.basis.rank < self.basis.size:
                product += self.rest * (block - self.basis.lift(C))
            out = torch.zeros_like(V)
            place.scatter(product, out)
            return out.T

        return _by_rows([layers[name] for name in names], times)


def _names_in(place: Place, space: Space) -> list[str]:
    """The parameters of which some entries are in a place, in the order of the space."""
    ends = {name: space.offsets[name] + shape.numel() for name, shape in zip(space.names, space.shapes, strict=True)}
    stretches = [(s.start, s.start + s.numel) for s in place.segments]
    return [n for n, end in ends.items() if any(a < end and space.offsets[n] < b for a, b in stretches)]


def _project(basis: Basis, t: Float[Tensor, "*B I"]) -> Float[Tensor, "*B r"]:
    """t Q."""
    return t if isinstance(basis, Identity) else t @ basis.dense()


def _lift(basis: Basis, t: Float[Tensor, "*B r"]) -> Float[Tensor, "*B I"]:
    """t Qᵀ."""
    return t if isinstance(basis, Identity) else t @ basis.dense().T


def _weighted(
    d: Float[Tensor, "N C S O"], a: Float[Tensor, "N S I"], weights: Float[Tensor, "O I"] | None
) -> Float[Tensor, "N C C"]:
    """Σ_oi w_oi J_oi J_oiᵀ for J = Σ_s d_s ⊗ a_s; all weights are one if none are given."""
    (_, C, S, O), I = d.shape, a.shape[2]
    if S == 1:
        squares = a[:, 0].square()
        scales = squares.sum(1, keepdim=True) if weights is None else squares @ weights.T
        d = d[:, :, 0]
        return (d * scales.unsqueeze(1)) @ d.mT
    step = max(1, _FORMED.get(d.device.type, 1 << 24) // max(1, d.element_size() * C * O * I))
    found = []
    for own, inputs in zip(d.split(step), a.split(step), strict=True):
        J = (own.transpose(2, 3).reshape(len(own), C * O, S) @ inputs).view(len(own), C, O, I)
        found.append((J if weights is None else J * weights).flatten(2) @ J.flatten(2).mT)
    return torch.cat(found)


def _by_rows(layers: list[LayerJacobian], times: Callable[[Tensor], Tensor]) -> Float[Tensor, "N C C"]:
    """J M Jᵀ from rows ↦ rows M, for some rows of J at a time."""
    J = side_by_side(layers)
    _, C, P = J.shape
    step = max(1, _FORMED.get(J.device.type, 1 << 24) // max(1, J.element_size() * C * P))
    return torch.cat([times(part.flatten(0, 1)).view(part.shape) @ part.mT for part in J.split(step)])
