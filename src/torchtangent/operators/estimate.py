"""Traces and diagonals from random products, with their standard errors (Hutchinson 1990)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

CHUNK = 32
"""Probes multiplied at once."""


class Estimate(NamedTuple):
    """A random estimate.

    Attributes:
        value: unbiased.
        standard_error: of the value, from the spread of the probes.
    """

    value: Tensor
    standard_error: Tensor


@dataclass(frozen=True)
class Samples:
    """Running sums over probes z of zᵀMz and of z ∘ Mz, and of their squares."""

    probes: int
    trace_sums: Float[Tensor, " 2"]
    diagonal_sums: Float[Tensor, "2 P"]

    def trace(self) -> Estimate:
        """The estimate of tr M."""
        return self._mean(self.trace_sums)

    def diagonal(self) -> Estimate:
        """The estimate of diag M."""
        return self._mean(self.diagonal_sums)

    def _mean(self, sums: Tensor) -> Estimate:
        mean, square = sums / self.probes
        variance = (square - mean.square()).clamp(min=0) / (self.probes - 1)
        return Estimate(mean, variance.sqrt())


def hutchinson(
    matmat: Callable[[Tensor], Tensor],
    size: int,
    dtype: torch.dtype,
    device: torch.device,
    probes: int,
    seed: int,
) -> Samples:
    """Multiply M by vectors of random signs."""
    if probes < 2:
        raise ValueError(f"An estimate with a standard error needs at least 2 probes, got {probes}.")
    generator = torch.Generator().manual_seed(seed)
    trace_sums = torch.zeros(2, dtype=dtype, device=device)
    diagonal_sums = torch.zeros(2, size, dtype=dtype, device=device)
    for start in range(0, probes, CHUNK):
        count = min(CHUNK, probes - start)
        signs = torch.randint(0, 2, (size, count), generator=generator, dtype=torch.int8)
        Z = (2 * signs - 1).to(device=device, dtype=dtype)
        products = Z * matmat(Z)
        totals = products.sum(0)
        trace_sums += torch.stack([totals.sum(), totals.square().sum()])
        diagonal_sums[0] += products.sum(1)
        diagonal_sums[1] += products.square().sum(1)
    return Samples(probes, trace_sums, diagonal_sums)
