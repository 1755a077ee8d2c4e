"""Number formats of a kernel: in what the factors are held, and how products are summed."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.jacobians.call import float32_products

_TERMS = 1 << 15  # of one 16-bit product


@dataclass(frozen=True)
class Precision:
    """What the factors are held in, and what the kernel is summed in (never below float32)."""

    name: str
    held: torch.dtype
    total: torch.dtype = torch.float32

    @property
    def half(self) -> bool:
        """Whether factors are held in 16 bits."""
        return self.held.itemsize == 2


PRECISIONS = {
    p.name: p
    for p in (
        Precision("float64", torch.float64, torch.float64),
        Precision("float32", torch.float32),
        Precision("tf32", torch.float32),
        Precision("bfloat16", torch.bfloat16),
        Precision("float16", torch.float16),
    )
}


def find_precision(name: str | None, model_dtype: torch.dtype) -> Precision:
    """A precision by its name; None is the model's own, float32 at least."""
    if name is None:
        name = "float64" if model_dtype == torch.float64 else "float32"
    if name not in PRECISIONS:
        raise ValueError(f"precision={name!r} is not one of {', '.join(map(repr, PRECISIONS))}.")
    return PRECISIONS[name]


def for_captures(precision: Precision) -> AbstractContextManager[None]:
    """Captures run in full precision, also where factors are rounded afterwards; convolutions in TF32 if it is asked.

    An error in a cotangent is in every layer before it. And in a fully connected network TF32 turns so many ReLUs to
    the wrong side that its kernel is off by a percent.
    """
    return float32_products(convolution="tf32" if precision.name == "tf32" else "ieee")


def for_contractions(precision: Precision) -> AbstractContextManager[None]:
    """Contractions of float32 factors run in full precision, or in TF32."""
    return float32_products(matmul="tf32" if precision.name == "tf32" else "ieee")


def multiply(x: Float[Tensor, "*B n k"], y: Float[Tensor, "*B m k"]) -> Float[Tensor, "*B n m"]:
    """x yᵀ, summed and returned in float32 at least."""
    if x.element_size() > 2:
        return x @ y.mT
    if x.is_cuda and x.dim() == 2:
        return torch.mm(x, y.mT, out_dtype=torch.float32)
    if x.is_cuda:
        return torch.bmm(x, y.mT, out_dtype=torch.float32)
    return x.float() @ y.mT.float()


def add_product(out: Float[Tensor, "n m"], x: Float[Tensor, "n k"], y: Float[Tensor, "m k"], alpha: float) -> None:
    """out += alpha x yᵀ.

    Tensor cores cut off the low bits of their running sum instead of rounding it, an error that grows with the number
    of terms; so 16-bit products are summed in pieces.
    """
    if x.dtype == out.dtype:
        out.addmm_(x, y.mT, alpha=alpha)
        return
    for k in range(0, x.shape[1], _TERMS):
        out.add_(multiply(x[:, k : k + _TERMS], y[:, k : k + _TERMS]), alpha=alpha)
