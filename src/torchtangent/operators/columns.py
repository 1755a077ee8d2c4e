"""An operator column by column: its products with the unit vectors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.operators.spectrum import square_sum

if TYPE_CHECKING:
    from torchtangent.operators.base import Operator

_CHUNK = 256  # columns of the identity that are multiplied at once


def unit_columns(operator: Operator) -> Iterator[tuple[slice, Float[Tensor, "P K"]]]:
    """The products M e_i of all unit vectors, a chunk of columns at a time, with where they belong."""
    for start in range(0, operator.size, _CHUNK):
        stop = min(start + _CHUNK, operator.size)
        E = torch.zeros(operator.size, stop - start, dtype=operator.dtype, device=operator.device)
        E[start:stop].fill_diagonal_(1)
        yield slice(start, stop), operator._matmat(E)


def column_squares(operator: Operator) -> Float[Tensor, ""]:
    """The trace of M² in float64, as Σ ‖M e_i‖²."""
    return torch.stack([square_sum(columns) for _, columns in unit_columns(operator)]).sum()
