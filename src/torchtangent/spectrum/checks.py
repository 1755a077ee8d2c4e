"""Checks of kernels: are they finite and symmetric, and which of their eigenvalues does their precision resolve?"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from torchtangent.kernel.matrix import Matrix
from torchtangent.operators.symmetric import asymmetry

_FEW = 64  # rows of a kernel to judge it by
_NEGATIVE = 1e-2  # of the largest eigenvalue: more than even half-precision kernels fall below zero
_NOT_FINITE = "K has NaN or infinity. Check how it was computed."


def check_symmetric(block: Tensor, dtype: torch.dtype) -> None:
    """Refuse K if its block QᵀKQ is not finite or not symmetric."""
    gap = asymmetry(block, dtype)
    if math.isnan(gap):
        raise ValueError(_NOT_FINITE)
    if gap > 0:
        raise ValueError(
            f"K is not symmetric: ‖K − Kᵀ‖ / ‖K‖ is about {gap:.1e}. A kernel of two sets of inputs will "
            "not do here; if this is one of a single set, only not precise enough, pass (K + K.T) / 2."
        )


def check_some_rows(K: Matrix) -> None:
    """Refuse K if it is not finite or not symmetric, judging by some of its rows."""
    few = torch.linspace(0, K.shape[0] - 1, min(K.shape[0], _FEW), dtype=torch.float64, device=K.device).long()
    check_symmetric(K.rows(few)[:, few], K.dtype)


def check_numbers(sums: Tensor) -> None:
    """Refuse K if these sums over its entries are not finite."""
    if not bool(torch.isfinite(sums).all()):
        raise ValueError(_NOT_FINITE)


def resolution(dtype: torch.dtype) -> float:
    """The fraction of the largest eigenvalue below which eigenvalues of a kernel cannot be told from zero.

    Rounding the entries of a kernel moves its eigenvalues by up to about a quarter of eps · λ₁ (measured on float32
    kernels); decomposing it in float64 adds about two roundings of float64.
    """
    return torch.finfo(dtype).eps + 10 * torch.finfo(torch.float64).eps


def resolved(
    values: Float[Tensor, " R"], dtype: torch.dtype, advice: str = ". Check how it was computed."
) -> Bool[Tensor, " R"]:
    """Which eigenvalues of a kernel of this dtype are positive beyond rounding; those of no kernel are refused."""
    if not len(values):
        return torch.zeros_like(values, dtype=torch.bool)
    smallest, largest = (float(end) for end in values.detach().aminmax())
    if smallest < -_NEGATIVE * largest:
        raise ValueError(f"K has eigenvalues from {smallest:.1e} to {largest:.1e}: it is no kernel{advice}")
    return values > resolution(dtype) * largest
