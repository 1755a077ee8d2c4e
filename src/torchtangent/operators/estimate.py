"""Traces and diagonals from products with random signs, with their standard errors.

Reference: Hutchinson, A stochastic estimator of the trace of the influence matrix, 1990; Bekas,
Kokiopoulou and Saad, An estimator for the diagonal of a matrix, 2007.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

if TYPE_CHECKING:
    from torchtangent.operators.base import Operator

ENTRIES = 2**24
"""The number of entries in the random vectors multiplied at once, if more than one vector fits."""


class Estimate(NamedTuple):
    """A random estimate.

    Attributes:
        value: the unbiased estimate.
        standard_error: its standard error, from the spread of the probes.
    """

    value: Tensor
    standard_error: Tensor


def estimated_trace(operator: Operator, probes: int, seed: int) -> Estimate:
    """tr M = E[zᵀ M z] over random signs z."""
    totals = torch.cat([products.sum(0) for products in probe_products(operator, probes, seed)])
    return Estimate(totals.mean(), totals.std() / probes**0.5)


def estimated_diagonal(operator: Operator, probes: int, seed: int) -> Estimate:
    """diag M = E[z ∘ M z] over random signs z; chunks are merged by their means and squared deviations."""
    mean = torch.zeros(operator.size, dtype=operator.dtype, device=operator.device)
    deviations, seen = torch.zeros_like(mean), 0
    for products in probe_products(operator, probes, seed):
        count = products.shape[1]
        chunk_mean = products.mean(1)
        step = chunk_mean - mean
        deviations += (products - chunk_mean[:, None]).square().sum(1)
        deviations += step.square() * (seen * count / (seen + count))
        mean += step * (count / (seen + count))
        seen += count
    return Estimate(mean, (deviations / (probes - 1) / probes).sqrt())


def probe_products(operator: Operator, probes: int, seed: int) -> Iterator[Float[Tensor, "P K"]]:
    """z ∘ M z for random signs z, a few columns at a time."""
    if probes < 2:
        raise ValueError(f"An estimate with a standard error needs at least 2 probes, got {probes}.")
    generator = torch.Generator().manual_seed(seed)
    at_once = max(1, min(probes, 64, ENTRIES // operator.size))
    for start in range(0, probes, at_once):
        count = min(at_once, probes - start)
        signs = torch.randint(0, 2, (operator.size, count), generator=generator, dtype=torch.int8, device="cpu")
        Z = (2 * signs - 1).to(device=operator.device, dtype=operator.dtype)
        yield Z * operator._matmat(Z)
