"""Symmetric matrices of which only the lower half is computed."""

from __future__ import annotations

import math

from jaxtyping import Float
from torch import Tensor

_BLOCK = 128  # rows at a time
_STRIPS = 8


def add_gram(total: Float[Tensor, "I I"], rows: Float[Tensor, "R I"]) -> None:
    """Add rowsᵀ rows to the lower triangle of `total` (what stands above the diagonal is not defined)."""
    n = rows.shape[1]
    step = max(_BLOCK, math.ceil(n / _STRIPS))
    for i in range(0, n, step):
        end = min(i + step, n)
        total[i:end, :end].addmm_(rows[:, i:end].T, rows[:, :end])


def reflect(lower: Float[Tensor, "I I"]) -> Float[Tensor, "I I"]:
    """Write the lower triangle over the upper one, in place, and return the symmetric matrix."""
    n = len(lower)
    step = max(_BLOCK, n // 64)
    for i in range(0, n, step):
        end = min(i + step, n)
        corner = lower[i:end, i:end]
        corner.copy_(corner.tril() + corner.tril(-1).T)
        lower[:i, i:end] = lower[i:end, :i].T
    return lower
