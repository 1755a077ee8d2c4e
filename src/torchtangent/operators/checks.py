"""Checks of the arguments of operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, SupportsFloat

import torch
from torch import Tensor

from torchtangent.notice import dtype_name

if TYPE_CHECKING:
    from torchtangent.operators.base import Operator
    from torchtangent.operators.basis import Basis

Number = float | int | Tensor
"""A damping or a factor; a tensor must hold a single number."""


def check_real(dtype: torch.dtype) -> None:
    """Refuse complex numbers and integers."""
    if not dtype.is_floating_point:
        raise ValueError(f"An operator holds floating-point numbers, which {dtype_name(dtype)} are not.")


def check_alike(parts: Sequence[Operator | Basis | Tensor]) -> None:
    """Refuse to combine what has different dtypes or devices; an identity may have none."""
    kinds = {(part.dtype, part.device.type) for part in parts if part.dtype is not None and part.device is not None}
    if len(kinds) > 1:
        said = " and ".join(sorted(f"{dtype_name(dtype)} on {device}" for dtype, device in kinds))
        raise ValueError(f"These parts do not go together: {said}. Convert some with .to().")


def constant(number: Number, what: str) -> float:
    """A number, by which nothing is differentiated."""
    if isinstance(number, Tensor) and number.requires_grad:
        raise ValueError(
            f"{what} requires a gradient, which an operator would lose. Multiply the result, or .detach()."
        )
    return float(number)


def checked_damping(damping: Number, dtype: torch.dtype) -> float:
    """The damping as a float; an error if it is negative, not finite in this dtype, or not a single number."""
    if not isinstance(damping, int | float | Tensor | SupportsFloat):  # the last, which takes long, for NumPy's numbers
        raise TypeError(f"damping is one number, got a {type(damping).__name__}.")
    by_vmap = isinstance(damping, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(damping)
    if isinstance(damping, Tensor) and (by_vmap or damping.numel() != 1):
        raise ValueError(
            f"damping is one number, got {'some by vmap' if by_vmap else tuple(damping.shape)}. For several, call once "
            "for each: eigenvectors are kept. For one per parameter, add them to the operator: "
            "M + torchtangent.operators.DiagonalOperator(d)."
        )
    if isinstance(damping, Tensor) and damping.requires_grad:
        raise ValueError("Only logdet is differentiable with respect to the damping: pass damping.detach().")
    if not 0 <= float(damping) <= torch.finfo(dtype).max:
        raise ValueError(f"damping must be a finite number >= 0 in {dtype_name(dtype)}, got {damping}.")
    return float(damping)
