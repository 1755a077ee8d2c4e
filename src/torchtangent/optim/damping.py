"""What is added to the eigenvalues of a Kronecker product before it is inverted."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

DAMPINGS = ("single", "factored", "root")


def shares(
    rule: str, damping: float, rows: Float[Tensor, "G O"], columns: Float[Tensor, "G I"]
) -> tuple[Float[Tensor, "G 1"], Float[Tensor, "G 1"]]:
    """What is added to the eigenvalues of B and of A; the product of the two is the damping ε.

    - "factored": √ε/π to B and π√ε to A, with π² = (tr A / dim A) / (tr B / dim B) (Martens and Grosse, 2015);
    - "root": √ε to both (George et al., 2018, appendix A.4).

    >>> shares("factored", 0.04, torch.tensor([[1.0, 3.0]]), torch.tensor([[8.0, 8.0]]))
    (tensor([[0.1000]]), tensor([[0.4000]]))
    """
    root = math.sqrt(damping)
    if rule == "root":
        both = torch.full_like(rows[:, :1], root)
        return both, both
    b, a = rows.mean(1, keepdim=True), columns.mean(1, keepdim=True)
    # A layer without activity or without gradient has no scale of its own to share by.
    pi = torch.where((a > 0) & (b > 0), a / b, torch.ones_like(a)).sqrt()
    return root / pi, pi * root


def shift(
    rule: str, damping: float, rows: Float[Tensor, "G O"], columns: Float[Tensor, "G I"]
) -> Float[Tensor, "G O I"] | float:
    """ε′ = damped − undamped Kronecker eigenvalues: (S_B + β)(S_A + α) = S_B S_A + ε′.

    The "single" rule adds ε itself. The others damp the factors, ε′ = ε + α S_B + β S_A.
    """
    if rule == "single":
        return damping
    beta, alpha = shares(rule, damping, rows, columns)
    return damping + (alpha * rows).unsqueeze(2) + (beta * columns).unsqueeze(1)
