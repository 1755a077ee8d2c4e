"""The second moments A and B of KFAC and EKFAC, for one weight (and its bias, if they share cotangents)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.curvature.moments import Moment
from torchtangent.curvature.representation import Layers
from torchtangent.jacobians.blocks import matrix_segments, with_ones
from torchtangent.jacobians.factors import LayerJacobian, Lookup, Outer
from torchtangent.operators import Basis, DiagonalOperator, Operator, Place, Segment, Space
from torchtangent.operators.product import product

Kind = TypeVar("Kind", bound=LayerJacobian)


class LayerMoments(ABC):
    """Second moments of a layer's inputs (A) and cotangents (B), with one block per group."""

    places: list[Place]
    device: torch.device

    def add(self, layers: Layers) -> None:
        """Add some samples to A and B."""
        self.add_inputs(layers)
        self.add_cotangents(layers)

    @abstractmethod
    def add_inputs(self, layers: Layers) -> None:
        """Add some samples to A."""

    @abstractmethod
    def add_cotangents(self, layers: Layers) -> None:
        """Add some cotangents of these samples to B."""

    @abstractmethod
    def factors(self, n: int) -> list[tuple[Operator, Operator]]:
        """For each block, its left and right Kronecker factors as means over n samples. Uses up the sums."""

    @abstractmethod
    def rotated_squares(self, layers: Layers, bases: list[tuple[Basis, Basis]]) -> list[Tensor]:
        """For each block, Σ_nm (Q_Lᵀ J Q_R)²: the squares of the Jacobian in a Kronecker basis."""


