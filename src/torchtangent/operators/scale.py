"""Norms of numbers whose squares would overflow or underflow."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def scale_of(t: Float[Tensor, "..."], dim: int | tuple[()] = ()) -> Float[Tensor, "..."]:
    """The largest absolute value, of all entries or along an axis; 1 where every entry is zero.

    Entries divided by it can be squared and summed.

    >>> scale_of(torch.tensor([[3e30, 0.0], [-4e30, 0.0]]), 0)
    tensor([4.0000e+30, 1.0000e+00])
    """
    largest = t.abs().amax(dim)
    return torch.where(largest > 0, largest, 1)


def column_norms(V: Float[Tensor, "rows K"]) -> Float[Tensor, " K"]:
    """‖v‖ of every column, at any scale.

    >>> column_norms(torch.tensor([[3e30, 0.0], [-4e30, 0.0]]))
    tensor([5.0000e+30, 0.0000e+00])
    """
    scale = scale_of(V, 0)
    return scale * torch.linalg.vector_norm(V / scale, dim=0)
