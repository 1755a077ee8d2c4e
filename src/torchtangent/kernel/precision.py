"""Number formats of a kernel: how its factors are stored and how products are summed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.jacobians.call import float32_products
from torchtangent.kernel.split import SplitConvolutions
from torchtangent.notice import check_choice
from torchtangent.operators import product as products

_TERMS = 1 << 13  # longest sum on tensor cores: if all terms have one sign, its relative error is 5e-5
_ENTRIES = 1 << 24  # most entries of products that are computed side by side


@dataclass(frozen=True)
class Precision:
    """The dtype that factors are held in, and the one that the kernel is summed in (at least float32)."""

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


def find_precision(precision: str | torch.dtype | None, model_dtype: torch.dtype) -> Precision:
    """A precision by its name or dtype; None means the model's own, at least float32."""
    if precision is None:
        precision = "float64" if model_dtype == torch.float64 else "float32"
    name = str(precision).removeprefix("torch.")
    check_choice("precision", name, PRECISIONS)
    return PRECISIONS[name]


@contextmanager
def for_captures(precision: Precision, device: torch.device) -> Iterator[None]:
    """Captures run in full precision; nearly so (see split.py) if factors are rounded to 16 bits afterwards.

    With "tf32", only convolutions run in TF32: in a fully connected network TF32 would flip so many ReLUs that the
    kernel is off by a percent. An error in one layer's cotangent spreads to all layers before it.
    """
    with (
        float32_products(convolution="tf32" if precision.name == "tf32" else "ieee"),
        SplitConvolutions() if precision.half and device.type == "cuda" else nullcontext(),
    ):
        yield


def for_contractions(precision: Precision) -> AbstractContextManager[None]:
    """Contractions of float32 factors run in full precision, or in TF32."""
    return float32_products(matmul="tf32" if precision.name == "tf32" else "ieee")


def multiply(x: Float[Tensor, "*B n k"], y: Float[Tensor, "*B m k"]) -> Float[Tensor, "*B n m"]:
    """x yᵀ, summed and returned in at least float32."""
    if x.element_size() > 2:
        return products.product(x, y.mT)
    if x.is_cuda and x.dim() == 2:
        return torch.mm(x, y.mT, out_dtype=torch.float32)
    if x.is_cuda:
        return torch.bmm(x, y.mT, out_dtype=torch.float32)
    return products.product(x.float(), y.mT.float())


def add_product(out: Float[Tensor, "n m"], x: Float[Tensor, "n k"], y: Float[Tensor, "m k"], alpha: float) -> None:
    """out += alpha x yᵀ.

    Tensor cores truncate the low bits of their running sum instead of rounding, an error that grows with the number of
    terms; so long sums are taken in pieces.
    """
    if x.is_cuda:
        _add_pieces(out, x, y, alpha)
        return
    terms = _TERMS if x.dtype != out.dtype else max(1, x.shape[1])
    for a, b in zip(x.split(terms, 1), y.split(terms, 1), strict=True):
        products.add_product(out, a.to(out.dtype), b.to(out.dtype).mT, alpha)


def _add_pieces(out: Float[Tensor, "n m"], x: Float[Tensor, "n k"], y: Float[Tensor, "m k"], alpha: float) -> None:
    """The same on a GPU. A small product would not fill it, so several pieces of its sum are computed side by side."""
    short = _TERMS // 2
    many = min(_ENTRIES, x.numel() // 8) // max(1, out.numel())
    whole = x.shape[1] // short * short if many > 1 else 0
    for i in range(0, whole, max(1, many) * short):
        a, b = (t[:, i : min(i + many * short, whole)].unflatten(1, (-1, short)).transpose(0, 1) for t in (x, y))
        out.add_(multiply(a, b).sum(0), alpha=alpha)
    for a, b in zip(x[:, whole:].split(_TERMS, 1), y[:, whole:].split(_TERMS, 1), strict=True):
        if a.dtype == out.dtype:
            out.addmm_(a, b.mT, alpha=alpha)
        else:
            torch.addmm(out, a, b.mT, out_dtype=out.dtype, alpha=alpha, out=out)
