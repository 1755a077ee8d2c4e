"""The shifted sums of pixels.py in one pass over memory, on GPUs with Triton."""

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

_BLOCK = 1024  # columns per Triton program, each of which runs as one warp


def usable(t: Tensor) -> bool:
    """Whether `add_shifted` can be used for a tensor: it needs Triton and a GPU, and sums in float32."""
    return triton is not None and t.is_cuda and t.dtype != torch.float64


def add_shifted(
    out: Float[Tensor, "N M"],
    X: Float[Tensor, "xn xm"],
    D: Float[Tensor, "sn sm"],
    meetings: Int[Tensor, "SS met 2"],
    alpha: float,
) -> None:
    """out[n,m] += alpha Σ_st (Σ_k X[p_k,n; q_k,m]) D[s,n; t,m].

    Args:
        out: A block of the kernel.
        X: Products of pixels, with rows (pixel, sample) and columns (pixel, sample). Rows may have more pixels.
        D: Products of cotangents, with rows (location, sample) and columns (location, sample).
        meetings: For each pair of locations: (s, t), then for each tap the pixels (p, q) that it reads there, with
            p = −1 if one is outside the input. Pairs that share pixels should be close together, to reuse the cache.
        alpha: A factor.
    """
    n, m = out.shape
    S, cells = D.shape[1] // m, X.shape[1] // m
    grid = (triton.cdiv(m, _BLOCK), n)
    with torch.cuda.device(out.device):
        _kernel()[grid](
            *(X, D, meetings, out, alpha, n, m, out.stride(0), out.stride(1), S, cells, len(meetings)),
            TAPS=meetings.shape[1] - 1,
            BLOCK=_BLOCK,
            num_warps=1,
        )


_compiled: Any = None


def _kernel() -> Any:
    """The kernel, compiled at its first use."""
    global _compiled
    if _compiled is None:
        _compiled = triton.jit(_add_shifted)
    return _compiled


def _add_shifted(  # type: ignore[no-untyped-def]
    X, D, meetings, out, alpha, n, m, row, column, S, cells, many, TAPS: tl.constexpr, BLOCK: tl.constexpr
):
    sample = tl.program_id(1).to(tl.int64)
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < m
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for i in range(many):
        meeting = meetings + i * (2 + 2 * TAPS)
        s = tl.load(meeting)
        t = tl.load(meeting + 1)
        a = tl.zeros([BLOCK], dtype=tl.float32)
        for k in tl.static_range(1, TAPS + 1):
            p = tl.load(meeting + 2 * k)
            q = tl.load(meeting + 2 * k + 1)
            x = tl.load(X + ((p * n + sample) * cells + q) * m + columns, mask=inside & (p >= 0), other=0.0)
            a += x.to(tl.float32)
        d = tl.load(D + ((s * n + sample) * S + t) * m + columns, mask=inside, other=0.0)
        total += a * d.to(tl.float32)
    place = out + sample * row + columns * column
    tl.store(place, tl.load(place, mask=inside, other=0.0) + alpha * total, mask=inside)
