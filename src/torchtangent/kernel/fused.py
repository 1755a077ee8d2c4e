"""The shifted sums of pixels.py in one pass over memory, on GPUs with Triton."""

from __future__ import annotations

from functools import cache
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

_BLOCKS = (1024, 128)  # columns per Triton program, each of which runs as one warp: the fewer if there are few
_PROGRAMS = 4096  # that a GPU runs at a time: with fewer blocks, several programs share the sum of each,
_PAIRS = 16  # unless they had fewer pairs of locations than this to add


def usable(t: Tensor) -> bool:
    """Whether `add_shifted` can be used for a tensor: it needs Triton and a GPU, and sums in float32."""
    return triton is not None and t.is_cuda and t.dtype != torch.float64


def add_shifted(
    out: Float[Tensor, "N R M Q"],
    X: Float[Tensor, "xn xm"],
    D: Float[Tensor, "snr smq"],
    meetings: Int[Tensor, "SS met 2"],
    alpha: float,
) -> None:
    """out[n,r,m,q] += alpha Σ_st (Σ_k X[p_k,n; q_k,m]) D[s,n,r; t,m,q].

    Args:
        out: A block of the kernel.
        X: Products of pixels, with rows (pixel, sample) and columns (pixel, sample). Rows may have more pixels.
        D: Products of cotangents, with rows (location, sample, output) and columns (location, sample, output).
        meetings: For each pair of locations: (s, t), then for each tap the pixels (p, q) that it reads there, with
            p = −1 if one is outside the input. Pairs that share pixels should be close together, to reuse the cache.
        alpha: A factor.
    """
    n, R, m, Q = out.shape
    rows, columns = n * R, m * Q
    block = next((size for size in _BLOCKS if size <= columns), _BLOCKS[-1])
    blocks = triton.cdiv(columns, block)
    shares = max(1, min(_PROGRAMS // (blocks * rows), len(meetings) // _PAIRS))
    target = out.view(1, rows, columns) if shares == 1 else out.new_zeros(shares, rows, columns)
    with torch.cuda.device(out.device):
        _kernel()[blocks * rows, shares](
            *(X, D, meetings, target, alpha, *target.stride(), blocks, n, m, X.shape[1] // m, D.shape[1] // columns),
            *(len(meetings), triton.cdiv(len(meetings), shares)),
            R=R,
            Q=Q,
            TAPS=meetings.shape[1] - 1,
            BLOCK=block,
            num_warps=1,
        )
    if shares > 1:
        out.add_(target.sum(0).view(n, R, m, Q))


_ANY = ("share_step", "blocks", "n", "cells", "S", "many", "each")  # not worth another compilation for round numbers


@cache
def _kernel() -> Any:
    """The kernel, compiled at its first use."""
    return triton.jit(_add_shifted, do_not_specialize=_ANY)


def _add_shifted(  # type: ignore[no-untyped-def]
    X,
    D,
    meetings,
    out,
    alpha,
    share_step,
    row_step,
    column_step,
    blocks,
    n,
    m,
    cells,
    S,
    many,
    each,
    R: tl.constexpr,
    Q: tl.constexpr,
    TAPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = (tl.program_id(0) // blocks).to(tl.int64)
    column = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    share = tl.program_id(1)
    inside = column < m * Q
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for i in range(share * each, min(many, (share + 1) * each)):
        meeting = meetings + i * (2 + 2 * TAPS)
        s = tl.load(meeting)
        t = tl.load(meeting + 1)
        a = tl.zeros([BLOCK], dtype=tl.float32)
        for k in tl.static_range(1, TAPS + 1):
            p = tl.load(meeting + 2 * k)
            q = tl.load(meeting + 2 * k + 1)
            x = tl.load(X + ((p * n + row // R) * cells + q) * m + column // Q, mask=inside & (p >= 0), other=0.0)
            a += x.to(tl.float32)
        d = tl.load(D + ((s * n * R + row) * S + t) * (m * Q) + column, mask=inside, other=0.0)
        total += a * d.to(tl.float32)
    place = out + share * share_step + row * row_step + column * column_step
    tl.store(place, tl.load(place, mask=inside, other=0.0) + alpha * total, mask=inside)
