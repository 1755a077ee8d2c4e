"""The shifted sums of `pixels` in one pass over memory, on GPUs with Triton."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

triton: Any
tl: Any
try:
    triton, tl = import_module("triton"), import_module("triton.language")
except ImportError:  # no GPU build of torch
    triton = tl = None

_BLOCK = 512  # columns of a program


def usable(t: Tensor) -> bool:
    """Whether `add_shifted`, which sums in float32, does for a tensor where it lives."""
    return triton is not None and t.is_cuda and t.dtype != torch.float64


def add_shifted(
    out: Float[Tensor, "N M"],
    X: Float[Tensor, "xn xm"],
    D: Float[Tensor, "sn sm"],
    starts: Int[Tensor, "ss1"],
    pairs: Int[Tensor, "e 2"],
    alpha: float,
) -> None:
    """out[n,m] += alpha Σ_st (Σ_e X[p_e,n; q_e,m]) D[s,n; t,m].

    Args:
        out: A block of the kernel.
        X: Products of pixels, rows (pixel, sample) and columns (pixel, sample).
        D: Products of cotangents, rows (location, sample) and columns (location, sample).
        starts: Where the list of each pair of locations (s, t) starts; and its end.
        pairs: The pixels (p, q) that meet.
        alpha: A factor.
    """
    n, m = out.shape
    S, pixels = D.shape[0] // n, X.shape[0] // n
    grid = (triton.cdiv(m, _BLOCK), n)
    with torch.cuda.device(out.device):
        _kernel()[grid](X, D, starts, pairs, out, alpha, n, m, out.stride(0), out.stride(1), S, pixels, BLOCK=_BLOCK)


_compiled: Any = None


def _kernel() -> Any:
    """The kernel, compiled at its first use."""
    global _compiled
    if _compiled is None:
        _compiled = triton.jit(_add_shifted)
    return _compiled


def _add_shifted(X, D, starts, pairs, out, alpha, n, m, row, column, S, pixels, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    sample = tl.program_id(1).to(tl.int64)
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < m
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for s in range(S):
        D_row = D + (s * n + sample) * S * m
        for t in range(S):
            a = tl.zeros([BLOCK], dtype=tl.float32)
            first = tl.load(starts + s * S + t)
            end = tl.load(starts + s * S + t + 1)
            for e in range(first, end):
                p = tl.load(pairs + 2 * e)
                q = tl.load(pairs + 2 * e + 1)
                a += tl.load(X + ((p * n + sample) * pixels + q) * m + columns, mask=inside, other=0.0).to(tl.float32)
            d = tl.load(D_row + t * m + columns, mask=inside, other=0.0).to(tl.float32)
            total += a * d
    place = out + sample * row + columns * column
    tl.store(place, tl.load(place, mask=inside, other=0.0) + alpha * total, mask=inside)
