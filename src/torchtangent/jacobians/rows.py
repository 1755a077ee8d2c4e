"""Which rows of an operation are which samples', where it does not see one row for each.

A layer may see n·k rows for n samples: k consecutive ones of each, or, where tokens come first, every n-th one. The
cotangents of a row are u times as large if the cotangent of its sample's output is: so each sample gets a factor of its
own, a power of two with a sign, which rounding does not change, and the rows' cotangents are compared with and without.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class Told:
    """Samples told apart by factors: the digits of their numbers, as many as are needed.

    Args:
        f: The outputs.
        powers: Factors are powers of two, so many up and down.

    Attributes:
        cotangents: (D, N, *out): random ones, and the same with the factors of each digit.
    """

    def __init__(self, f: Float[Tensor, "N *out"], powers: int) -> None:
        up = 2.0 ** torch.arange(-powers, powers + 1, dtype=torch.float64)
        self.n, self.factors = len(f), torch.cat([up, -up])
        r = torch.randn(f.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        number, found = torch.arange(self.n), [r]
        while len(found) == 1 or bool(number.any()):
            digit = self.factors[number % len(self.factors)]
            found.append(r * digit.view(-1, *[1] * (f.dim() - 1)))
            number = number // len(self.factors)
        self.cotangents = torch.stack(found).to(f)

    def inner_axis(self, d: Float[Tensor, "rows D K"]) -> tuple[bool | None, bool]:
        """Are samples the inner axis of rows with these cotangents (None: neither that nor the outer), and is it sure?

        A row without a cotangent may be anyone's: it adds nothing. Where all others fit both it is not sure.
        """
        if len(d) % self.n:
            return None, True
        sample, alive = self._samples(d.double())
        rows = torch.arange(len(d), device=d.device)
        fits = [bool((sample == wanted)[alive].all()) for wanted in (rows // (len(d) // self.n), rows % self.n)]
        return (not fits[0] if any(fits) else None), not all(fits)

    def _samples(self, d: Float[Tensor, "rows D K"]) -> tuple[Int[Tensor, " rows"], Bool[Tensor, " rows"]]:
        """The sample of each row (negative: of several), and whether it has a cotangent."""
        size = d[:, 0].square().sum(-1)
        alive, factors = size > 0, self.factors.to(d.device)
        number, base = torch.zeros(len(d), dtype=torch.long, device=d.device), 1
        for i in range(1, d.shape[1]):
            ratio = (d[:, i] * d[:, 0]).sum(-1) / size.clamp(min=torch.finfo(size.dtype).tiny)
            gap, digit = (ratio[:, None] / factors - 1).abs().min(1)
            number += base * torch.where(gap < 0.2, digit, -len(d) * base)
            base *= len(factors)
        return number, alive
