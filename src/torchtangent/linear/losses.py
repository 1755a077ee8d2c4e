"""Losses of many targets at once: values, gradients and accuracies.

Outputs f are (N, C, K) for N samples, C outputs and K targets. Labels are (N, C, K), or (N, K) if they are classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from torchtangent.notice import check_choice


@final
@dataclass(frozen=True)
class Loss:
    """torch's loss of the same name with its "mean" reduction, for each target.

    Attributes:
        name: The name by which the user chooses it.
        values: (f, y) ↦ the terms of the loss.
        gradient: (f, y) ↦ the derivatives of the terms with respect to f, (N, C, K).
        correct: (f, y) ↦ whether sign or largest output agree with the label; None for a regression.
        labels: The two valid labels; None if labels are classes or any numbers.
        classes: Whether labels are classes, so that a sample has one term and not C.
    """

    name: str
    values: Callable[[Tensor, Tensor], Tensor]
    gradient: Callable[[Tensor, Tensor], Tensor]
    correct: Callable[[Tensor, Tensor], Tensor] | None
    labels: tuple[int, int] | None = None
    classes: bool = False

    def mean(self, f: Float[Tensor, "N C K"], y: Shaped[Tensor, "N ..."]) -> Float[Tensor, " K"]:
        """The loss of each target."""
        return self.values(f, y).flatten(0, -2).mean(0)

    def accuracy(self, f: Float[Tensor, "N C K"], y: Shaped[Tensor, "N ..."]) -> Float[Tensor, " K"] | None:
        """The fraction of correct terms, for each target; None for a regression."""
        return None if self.correct is None else self.correct(f, y).flatten(0, -2).to(f.dtype).mean(0)


def _cross_entropy_gradient(f: Float[Tensor, "N C K"], y: Shaped[Tensor, "N K"]) -> Float[Tensor, "N C K"]:
    """softmax(f) − onehot(y)."""
    p = torch.softmax(f, 1)
    return p.scatter_add_(1, y[:, None], -torch.ones_like(p[:, :1]))


def _same_sign(f: Tensor, y: Tensor) -> Bool[Tensor, "N C K"]:
    return (f > 0) == (y > 0)


LOSSES = {
    loss.name: loss
    for loss in (
        Loss(
            name="bce",
            values=lambda f, y: F.binary_cross_entropy_with_logits(f, y, reduction="none"),
            gradient=lambda f, y: torch.sigmoid(f) - y,
            correct=_same_sign,
            labels=(0, 1),
        ),
        Loss(
            name="cross-entropy",
            values=lambda f, y: F.cross_entropy(f, y, reduction="none"),
            gradient=_cross_entropy_gradient,
            correct=lambda f, y: f.argmax(1) == y,
            classes=True,
        ),
        Loss(
            name="mse",
            values=lambda f, y: (f - y).square(),
            gradient=lambda f, y: 2 * (f - y),
            correct=None,
        ),
        Loss(
            name="hinge",
            values=lambda f, y: torch.relu(1 - y * f),
            gradient=lambda f, y: torch.where(y * f < 1, -y, torch.zeros_like(y)),
            correct=_same_sign,
            labels=(-1, 1),
        ),
    )
}


def find_loss(name: str) -> Loss:
    """The loss of this name."""
    check_choice("loss", name, LOSSES)
    return LOSSES[name]
