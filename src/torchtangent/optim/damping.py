"""Damping: what is added to eigenvalues before they are inverted, and how it adapts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

DAMPINGS = ("single", "factored", "root")


@dataclass(frozen=True)
class Adaptive:
    """Levenberg–Marquardt damping: it grows if the quadratic model promises too much, and shrinks if the model holds.

    Every few steps the closure of `step` is called a second time, for the loss after the step. Let ρ be the decrease of
    the loss divided by the decrease that the model promised: the damping is multiplied by factor^every if ρ > ¾ and
    divided by it if ρ < ¼ (Martens and Grosse, 2015, section 6.5). The second call sees the same batch again, so
    BatchNorm counts it twice and dropout draws again.

    With it the damping sets the length of steps, so give the optimizer `kl_clip=None` and no momentum: a step that
    `kl_clip` shortened holds whatever the damping, and does not lower it. But then nothing bounds a step: it is taken
    before it is judged, and not undone. Begin with a large `start`, renew the basis as often as the loss is looked at
    (`basis_every=5`), and keep `lr` below one if the loss jumps.

    Args:
        start: The initial ε.
        factor: What the damping is multiplied by, per step, while the model holds.
        every: Number of steps between two comparisons.

    >>> Adaptive(0.1).change(0.9) < 1 == Adaptive(0.1).change(0.5) < Adaptive(0.1).change(-1.0)
    True
    """

    start: float
    factor: float = 0.95
    every: int = 5

    def __post_init__(self) -> None:
        if not 0 < self.start < math.inf:
            raise ValueError(f"Adaptive: start={self.start} should be positive, and finite.")
        if not 0 < self.factor < 1:
            raise ValueError(f"Adaptive: factor={self.factor} should be between 0 and 1.")
        if self.every < 1:
            raise ValueError(f"Adaptive: every={self.every}, the number of steps between two looks, is at least 1.")

    def change(self, ratio: float, *, clipped: bool = False) -> float:
        """What the damping is multiplied by for a given ρ; a step that `kl_clip` shortened proves no model good."""
        factor = self.factor**self.every
        if ratio > 0.75:
            return 1.0 if clipped else factor
        return 1.0 if ratio >= 0.25 else 1 / factor  # also if it is NaN


def shares(
    rule: str, damping: float, rows: Float[Tensor, "G O"], columns: Float[Tensor, "G I"]
) -> tuple[Float[Tensor, "G 1"], Float[Tensor, "G 1"]]:
    """What is added to the eigenvalues of B, and to those of A; the product of the two is the damping ε.

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
    # Without activity or without gradient there is no ratio.
    pi = torch.where((a > 0) & (b > 0), a.sqrt() / b.sqrt(), torch.ones_like(a))
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
