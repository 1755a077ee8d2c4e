"""What it takes to compare derivatives that were computed in two ways: random directions, norms, the adjoint test."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from torchtangent.jacobians.inputs import wide

_PERIODS = (8191, 8179, 8171)  # primes


def noise(like: Tensor, generator: torch.Generator) -> Tensor:
    """Normal random numbers, the same on every device; they repeat after a while, since to draw all would take long."""
    size = like.numel()
    period = next((p for p in _PERIODS if all(n % p for n in like.shape)), size)  # so that rows get different numbers
    few = torch.randn(min(size, period), generator=generator, dtype=torch.float64, device="cpu").to(like)
    return few.repeat(math.ceil(size / period))[:size].view(like.shape) if size else few.view(like.shape)


def norms(tensors: Sequence[Tensor]) -> list[float]:
    """Their norms; in float64, which takes far longer, where squares of float32 numbers may leave its range."""
    found: list[float] = torch.stack(torch._foreach_norm([wide(t) for t in tensors])).tolist()
    return [
        size if 1e-15 < size < 1e18 else float(torch.linalg.vector_norm(wide(t), dtype=torch.float64))
        for t, size in zip(tensors, found, strict=True)
    ]


def is_adjoint(u: Tensor, w: Tensor, g: Mapping[str, Tensor], v: Mapping[str, Tensor], small: float) -> bool:
    """Whether ⟨u, w⟩ = ⟨g, v⟩, as for w = J v and g = Jᵀu, up to the fraction `small` of their terms."""
    products = wide(u.detach()) * wide(w.detach())
    terms = torch.stack([(wide(g[name].detach()) * wide(v[name].detach())).sum() for name in g])
    size = float(products.norm() + terms.abs().sum())
    return abs(float(products.sum() - terms.sum())) <= small * size
