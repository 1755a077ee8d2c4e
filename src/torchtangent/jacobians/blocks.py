"""A weight as matrices with one row for each unit of its layer, and with a bias as their last column."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

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


def with_ones(a: Float[Tensor, "N G S I"]) -> Float[Tensor, "N G S J"]:
    """[a 1], in the memory layout of a."""
    if a.stride(3) == 1:
        return torch.cat([a, a.new_ones(1).expand(*a.shape[:3], 1)], 3)
    stored = a.permute(1, 3, 0, 2)
    one = a.new_ones(1).expand(stored.shape[0], 1, *stored.shape[2:])
    return torch.cat([stored, one], 1).permute(2, 0, 3, 1)
