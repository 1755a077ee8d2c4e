"""Labels as targets for the outputs, to compare a kernel with."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.nn import functional as F

from torchtangent.kernel.targets import numbers

Targets = Tensor | np.ndarray


def as_targets(y: Any, shape: tuple[int, ...], name: str = "y") -> Float[Tensor, "N C"]:
    """The targets of the outputs, one row per sample: classes become one-hot, other targets stay as they are.

    Args:
        y: For C outputs, classes (N,) from 0 to C − 1, or a target for every output (N, C). For one output, labels of
            two classes or real numbers, (N,) or (N, 1). For outputs (N, T, C), classes (N, T) or targets (N, T, C).
        shape: The shape of the outputs, (N, C) or (N, T, C).
        name: The name of y in errors.

    >>> as_targets([0, 2], (2, 3))
    tensor([[1., 0., 0.],
            [0., 0., 1.]])
    """
    y = numbers(y, name)
    N, C = shape[0], shape[-1]
    if tuple(y.shape) not in (shape, shape[:-1]):
        raise ValueError(
            f"{name} has shape {tuple(y.shape)}, but the model's outputs on this set have {shape}: labels are classes "
            f"of shape {shape[:-1]} or targets of shape {shape}."
        )
    if not bool(torch.isfinite(y).all()):
        raise ValueError(f"{name} has NaN or infinity.")
    if bool((y == y[0]).all()):
        raise ValueError(f"{name} is the same for all samples: there is nothing to align with.")
    if C == 1 and not y.is_floating_point() and len(y.unique()) > 2:
        raise ValueError(
            f"{name} has {len(y.unique())} classes, but the model has one output: pass labels of two classes, or "
            "floating-point numbers for a regression."
        )
    if C > 1 and tuple(y.shape) == shape[:-1]:
        y = one_hot(y, C, name)
    Y = y.reshape(N, -1)
    return Y if Y.is_floating_point() else Y.float()


def one_hot(y: Shaped[Tensor, " *N"], outputs: int, name: str) -> Int[Tensor, "*N C"]:
    """Integer classes as one column per output; other labels are refused."""
    if y.is_floating_point():
        raise ValueError(
            f"{name} holds one real number for {outputs} outputs: pass integer classes (y.long()), or numbers of shape "
            f"{(*y.shape, outputs)}."
        )
    if int(y.min()) < 0 or int(y.max()) >= outputs:
        raise ValueError(f"{name} should hold classes 0 … {outputs - 1}, got {int(y.min())} … {int(y.max())}.")
    return F.one_hot(y.long(), outputs)
