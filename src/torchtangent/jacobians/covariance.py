"""J M Jᵀ sample by sample, from the factors of J where those of M have their form.

With the eigendecomposition M = Q Λ Qᵀ + ρ (I − Q Qᵀ), whose Q is made of blocks, the result is a sum over blocks of
(J Q) Λ (J Q)ᵀ and, if Q is thin, of ρ times what Q leaves of J. For a block Q_L ⊗ Q_R and J = Σ_s d_s ⊗ a_s, this is
J Q = Σ_s Q_Lᵀ d_s ⊗ Q_Rᵀ a_s: no product with M is taken, and with one location J Q is not formed either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.jacobians.blocks import matrix_segments, with_ones
from torchtangent.jacobians.factors import LayerJacobian, Lookup, Outer
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
from torchtangent.operators.product import product
from torchtangent.operators.spectrum import Spectrum

_FORMED = {"cpu": 1 << 24, "cuda": 1 << 30}  # bytes of patches, of J, or of J in the basis of a block, at a time

Layers = Mapping[str, LayerJacobian]
Covariances = Float[Tensor, "N C C"]


def covariance(layers: Layers, space: Space, M: Operator) -> Covariances:
    """J M Jᵀ for each sample."""
    blocks = _blocks(M)
    if blocks is None:
        return _by_rows([layers[name] for name in space.names], lambda rows: M._matmat(rows.T).T)
    outers = [layer for layer in layers.values() if isinstance(layer, Outer)]
    size = max((_item(layer) * layer.groups * layer.columns * layer.d.shape[3] for layer in outers), default=1)
    return _in_pieces([layers[name] for name in space.names], size, partial(_by_blocks, blocks, space))


def _by_blocks(blocks: list[_Block], space: Space, pieces: list[LayerJacobian]) -> Covariances:
    layers = dict(zip(space.names, pieces, strict=True))

    @lru_cache(maxsize=1)
    def inputs(weight: Outer, bias: bool) -> Float[Tensor, "N G S I"]:
        """a, formed once for all groups of a layer."""
        return with_ones(weight.a) if bias else weight.a

    parts = [part for block in blocks for part in block.parts(layers, space, inputs)]
    return torch.stack(parts).sum(0) if len(parts) > 1 else parts[0]


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

    def parts(self, layers: Layers, space: Space, inputs: Callable[[Outer, bool], Tensor]) -> Iterator[Covariances]:
        """J M Jᵀ, as terms of a sum."""
        names = _names_in(self.place, space)
        if isinstance(self.basis, Identity) and self.place.in_order:
            yield from self._entrywise(layers, space, names)
            return
        first, basis = layers[names[0]], self.basis
        if not isinstance(basis, KroneckerBasis) or (basis.left.size, basis.right.size) != self._shape:
            yield self._of_rows(layers, space, names)
        elif (factors := self._factors(layers, space, names, inputs)) is not None:
            yield from self._factored(basis.left, basis.right, *factors)
        elif isinstance(first, Lookup) and isinstance(basis.left, Identity) and self._is_whole(names, space):
            yield _looked_up(first, basis.right, self.values, self.rest)
        else:
            yield self._of_rows(layers, space, names)

    @property
    def _shape(self) -> tuple[int, int]:
        """That of the parameters as a matrix."""
        return self.place.rows, self.place.cols

    def _is_whole(self, names: list[str], space: Space) -> bool:
        """Whether these are all entries of one parameter, in their order."""
        shape = space.shapes[space.names.index(names[0])]
        return self.place.segments == (Segment(space.offsets[names[0]], tuple(shape), (0, 1)),)

    def _factored(
        self, left: Basis, right: Basis, a: Float[Tensor, "N S I"], d: Float[Tensor, "N C S O"]
    ) -> Iterator[Covariances]:
        inside = _project(left, d), _project(right, a)
        yield _weighted(*inside, self.values.view(left.rank, right.rank))
        if self.rest and self.basis.rank < self.basis.size:
            # I − P ⊗ R = (I − P) ⊗ I + P ⊗ (I − R), without the cancellation of ‖J‖² − ‖J Q‖².
            kept = _lift(left, inside[0])
            yield self.rest * _weighted(d - kept, a, None)
            yield self.rest * _weighted(kept, a - _lift(right, inside[1]), None)

    def _factors(
        self, layers: Layers, space: Space, names: list[str], inputs: Callable[[Outer, bool], Tensor]
    ) -> tuple[Tensor, Tensor] | None:
        """a (N, S, I) and d (N, C, S, O) of the matrix [W b] that this block is of; None if it is of something else."""
        first, *columns = self.place.segments
        weight = space.names_in(Place((first,)))[0]
        layer, others = layers[weight], [name for name in names if name != weight]
        if not isinstance(layer, Outer):
            return None
        segments = matrix_segments(space, weight, layer, units=0)
        if first not in segments or len(columns) != len(others) or len(others) > 1:
            return None
        g = segments.index(first)
        for bias in others:
            column = Segment(space.offsets[bias] + g * first.rows, (first.rows, 1), (0, 1))
            if columns != [column] or not is_bias_of(layers[bias], layer):
                return None
        return inputs(layer, bool(others))[:, g], layer.d[:, g]

    def _entrywise(self, layers: Layers, space: Space, names: list[str]) -> Iterator[Covariances]:
        """The same for a diagonal matrix, parameter by parameter."""
        diagonal = self.values.new_zeros(space.size, 1)
        self.place.scatter(self.values.unsqueeze(1), diagonal)
        for name in names:
            layer = layers[name]
            own = diagonal[space.offsets[name] :][: layer.shape.numel(), 0]
            if isinstance(layer, Outer):
                a = layer.a
                for g, segment in enumerate(matrix_segments(space, name, layer, units=0)):
                    place = Place((segment,))
                    yield _weighted(layer.d[:, g], a[:, g], place.gather(diagonal).view(place.rows, place.cols))
            elif isinstance(layer, Lookup):
                yield _looked_up(layer, Identity(layer.shape[1]), own, 0.0)
            else:
                yield _by_rows([layer], partial(torch.mul, own))

    def _of_rows(self, layers: Layers, space: Space, names: list[str]) -> Covariances:
        """The same from the rows of J."""
        shifts, start = {}, 0
        for name in names:
            shifts[name] = start - space.offsets[name]
            start += layers[name].shape.numel()
        owners = [space.names_in(Place((segment,)))[0] for segment in self.place.segments]
        moved = [replace(s, start=s.start + shifts[name]) for s, name in zip(self.place.segments, owners, strict=True)]
        place, spectrum = Place(tuple(moved)), Spectrum(self.values, self.basis, self.rest)

        def times(rows: Float[Tensor, "n P"]) -> Float[Tensor, "n P"]:
            V = rows.T.contiguous()
            out = torch.zeros_like(V)
            place.scatter(spectrum.matmat(place.gather(V)), out)
            return out.T

        def inside(rows: Float[Tensor, "n P"]) -> Float[Tensor, "n R"]:
            return self.basis.project(place.gather(rows.T.contiguous())).T

        chosen = [layers[name] for name in names]
        if self.rest and self.basis.rank < self.basis.size:
            return _by_rows(chosen, times)
        return _by_rows(chosen, partial(torch.mul, self.values), inside)


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
) -> Covariances:
    """Σ_oi w_oi J_oi J_oiᵀ for J = Σ_s d_s ⊗ a_s; all weights are one if none are given."""
    (_, C, S, O), I = d.shape, a.shape[2]
    if S == 1:
        squares = a[:, 0].square()
        scales = squares.sum(1, keepdim=True) if weights is None else product(squares, weights.T)
        d = d[:, :, 0]
        return product(d * scales.unsqueeze(1), d.mT)
    step = _step(d, d.element_size() * C * O * I)
    found = []
    for own, inputs in zip(d.split(step), a.split(step), strict=True):
        J = product(own.transpose(2, 3).reshape(len(own), C * O, S), inputs).view(len(own), C, O, I)
        found.append(product((J if weights is None else J * weights).flatten(2), J.flatten(2).mT))
    return torch.cat(found)


def _looked_up(layer: Lookup, right: Basis, values: Float[Tensor, " R"], rest: float) -> Covariances:
    """For a table with the matrix I ⊗ (Q Λ Qᵀ + ρ (I − Q Qᵀ)), with a Λ for each row: only rows that are read count."""
    sample, row, read = layer.rows()
    inside = _project(right, read)
    found = product(inside * values.view(-1, right.rank)[row].unsqueeze(1), inside.mT)
    if rest and right.rank < right.size:
        left_over = read - _lift(right, inside)
        found += rest * product(left_over, left_over.mT)
    return found.new_zeros(layer.samples, *found.shape[1:]).index_add_(0, sample, found)


def _by_rows(
    layers: list[LayerJacobian],
    times: Callable[[Tensor], Tensor],
    into: Callable[[Tensor], Tensor] = lambda rows: rows,
) -> Covariances:
    """R T Rᵀ for R = `into`(J) and T = `times`, some rows of J at a time."""

    def of(part: list[LayerJacobian]) -> Covariances:
        J = side_by_side(part)
        rows = into(J.flatten(0, 1))
        return product(times(rows).reshape(*J.shape[:2], -1), rows.reshape(*J.shape[:2], -1).mT)

    width = sum(layer.shape.numel() for layer in layers)
    return _in_pieces(layers, _item(layers[0]) * layers[0].outputs * width, of)


def _in_pieces(
    layers: list[LayerJacobian], bytes_per_sample: int, of: Callable[[list[LayerJacobian]], Covariances]
) -> Covariances:
    """What a function finds for so few samples at a time that they take few bytes."""
    n, step = layers[0].samples, _step(layers[0].d, bytes_per_sample)
    if step >= n:
        return of(layers)
    return torch.cat([of([layer.part(slice(i, i + step)) for layer in layers]) for i in range(0, n, step)])


def _step(like: Tensor, bytes_per_sample: int) -> int:
    """How many samples at a time."""
    return max(1, _FORMED.get(like.device.type, 1 << 24) // max(1, bytes_per_sample))


def _item(layer: LayerJacobian) -> int:
    return layer.d.element_size()
