"""Which rows of an operation are which samples', where the operations behind it do not tell (see layout.py).

A layer may see n·k rows for n samples: k consecutive ones of each, or, where tokens come first, every n-th one. The
cotangents of a row are u times as large if the cotangent of its sample's output is: so each sample gets a factor of its
own, a power of two with a sign, which rounding does not change, and the rows' cotangents are compared with and without.
Where there are more samples than factors, each gets several, one after the other.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor


class Told:
    """Samples told apart by factors, as by the digits of a number: no two have the same.

    Args:
        n: How many.
        c: How many cotangents there are besides.
        half: Whether rows are known in half precision only, with its small range.
    """

    def __init__(self, n: int, c: int, *, half: bool = False) -> None:
        powers, self.rounding = (3, 0.2) if half else (16, 0.01)  # factors are so many powers of two, up and down
        generator = torch.Generator().manual_seed(0)
        up = 2.0 ** torch.arange(-powers, powers + 1, dtype=torch.float64, device="cpu")
        every = torch.cat([up, -up])[torch.randperm(4 * powers + 2, generator=generator, device="cpu")]
        digits = [torch.arange(n, device="cpu")]
        while digits[-1][-1] >= len(every):
            digits.append(digits[-1] // len(every))
        self.factors = torch.stack([every[digit % len(every)] for digit in digits])
        self.mix = torch.randn(c, generator=generator, dtype=torch.float64, device="cpu")

    def cotangents(self, cotangents: Float[Tensor, "C N *out"]) -> Float[Tensor, "K N *out"]:
        """A mixture of cotangents, times each factor of each sample."""
        mixed = torch.tensordot(self.mix.to(cotangents), cotangents, 1)
        return mixed * self.factors.to(mixed).view(*self.factors.shape, *[1] * (mixed.dim() - 1))

    def inner_axis(self, d: Float[Tensor, "rows CK width"]) -> bool | None:
        """Are samples the inner axis of these rows? None: neither that nor the outer.

        Args:
            d: What came of the cotangents, and last of those of `cotangents`.

        A row without a cotangent may be anyone's: it adds nothing.
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
    """Rows of which every n-th is a sample's, sample by sample."""
    return t.unflatten(0, (-1, n)).transpose(0, 1).flatten(0, 1)


def _fits(
    base: Float[Tensor, "rows width"],
    d: Float[Tensor, "rows K width"],
    factors: Float[Tensor, "rows K"],
    rounding: float,
) -> Bool[Tensor, "rows K"]:
    """Whether each row is what it was, times its factors, up to rounding; a row of several samples is not."""
    wanted = base.unsqueeze(1) * factors.unsqueeze(2)
    return torch.linalg.vector_norm(d - wanted, dim=2) <= rounding * torch.linalg.vector_norm(wanted, dim=2)
