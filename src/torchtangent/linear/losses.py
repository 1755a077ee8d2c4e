"""Losses of many targets at once: their values, gradients and accuracies, and the labels that they take.

Outputs f are (N, C, K), for N samples, C outputs and K targets. Labels are (N, C, K), or (N, K) where they are classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from torchtangent.kernel.matrix import Matrix
from torchtangent.kernel.targets import Form, form_of


@final
@dataclass(frozen=True)
class Loss:
    """torch's loss of the same name with its "mean" reduction, for each target.

    Attributes:
        name: As the user calls it.
        coding: What the labels are, in words.
        values: (f, y) ↦ the loss of each term.
        gradient: (f, y) ↦ the derivatives of the terms with respect to f, (N, C, K).
        correct: (f, y) ↦ whether the sign or the largest output is the label's; None for a regression.
        valid: (y, C) ↦ which labels are coded as they should be.
        classes: Whether labels are classes, so that a sample is one term and not C.
    """

    name: str
    coding: str
    values: Callable[[Tensor, Tensor], Tensor]
    gradient: Callable[[Tensor, Tensor], Tensor]
    correct: Callable[[Tensor, Tensor], Tensor] | None
    valid: Callable[[Tensor, int], Tensor]
    classes: bool = False

    def mean(self, f: Float[Tensor, "N C K"], y: Shaped[Tensor, "N ..."]) -> Float[Tensor, " K"]:
        """The loss of each target."""
        return self.values(f, y).flatten(0, -2).mean(0)

    def accuracy(self, f: Float[Tensor, "N C K"], y: Shaped[Tensor, "N ..."]) -> Float[Tensor, " K"] | None:
        """The fraction of terms that are right, for each target."""
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
            coding="labels 0 and 1",
            values=lambda f, y: F.binary_cross_entropy_with_logits(f, y, reduction="none"),
            gradient=lambda f, y: torch.sigmoid(f) - y,
            correct=_same_sign,
            valid=lambda y, C: (y == 0) | (y == 1),
        ),
        Loss(
            name="cross-entropy",
            coding="integer classes from 0 to C − 1",
            values=lambda f, y: F.cross_entropy(f, y, reduction="none"),
            gradient=_cross_entropy_gradient,
            correct=lambda f, y: f.argmax(1) == y,
            valid=lambda y, C: (y >= 0) & (y < C),
            classes=True,
        ),
        Loss(
            name="mse",
            coding="finite values",
            values=lambda f, y: (f - y).square(),
            gradient=lambda f, y: 2 * (f - y),
            correct=None,
            valid=lambda y, C: torch.isfinite(y),
        ),
        Loss(
            name="hinge",
            coding="labels -1 and 1",
            values=lambda f, y: torch.relu(1 - y * f),
            gradient=lambda f, y: torch.where(y * f < 1, -y, torch.zeros_like(y)),
            correct=_same_sign,
            valid=lambda y, C: y.abs() == 1,
        ),
    )
}
_HINTS = {
    "bce": "Labels -1 and 1 become these by (y + 1) / 2, or take loss='hinge'.",
    "hinge": "Labels 0 and 1 become these by 2 * y - 1, or take loss='bce'.",
    "cross-entropy": "C is the number of outputs of the kernel.",
    "mse": "Drop the samples without a value.",
}


def find_loss(name: str) -> Loss:
    """The loss of this name."""
    if name not in LOSSES:
        raise ValueError(f"loss={name!r} is not known. Choose one of {', '.join(map(repr, LOSSES))}.")
    return LOSSES[name]


def read_labels(
    y: Any, loss: Loss, kernel: Sequence[int], like: Tensor | Matrix, name: str = "y"
) -> tuple[Shaped[Tensor, "N ..."], Form]:
    """Labels for a kernel of this shape as (N, C, K), or (N, K) classes; and the form of outputs for them."""
    y = torch.as_tensor(y)
    form = form_of(y, kernel, name, classes=loss.classes)
    if loss.classes and form.outputs < 2:
        raise ValueError("loss='cross-entropy' needs a kernel with at least two outputs. For one logit use loss='bce'.")
    if loss.classes and (y.is_floating_point() or y.dtype == torch.bool):
        raise ValueError(
            f"loss='cross-entropy' takes {loss.coding}; {name} has dtype {y.dtype}. Pass {name}.long(), or of one-hot "
            f"labels {name}.argmax(1)."
        )
    y = y.to(like.device, torch.long if loss.classes else like.dtype)
    y = y.reshape(form.samples, *(() if loss.classes else (form.outputs,)), -1)
    wrong = ~loss.valid(y, form.outputs)
    if bool(wrong.any()):
        where = tuple(wrong.nonzero()[0].tolist())
        raise ValueError(
            f"loss={loss.name!r} takes {loss.coding}; {name} has {y[where].item()} (sample {where[0]}"
            f"{'' if form.targets is None else f', target {where[-1]}'}). {_HINTS[loss.name]}"
        )
    return y, form


def check_varies(y: Shaped[Tensor, "N *out K"], form: Form) -> None:
    """Refuse classes that are the same for every sample: there is nothing to tell apart."""
    constant = (y == y[:1]).flatten(0, -2).all(0)
    if len(y) > 1 and bool(constant.any()):
        first, *more = constant.nonzero()[:, 0].tolist()
        said = "y" if form.targets is None else f"Target {first} of y" + f" (and {len(more)} more)" * bool(more)
        raise ValueError(f"{said} is constant: every sample has the same label. Check the labels, or drop them.")