class OuterMoments(LayerMoments):
    """Linear layers and convolutions: rows are output units, columns are inputs, the last column is the bias."""

    def __init__(self, space: Space, weight: str, layer: Outer, bias: str | None, sharing: str, *, thin: bool) -> None:
        self.weight, self.bias, self.sharing = weight, bias, sharing
        self.A, self.B, self.device = Moment(thin), Moment(thin), layer.d.device
        self.locations = 0
        self.places = []
        start = space.offsets[bias] if bias else 0
        for segment in matrix_segments(space, weight, layer, units=0):
            column = [Segment(start, (segment.rows, 1), (0, 1))] if bias else []
            self.places.append(Place((segment, *column)))
            start += segment.rows

    def add_inputs(self, layers: Layers) -> None:
        a = _expect(layers[self.weight], Outer, self.weight).a
        if self.sharing == "reduce":
            a = a.mean(2, keepdim=True)
        if self.bias:
            a = with_ones(a)
        add_locations(self.A, a.transpose(0, 1), partial(input_rows, a))
        self.locations += a.shape[0] * a.shape[2]

    def add_cotangents(self, layers: Layers) -> None:
        d = _expect(layers[self.weight], Outer, self.weight).d
        if self.sharing == "reduce":
            d = d.sum(3, keepdim=True)
        add_locations(self.B, _stacked(d), partial(cotangent_rows, d))

    def factors(self, n: int) -> list[tuple[Operator, Operator]]:
        return list(zip(self.B.operators(1 / n), self.A.operators(1 / self.locations), strict=True))

    def rows_or_lower(self, b: float | Tensor, a: float) -> tuple[Float[Tensor, "G _ O"], Float[Tensor, "G _ J"]]:
        """For all blocks, b times the sum B and a times the mean A over locations. Uses up the sums."""
        return self.B.rows_or_lower(b), self.A.rows_or_lower(a / self.locations)

    def rotated_squares(self, layers: Layers, bases: list[tuple[Basis, Basis]]) -> list[Tensor]:
        layer = _expect(layers[self.weight], Outer, self.weight)
        left, right = zip(*bases, strict=True)
        total: Tensor | float = 0.0
        _, _, C, S, O = layer.d.shape
        for part in layer.chunks(layer.d.element_size() * S * (C * O + layer.shape.numel() // O)):
            a = with_ones(part.a) if self.bias else part.a
            rotated = part.at(_rotate_inputs(a, right), _rotate_cotangents(part.d, left))
            total = total + rotated.square_sum_matrix()
        assert isinstance(total, Tensor)
        return list(total)


class LookupMoments(LayerMoments):
    """Embeddings: inputs are unit vectors, so A is diagonal and counts how often each row except padding is read."""

    def __init__(self, space: Space, weight: str, layer: Lookup) -> None:
        self.weight = weight
        self.counts = layer.d.new_zeros(layer.shape[0])
        self.B, self.device = Moment(), layer.d.device
        self.places = [Place((Segment(space.offsets[weight], tuple(layer.shape), (0, 1)),))]

    def add_inputs(self, layers: Layers) -> None:
        layer = _expect(layers[self.weight], Lookup, self.weight)
        self.counts += torch.bincount(layer.index.flatten(), minlength=len(self.counts)).to(self.counts)
        if layer.padding is not None:  # it has no derivative, so it does not count as a location
            self.counts[layer.padding] = 0

    def add_cotangents(self, layers: Layers) -> None:
        layer = _expect(layers[self.weight], Lookup, self.weight)
        self.B.add(layer.d.reshape(1, -1, layer.shape[1]))

    def factors(self, n: int) -> list[tuple[Operator, Operator]]:
        return [(DiagonalOperator(self.counts / self.counts.sum().clamp(min=1)), self.B.operators(1 / n)[0])]

    def rotated_squares(self, layers: Layers, bases: list[tuple[Basis, Basis]]) -> list[Tensor]:
        layer = _expect(layers[self.weight], Lookup, self.weight)
        Q = bases[0][1].dense()
        _, row, values = layer.rows()
        rotated = (values @ Q).square().sum(1)
        return [rotated.new_zeros(layer.shape[0], Q.shape[1]).index_add_(0, row, rotated)]


def add_locations(moment: Moment, t: Float[Tensor, "G B S X"], rows: Callable[[], Float[Tensor, "G R X"]]) -> None:
    """Add all rows t[g, b, s, :], which `rows` returns as (G, R, X), to the moment.

    With many locations and short rows, one small product per b is faster than one product of all rows.
    """
    if t.shape[2] >= 8 * t.shape[3]:
        moment.add_matrix((t.mT @ t).sum(1))
    else:
        moment.add(rows())


def input_rows(a: Float[Tensor, "N G S I"]) -> Float[Tensor, "G R I"]:
    """One row for each sample and location; without a copy in the memory layout of patches."""
    if a.stride(3) == 1:
        return a.transpose(0, 1).reshape(a.shape[1], -1, a.shape[3])
    return a.permute(1, 3, 0, 2).reshape(a.shape[1], a.shape[3], -1).transpose(1, 2)


def cotangent_rows(d: Float[Tensor, "N G C S O"]) -> Float[Tensor, "G R O"]:
    """One row for each sample, output and location."""
    stacked = _stacked(d)
    if d.stride(4) == 1:
        return stacked.flatten(1, 2)
    return stacked.permute(0, 3, 1, 2).flatten(2).transpose(1, 2)


def _stacked(d: Float[Tensor, "N G C S O"]) -> Float[Tensor, "G R S O"]:
    """Cotangents with samples and outputs on one axis, in the order in which they are stored."""
    return d.permute(1, *_stored(d), 3, 4).flatten(1, 2)


def _stored(d: Float[Tensor, "N G C S O"]) -> tuple[int, int]:
    """The axes of samples and outputs, the outer one in memory first."""
    return (0, 2) if d.stride(0) > d.stride(2) else (2, 0)


def _rotate_inputs(a: Float[Tensor, "N G S I"], bases: tuple[Basis, ...]) -> Float[Tensor, "N G S r"]:
    N, G, S, _ = a.shape
    Q = torch.stack([basis.dense() for basis in bases])
    if a.stride(3) == 1:
        return product(a.transpose(0, 1).reshape(G, N * S, -1), Q).view(G, N, S, -1).transpose(0, 1)
    return product(Q.mT, input_rows(a).mT).view(G, -1, N, S).permute(2, 0, 3, 1)


def _rotate_cotangents(d: Float[Tensor, "N G C S O"], bases: tuple[Basis, ...]) -> Float[Tensor, "N G C S r"]:
    S, axes = d.shape[3], _stored(d)
    Q = torch.stack([basis.dense() for basis in bases])
    if d.stride(4) == 1:
        rotated = product(cotangent_rows(d), Q).unflatten(1, (-1, S))
    else:
        rotated = (Q.mT.unsqueeze(1) @ _stacked(d).mT).mT
    return rotated.unflatten(1, [d.shape[axis] for axis in axes]).movedim((1, 0, 2), (axes[0], 1, axes[1]))


def _expect(layer: LayerJacobian, kind: type[Kind], name: str) -> Kind:
    """The layer Jacobian, which should be of this kind as in the first batch."""
    if not isinstance(layer, kind):
        raise ValueError(
            f"The model uses '{name}' differently from batch to batch, or in some not at all (as experts); a "
            "Kronecker representation needs one form. Use another representation for it, or larger batches."
        )
    return layer
