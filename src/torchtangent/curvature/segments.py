"""A weight as a matrix with one row for each unit of its layer."""

from __future__ import annotations

from torchtangent.jacobians.factors import Dense, LayerJacobian, Outer
from torchtangent.operators import Segment, Space


def matrix_segments(space: Space, name: str, layer: LayerJacobian, units: int) -> list[Segment]:
    """The segments of a weight, each a matrix (units, inputs): one, or one per group of a convolution."""
    start, numel = space.offsets[name], layer.shape.numel()
    if not (isinstance(layer, Outer | Dense) and layer.order):
        return [Segment(start, (units, numel // units), (0, 1))]
    G = layer.groups
    group = (layer.shape[0] // G, *layer.shape[1:])
    return [Segment(start + g * numel // G, group, layer.order) for g in range(G)]
