"""Norms of numbers whose squares would overflow or underflow, and of matrices that are known by their products."""

from __future__ import annotations

from collections.abc import Callable

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


@torch.no_grad()
def largest_eigenvalue(times: Callable[[Tensor], Tensor], like: Float[Tensor, "rows ..."], steps: int = 10) -> float:
    """A slight underestimate of the largest |λ| of a symmetric matrix, by the power method from four random vectors.

    Args:
        times: The product with a matrix of columns (rows, 4).
        like: A tensor with as many rows, of the same dtype and on the same device.
        steps: The number of products.

    >>> round(largest_eigenvalue(lambda V: torch.tensor([[2.0], [-3.0]]) * V, torch.zeros(2)), 2)
    3.0
    """
    V = torch.randn(len(like), 4, generator=torch.Generator().manual_seed(0), device="cpu").to(like)
    for _ in range(steps):
        V = times(V / column_norms(V).clamp(min=torch.finfo(V.dtype).tiny))
    return float(column_norms(V).max())
