"""Which rows of an operation belong to which sample, found by trial where the graph does not tell (see layout.py).

A layer may have n·k rows for n samples: k consecutive ones per sample or, if tokens come first, every n-th one. If the
cotangent of a sample's output is multiplied by a factor, so are the cotangents of that sample's rows. So each sample
gets a factor of its own, a power of two with a sign (no rounding), and the rows' cotangents with and without factors
are compared. If there are more samples than factors, each sample gets several, for as many further cotangents.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor


class SampleFactors:
    """Factors that tell samples apart, like the digits of a number: no two samples have the same ones.

    Args:
        n: The number of samples.
        c: The number of cotangents that are pulled back.
        half: Whether the computation is in 16 bits, which have a small range.
    """

    def __init__(self, n: int, c: int, *, half: bool = False) -> None:
        powers, self.rounding = (3, 0.2) if half else (16, 0.01)  # factors range from 2^−powers to 2^powers
        generator = torch.Generator().manual_seed(0)
        up = 2.0 ** torch.arange(-powers, powers + 1, dtype=torch.float64, device="cpu")
        every = torch.cat([up, -up])[torch.randperm(4 * powers + 2, generator=generator, device="cpu")]
        digits = [torch.arange(n, device="cpu")]
        while digits[-1][-1] >= len(every):
            digits.append(digits[-1] // len(every))
        self.factors = torch.stack([every[digit % len(every)] for digit in digits])
        self.mix = torch.randn(c, generator=generator, dtype=torch.float64, device="cpu")

    def cotangents(self, cotangents: Float[Tensor, "C N *out"]) -> Float[Tensor, "K N *out"]:
        """A random mixture of the cotangents, multiplied by the factors of each sample: one for each digit."""
        mixed = torch.tensordot(self.mix.to(cotangents), cotangents, 1)
        return mixed * self.factors.to(mixed).view(*self.factors.shape, *[1] * (mixed.dim() - 1))

    def inner_axis(self, d: Float[Tensor, "rows CK width"]) -> bool | None:
        """Whether samples are the inner axis of these rows (True), the outer one (False), or neither (None).

        Args:
            d: The rows' cotangents: those pulled back from the cotangents, then those from `self.cotangents`.

        A row whose cotangents are zero may belong to any sample: it adds nothing.
        """
        k, n = self.factors.shape
        if len(d) % n:
            return None
        rows, factors = torch.arange(len(d), device=d.device), self.factors.T.to(d)
        base, seen = torch.einsum("c,rcw->rw", self.mix.to(d), d[:, :-k]), d[:, -k:]
        axes = rows // (len(d) // n), rows % n
        fits = torch.stack([_fits(base, seen, factors[axis], self.rounding).all() for axis in axes]).tolist()
        return not fits[0] if any(fits) else None


def outward(t: Tensor, n: int) -> Tensor:
    """Reorder rows, every n-th of which belongs to one sample, so that each sample's rows are consecutive."""
    return t.unflatten(0, (-1, n)).transpose(0, 1).flatten(0, 1)


def _fits(
    base: Float[Tensor, "rows width"],
    d: Float[Tensor, "rows K width"],
    factors: Float[Tensor, "rows K"],
    rounding: float,
) -> Bool[Tensor, "rows K"]:
    """Whether each row is its base times its factors, up to rounding; a row that mixes samples is not."""
    wanted = base.unsqueeze(1) * factors.unsqueeze(2)
    return torch.linalg.vector_norm(d - wanted, dim=2) <= rounding * torch.linalg.vector_norm(wanted, dim=2)
