"""Which rows of an operation are which samples', where it does not see one row for each.

A layer may see n·k rows for n samples: k consecutive ones of each, or, where tokens come first, every n-th one. The
cotangents of a row are u times as large if the cotangent of its sample's output is: so each sample gets a factor of its
own, a power of two with a sign, which rounding does not change, and the rows' cotangents are compared with and without.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor


class Told:
    """Samples told apart by factors, each of which few others have.

    Args:
        n: How many.
        c: How many cotangents there are besides.
        powers: Factors are powers of two, so many up and down.
    """

    def __init__(self, n: int, c: int, powers: int) -> None:
        generator = torch.Generator().manual_seed(0)
        up = 2.0 ** torch.arange(-powers, powers + 1, dtype=torch.float64, device="cpu")
        every = torch.cat([up, -up])
        turns = [
            torch.randperm(len(every), generator=generator, device="cpu") for _ in range(math.ceil(n / len(every)))
        ]
        self.factors = every[torch.cat(turns)[:n]]
        self.mix = torch.randn(c, generator=generator, dtype=torch.float64, device="cpu")

    def cotangent(self, cotangents: Float[Tensor, "C N *out"]) -> Float[Tensor, "1 N *out"]:
        """A mixture of cotangents, times the factor of each sample."""
        mixed = torch.tensordot(self.mix.to(cotangents), cotangents, 1)
        return (mixed * self.factors.to(mixed).view(-1, *[1] * (mixed.dim() - 1))).unsqueeze(0)

    def inner_axis(self, d: Float[Tensor, "rows C1 K"]) -> tuple[bool | None, bool]:
        """Are samples the inner axis of these rows (None: neither that nor the outer), and is it sure?

        Args:
            d: What came of the cotangents, and last of that of `cotangent`.

        A row without a cotangent may be anyone's: it adds nothing. Where all others fit both it is not sure.
        """
        n = len(self.factors)
        if len(d) % n:
            return None, True
        rows, factors = torch.arange(len(d), device=d.device), self.factors.to(d)
        base = torch.einsum("c,rck->rk", self.mix.to(d), d[:, :-1])
        outer, inner = (_fits(base, d[:, -1], factors[axis]) for axis in (rows // (len(d) // n), rows % n))
        fits = torch.stack([outer.all(), inner.all()]).tolist()
        return (not fits[0] if any(fits) else None), not all(fits)


def _fits(
    base: Float[Tensor, "rows K"], d: Float[Tensor, "rows K"], factor: Float[Tensor, " rows"]
) -> Bool[Tensor, " rows"]:
    """Whether each row is what it was, times its factor, up to rounding. Another factor is half or twice as large."""
    wanted = base * factor.unsqueeze(1)
    return torch.linalg.vector_norm(d - wanted, dim=1) <= 0.2 * torch.linalg.vector_norm(wanted, dim=1)
