"""Reading and checking the labels of a training set: two values, classes, or any numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from torchtangent.kernel.matrix import Matrix
from torchtangent.kernel.targets import Form, check_targets, form_of, numbers
from torchtangent.linear.losses import Loss

_RECODED = {
    "bce": ([-1, 1], "Labels -1 and 1 become these by (y + 1) / 2, or take loss='hinge'."),
    "hinge": ([0, 1], "Labels 0 and 1 become these by 2 * y - 1, or take loss='bce'."),
}


def read_labels(
    y: Any, loss: Loss, kernel: Sequence[int], like: Tensor | Matrix, name: str = "y"
) -> tuple[Shaped[Tensor, "N ..."], Form]:
    """Labels for a kernel of this shape as (N, C, K), or classes as (N, K); and the form in which they were given."""
    y = numbers(y, name)
    if loss.classes:
        taker = f"loss={loss.name!r}"
        if form_of(y, kernel, name, classes=True).outputs < 2:
            raise ValueError(
                f"{taker} needs a kernel with at least two outputs: tt.ntk(model, x), (N, N, C, C), without "
                "reduce=. For one logit use loss='bce'."
            )
        y, form = read_classes(y, kernel, name, taker)
        return y.to(like.device), form
    form = form_of(y, kernel, name, instead=", or with loss='cross-entropy'")
    y = y.to(like.device, like.dtype).reshape(form.samples, form.outputs, -1)
    if loss.labels is None:
        check_targets(y.flatten(0, 1), form, name)
    else:
        wrong = (y != loss.labels[0]) & (y != loss.labels[1])
        other, hint = _RECODED[loss.name]
        hint = hint if bool(((y == other[0]) | (y == other[1])).all()) else ""
        _refuse(wrong, y, form, f"loss={loss.name!r} takes labels {loss.labels[0]} and {loss.labels[1]}", name, hint)
    return y, form


def read_classes(
    y: Shaped[Tensor, "..."], kernel: Sequence[int], name: str, taker: str
) -> tuple[Int[Tensor, "N K"], Form]:
    """Classes, below the number of outputs unless that is one, and their form. Errors name the `taker`."""
    form = form_of(y, kernel, name, classes=True)
    C = form.outputs
    takes = f"{taker} takes integer classes" + (f" from 0 to {C - 1}, as K has {C} outputs" if C > 1 else " from 0")
    if y.is_floating_point() or y.dtype == torch.bool:
        raise ValueError(
            f"{takes}; {name} has dtype {y.dtype} and shape {tuple(y.shape)}. Pass {name}.long(), or of one-hot labels "
            f"{name}.argmax(1)."
        )
    if y.dim() == 2 and y.shape[1] > 1 and C in (1, y.shape[1]) and _is_one_hot(y):
        raise ValueError(
            f"{name} is one-hot, but {taker} takes classes, and {y.shape[1]} columns for as many sets of them: pass "
            f"classes: {name}.argmax(1)."
        )
    y = y.long().reshape(form.samples, -1)
    hint = ""
    if bool((y.abs() == 1).all()):
        hint = "Labels -1 and 1 become these by (y + 1) // 2."
    elif int(y.min()) == 1 and int(y.max()) == C:
        hint = "Classes that are counted from 1 become these by y - 1."
    _refuse((y < 0) | (y >= C) if C > 1 else y < 0, y, form, takes, name, hint)
    return y, form


def _is_one_hot(y: Int[Tensor, "N K"]) -> bool:
    return bool(((y == 0) | (y == 1)).all()) and bool((y.sum(1) == 1).all())


def _refuse(
    wrong: Shaped[Tensor, "N *out K"], y: Shaped[Tensor, "N *out K"], form: Form, takes: str, name: str, hint: str
) -> None:
    """Refuse labels if some are wrong; the error names the first."""
    if bool(wrong.any()):
        where = tuple(wrong.nonzero()[0].tolist())
        place = f"sample {where[0]}" + ("" if form.targets is None else f", target {where[-1]}")
        raise ValueError(f"{takes}; {name} has {y[where].item()} ({place}). {hint}".rstrip())


def check_varies(y: Shaped[Tensor, "N *out K"], form: Form) -> None:
    """Refuse labels that are the same for every sample: there is nothing to learn."""
    constant = (y == y[:1]).flatten(0, -2).all(0)
    if len(y) > 1 and bool(constant.any()):
        first, *more = constant.nonzero()[:, 0].tolist()
        said = "y" if form.targets is None else f"Target {first} of y" + f" (and {len(more)} more)" * bool(more)
        raise ValueError(f"{said} is constant: every sample has the same label. Check the labels, or drop them.")
