"""Whether K + ridge·I can be inverted in the precision of K, and advice if not."""

from __future__ import annotations

import math

import torch

from torchtangent.notice import dtype_name
from torchtangent.spectrum.checks import resolution


def checked_ridge(ridge: float) -> float:
    """The ridge as a float; an error if it is negative or infinite."""
    if not 0 <= float(ridge) < math.inf:
        raise ValueError(f"ridge must be a finite number >= 0, got {ridge}.")
    return float(ridge)


def check_invertible(smallest: float, largest: float, ridge: float, dtype: torch.dtype, *, instead: str = "") -> None:
    """Refuse a K of this dtype if the smallest eigenvalue of K + ridge·I is zero up to rounding."""
    if not smallest > resolution(dtype) * largest:
        raise singular(smallest, largest, ridge, dtype, instead=instead)


def singular(smallest: float, largest: float, ridge: float, dtype: torch.dtype, *, instead: str = "") -> ValueError:
    """The error for a K + ridge·I with these extreme eigenvalues, which has no inverse in the precision of K.

    It advises a ridge with which the inverse has about six digits, or something else to do `instead`.
    """
    size = max(abs(smallest), abs(largest), ridge)
    if size == 0:
        return ValueError("K is zero: it has no inverse, and fits nothing. Check how it was computed.")
    name, precision = "K + ridge·I" if ridge else "K", dtype_name(dtype)
    more = max(0.0, -1.1 * smallest) + 10 * max(resolution(dtype), 1e-10) * size  # the smallest may be estimated
    enough = rounded_up(ridge + more)
    if -smallest > 10 * resolution(dtype) * size:
        return ValueError(
            f"{name} is not positive definite: its smallest eigenvalue is {smallest:.1e}, more below zero than "
            f"{precision} explains. Check how K was computed, or pass a ridge of at least {enough}."
        )
    condition = f"at least {largest / abs(smallest):.1e}" if smallest else "infinity"
    return ValueError(
        f"{name} is singular to rounding: its eigenvalues go from {smallest:.1e} to {largest:.1e}, a condition number "
        f"of {condition}, too large for {precision}. Pass a ridge of at least {enough}"
        f"{instead}{'' if dtype == torch.float64 else '; or compute K in float64'}."
    )


def rounded_up(x: float) -> str:
    """A positive number, rounded up to two digits.

    >>> rounded_up(0.6711), rounded_up(1e-6), rounded_up(123.0)
    ('0.68', '1e-06', '1.3e+02')
    """
    unit = 10.0 ** (math.floor(math.log10(x)) - 1)
    return f"{math.ceil(x / unit * (1 - 1e-12)) * unit:.2g}"
