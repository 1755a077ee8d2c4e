"""The weight of a linear map as G matrices (O, I), one for each group of a convolution, and back.

`order` lists the axes of one group's weight as they appear in its matrix: first that of O, then those of I.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from jaxtyping import Float
from torch import Tensor


def transposed_order(dims: int) -> tuple[int, ...]:
    """The order of a transposed convolution, whose weight has its input channels first."""
    return (1, 0, *range(2, dims))


def as_matrices(t: Tensor, groups: int, order: Sequence[int]) -> Float[Tensor, "*lead G O I"]:
    """A weight, or a tensor that has its shape after some leading axes, as matrices.

    >>> import torch
    >>> as_matrices(torch.zeros(7, 8, 2, 3, 3), 4, transposed_order(4)).shape
    torch.Size([7, 4, 2, 18])
    """
    lead, shape = t.shape[: t.dim() - len(order)], t.shape[t.dim() - len(order) :]
    group = _group(shape, groups)
    size = group[order[0]], prod(group[i] for i in order[1:])
    if not in_order(order):
        t = t.reshape(*lead, groups, *group).permute(*_behind(len(lead) + 1, order))
    return t.reshape(*lead, groups, *size)


def as_weight(matrices: Float[Tensor, "*lead G O I"], shape: Sequence[int], order: Sequence[int]) -> Tensor:
    """The inverse of `as_matrices`."""
    *lead, groups = matrices.shape[:-2]
    if not in_order(order):
        group = _group(shape, groups)
        back = sorted(range(len(order)), key=lambda i: order[i])
        matrices = matrices.reshape(*lead, groups, *(group[i] for i in order)).permute(*_behind(len(lead) + 1, back))
    return matrices.reshape(*lead, *shape)


def _group(shape: Sequence[int], groups: int) -> tuple[int, ...]:
    """The shape of one group, which is a slice of the weight's first axis."""
    return (shape[0] // groups, *shape[1:])


def in_order(order: Sequence[int]) -> bool:
    return all(i == axis for i, axis in enumerate(order))


def _behind(lead: int, order: Sequence[int]) -> list[int]:
    """The order of all axes, with `lead` leading ones that stay in place."""
    return [*range(lead), *(lead + i for i in order)]
