"""Random projections of layer Jacobians, from their factors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.jacobians.factors import LayerJacobian, Lookup, Outer

BLOCK = 64  # columns of a random projection that share a seed


def projected(layers: dict[str, LayerJacobian], dimension: int, seed: int) -> Float[Tensor, "rows R"]:
    """J Ω, not yet divided by √dimension."""
    total: Tensor | None = None
    for place, layer in enumerate(layers.values()):
        times = _rank_one(layer)
        rows = max(1, layer.shape[0]) if layer.shape else 1
        blocks = []
        for block in range(0, dimension, BLOCK):
            signs = signs_of((seed, place, block), rows + layer.shape.numel() // rows).to(layer.d)
            blocks.append(times(signs[:rows, : dimension - block], signs[rows:, : dimension - block]))
        part = torch.cat(blocks, -1).flatten(0, 1)
        total = part if total is None else total.add_(part)
    assert total is not None
    return total


def signs_of(key: tuple[int, ...], rows: int) -> Float[Tensor, "rows K"]:
    """Random signs (rows, 64), the same for the same key on every machine."""
    bits = np.unpackbits(np.frombuffer(np.random.default_rng(key).bytes(rows * BLOCK // 8), np.uint8))
    return torch.from_numpy(bits.reshape(rows, BLOCK)).float().mul_(2).sub_(1)


def _rank_one(layer: LayerJacobian) -> Callable[[Tensor, Tensor], Float[Tensor, "N C K"]]:
    """(p, q) ↦ Σ_rs J[n,c,r,s] p[r] q[s], column by column, for p on the parameter's first axis and q on the others."""
    if isinstance(layer, Outer) and layer.in_order:
        G, C, S, O = layer.d.shape[1:]
        I = layer.columns
        if S * (C * O + I) < C * O * I:  # cheaper than forming J
            a, d = layer.a, layer.d

            def by_factors(p: Tensor, q: Tensor) -> Tensor:
                dp = torch.einsum("ngcso,gok->ngcsk", d, p.reshape(G, O, -1))
                return torch.einsum("ngcsk,ngsk->nck", dp, a @ q)

            return by_factors
    if isinstance(layer, Lookup):
        index, d = layer.index, layer.d
        return lambda p, q: torch.einsum("ncsk,nsk->nck", d @ q, p[index])
    J = layer.flat()
    return lambda p, q: J @ (p[:, None] * q).flatten(0, 1)
