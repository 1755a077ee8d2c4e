"""Number formats of a kernel: in what the factors are held, and how products are summed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

_TERMS = 1 << 16  # of one 16-bit product


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


@contextmanager
def arithmetic(precision: Precision) -> Iterator[None]:
    """Products of float32 matrices in full precision, or in TF32 where it was asked for; the user's setting returns.

    Captures keep full precision in the 16-bit formats, too: an error in a cotangent is in every layer before it.
    """
    rule = "tf32" if precision.name == "tf32" else "ieee"
    cudnn: Any = torch.backends.cudnn
    switches: list[Any] = [torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn]
    before = [switch.fp32_precision for switch in switches]
    try:
        for switch in switches:
            switch.fp32_precision = rule
        yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.fp32_precision = value


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
