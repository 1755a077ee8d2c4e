"""Samples at which a linearized network is evaluated: its outputs there are f₀ + Kc + a·Jθ₀."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.kernel.matrix import Matrix, as_matrix
from torchtangent.kernel.targets import Form, check_targets, numbers


@final
@dataclass(frozen=True, eq=False)
class Points:
    """Some samples.

    Attributes:
        K: The kernel between them and the training samples.
        f0: f₀ as one column, or one per target.
        J0: Jθ₀, likewise.
    """

    K: Matrix
    f0: Float[Tensor, "rows _"]
    J0: Float[Tensor, "rows _"]

    def outputs(self, c: Float[Tensor, "columns K"], a: float) -> Float[Tensor, "rows K"]:
        """f₀ + Kc + a·Jθ₀."""
        return (self.K @ c.to(self.K.dtype)).to(c.dtype) + (self.f0 + a * self.J0)


@final
@dataclass(frozen=True)
class Terms:
    """Which terms the outputs have: those that they had in training.

    Attributes:
        form: The form of the training targets.
        biased: Whether there is an f₀.
        decayed: Whether a may be nonzero.
    """

    form: Form
    biased: bool
    decayed: bool = False

    def at(self, K: Any, f0: Any, J0: Any, like: Tensor, suffix: str = "_test") -> Points:
        """Other samples, given by their kernel with the training samples; `suffix` is for the names in errors."""
        matrix, outputs = as_matrix(K, like.device), self.form.outputs
        if matrix.shape[1] != self.form.rows or matrix.shape[0] % outputs:
            raise ValueError(
                f"K{suffix} must be the kernel of other samples with the training samples, with {self.form.rows} "
                f"columns (samples × outputs) and {outputs} rows for each sample; got shape {tuple(K.shape)}."
            )
        if self.biased and f0 is None:
            raise ValueError(
                f"Training had an f0, so f0{suffix}, the network's outputs on the other samples, is needed."
            )
        if f0 is not None and not self.biased:
            raise ValueError(
                f"f0{suffix} is given, but training had none: outputs start from f₀ everywhere, or from 0."
            )
        if self.decayed and J0 is None:
            raise ValueError(f"Training had weight decay, so J0{suffix}, Jθ₀ on the other samples, is needed.")
        there = replace(self.form, samples=matrix.shape[0] // outputs)
        return Points(matrix, at_start(f0, there, like, f"f0{suffix}"), at_start(J0, there, like, f"J0{suffix}"))


def at_start(values: Any, form: Form, like: Tensor | Matrix, name: str) -> Float[Tensor, "rows _"]:
    """f₀ or Jθ₀ as one column, or one per target if it has the form of the targets; zero if it is None."""
    if values is None:
        return torch.zeros(form.rows, 1, dtype=like.dtype, device=like.device)
    values = numbers(values, name)
    # The outputs of a network may have more axes, (N, T, C), or one of length 1.
    if values.shape != form.shape and (values.shape[:1] != (form.samples,) or values.numel() != form.rows):
        many = "" if form.targets is None else f", or {form.shape} with a value for each target"
        one = replace(form, targets=None)
        raise ValueError(f"{name} must have shape {one.shape}{many}; got {tuple(values.shape)}.")
    columns = values.to(like.device, like.dtype).reshape(form.rows, -1)
    check_targets(columns, form, name)
    return columns
