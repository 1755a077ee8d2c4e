"""The diagonal, and the entries between each bias and its row of weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchtangent.curvature.diagonal import DiagonalSum
from torchtangent.curvature.representation import Accumulator, Blocks, Layers, Representation, Scope, Side
from torchtangent.jacobians.blocks import matrix_segments
from torchtangent.jacobians.factors import Dense, LayerJacobian, Outer
from torchtangent.operators import ArrowheadOperator, Place, Segment, Space


@dataclass(frozen=True)
class QuasiDiagonal(Representation):
    """For each unit o of a layer: diag over (w_o, b_o), and the entries between b_o and its weights w_o.

    Ollivier (2015), *Riemannian metrics for neural networks*. The matrix of a unit is an arrowhead and may be
    indefinite. For modules that do not have exactly a weight and a bias, only the diagonal is kept.
    """

    def start(self, scope: Scope) -> Accumulator:
        parts: list[Accumulator] = []
        for path, own in scope.modules().items():
            weight, bias = (f"{path}.{a}" if path else a for a in ("weight", "bias"))
            if set(own) == {weight, bias}:
                parts.append(ArrowheadSum(scope.space, weight, bias))
            else:
                parts.append(DiagonalSum(scope.space, own))
        return Side(parts)


class ArrowheadSum(Accumulator):
    """Σ J_w², Σ J_w J_b and Σ J_b², unit by unit."""

    def __init__(self, space: Space, weight: str, bias: str) -> None:
        self.space, self.weight, self.bias = space, weight, bias
        self.segments: list[Segment] = []
        self.sums: list[Tensor] = []
        self.diagonal: DiagonalSum | None = None  # used instead if the weight has no row for each entry of the bias

    def update(self, layers: Layers) -> None:
        weight, bias = layers[self.weight], layers[self.bias]
        fits = _has_rows_for(weight, bias)
        if self.diagonal is None and not self.sums and not fits:
            self.diagonal = DiagonalSum(self.space, [self.weight, self.bias])
        if self.diagonal is not None:
            self.diagonal.update(layers)
            return
        segments = matrix_segments(self.space, self.weight, weight, units=bias.shape.numel()) if fits else []
        alike = segments == self.segments or (fits and all(s.in_order for s in (*segments, *self.segments)))
        if self.sums and not alike:
            raise ValueError(
                f"The model uses '{self.weight}' differently from batch to batch, and not always with a row for each "
                f"entry of '{self.bias}'. Use another representation for them."
            )
        self.segments = segments
        new = _moments(weight, bias)
        self.sums = [a + b for a, b in zip(self.sums, new, strict=True)] if self.sums else new

    def finish(self, n: int) -> Blocks:
        if self.diagonal is not None:
            return self.diagonal.finish(n)
        square, edge, corner = (s / n for s in self.sums)
        blocks: Blocks = []
        start = 0
        for segment in self.segments:
            own = slice(start, start + segment.rows)
            column = Segment(self.space.offsets[self.bias] + start, (segment.rows, 1), (0, 1))
            operator = ArrowheadOperator(square[own], edge[own], corner[own])
            blocks.append((Place((segment, column)), operator))
            start += segment.rows
        return blocks


def _has_rows_for(weight: LayerJacobian, bias: LayerJacobian) -> bool:
    """Whether the weight, as a matrix, has a row for each entry of the bias (which is not empty)."""
    if not bias.shape.numel():
        return False
    if isinstance(weight, Outer):
        return weight.groups * weight.d.shape[-1] == bias.shape.numel()
    if isinstance(weight, Dense) and weight.order:
        return weight.matrix().shape[2] == bias.shape.numel()
    return weight.shape[: len(bias.shape)] == bias.shape


def _moments(weight: LayerJacobian, bias: LayerJacobian) -> list[Tensor]:
    """Σ_nc J_w[o,i]² and Σ_nc J_w[o,i] J_b[o], (O, I), and Σ_nc J_b[o]², (O,)."""
    b, corner = bias.flat(), bias.square_sum().flatten()
    if isinstance(weight, Outer):
        d = torch.einsum("ngcso,ncgo->ngso", weight.d, b.unflatten(2, (weight.groups, -1)))
        edge = torch.einsum("ngso,ngsi->goi", d, weight.a).flatten(0, 1)
        return [weight.square_sum_matrix().flatten(0, 1), edge, corner]
    w = weight.matrix() if isinstance(weight, Dense) and weight.order else weight.dense().reshape(*b.shape, -1)
    return [w.square().sum((0, 1)), torch.einsum("ncoi,nco->oi", w, b), corner]
