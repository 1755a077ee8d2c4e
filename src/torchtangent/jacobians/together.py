"""Jacobians of several uses of one parameter, or of several parameters, together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce

import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.jacobians.factors import Dense, LayerJacobian, Lookup, Outer, Scale
from torchtangent.operators import memory


def is_bias_of(bias: LayerJacobian, weight: LayerJacobian) -> bool:
    """Whether a bias shares the cotangents of a weight: its entry o has those of row o."""
    if not (isinstance(bias, Scale) and bias.x is None and isinstance(weight, Outer)):
        return False
    together = () != bias.origin == weight.origin and bias.starts == weight.starts
    return together and bias.shape.numel() == weight.groups * weight.d.shape[-1]


def side_by_side(layers: Sequence[LayerJacobian], width: int | None = None) -> Float[Tensor, "N C P"]:
    """The J of several parameters next to each other, each flattened; zeros fill it up to `width`."""
    widths = [layer.shape.numel() for layer in layers]
    width = sum(widths) if width is None else width
    dtype = reduce(torch.promote_types, (layer.d.dtype for layer in layers))
    J = memory.empty((layers[0].samples, layers[0].outputs, width), dtype, layers[0].d.device)
    *places, rest = J.split([*widths, width - sum(widths)], 2)
    for layer, place in zip(layers, places, strict=True):
        write(layer, place)
    rest.zero_()
    return J


def write(layer: LayerJacobian, J: Float[Tensor, "N C P"]) -> None:
    """Write the Jacobian of a parameter, flattened, into a part of J."""
    if isinstance(layer, Outer) and layer.in_order:
        layer.form_into(J)
    else:
        J.copy_(layer.flat())


def merge(uses: Sequence[LayerJacobian]) -> LayerJacobian:
    """The Jacobian of a parameter used several times: uses of one kind are joined along locations, others summed."""
    if len(uses) == 1:
        return uses[0]
    outers = [u for u in uses if isinstance(u, Outer)]
    lookups = [u for u in uses if isinstance(u, Lookup)]
    biases = [u for u in uses if isinstance(u, Scale) and u.x is None]
    if len(outers) == len(uses) and len({(u.order, u.groups) for u in outers}) == 1:
        together = outers[0].at(torch.cat([u.a for u in outers], 2), torch.cat([u.d for u in outers], 3))
        return replace(together, origin=_joined(u.origin for u in outers), starts=_joined(u.starts for u in outers))
    if len(lookups) == len(uses) and len({u.padding for u in lookups}) == 1:
        index = torch.cat([u.index for u in lookups], 1)
        return replace(lookups[0], index=index, d=torch.cat([u.d for u in lookups], 2))
    if len(biases) == len(uses):
        origin, starts = _joined(u.origin for u in biases), _joined(u.starts for u in biases)
        return replace(biases[0], d=torch.cat([u.d for u in biases], 2), origin=origin, starts=starts)
    return Dense(torch.stack([u.dense() for u in uses]).sum(0), uses[0].shape)


def _joined(parts: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return sum(parts, ())
