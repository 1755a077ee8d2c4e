"""Targets as columns: whatever form they are given in, one row for each sample and output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.alignment.labels import numbers
from torchtangent.kernel.matrix import Matrix
from torchtangent.spectrum.lanczos import check_some_rows
from torchtangent.spectrum.leading import square

Targets = Tensor | np.ndarray


@dataclass(frozen=True, eq=False)
class Columns:
    """Targets as a matrix.

    Attributes:
        matrix: (N·C, K); row n·C + c is output c of sample n.
        samples: N.
        single: Whether it was one target, given without an axis of targets.
    """

    matrix: Float[Tensor, "rows K"]
    samples: int
    single: bool

    def like_given(self, values: Float[Tensor, " K"]) -> Float[Tensor, "*K"]:
        """A number for each target, without an axis if there was none."""
        return values[0] if self.single else values


def as_columns(
    g: Targets, rows: int, outputs: int | None, dtype: torch.dtype, device: torch.device, name: str = "g"
) -> Columns:
    """g for a kernel with so many rows; where `outputs` is None, a row may be a sample or an output of one."""
    g = numbers(g, name)
    shape = tuple(g.shape)
    if outputs is None:  # (N, C) or (N, C, K) says how the rows are divided
        outputs = shape[1] if len(shape) > 1 and shape[0] * shape[1] == rows else 1
    samples = rows // outputs
    lead = (samples,) if outputs == 1 and len(shape) < 3 else (samples, outputs)
    if shape[: len(lead)] != lead or len(shape) > len(lead) + 1:
        one = f"({samples},) or ({samples}, K)"
        several = f"({samples}, {outputs}) or ({samples}, {outputs}, K)"
        raise ValueError(
            f"{name} has shape {shape}; with {samples} samples and {outputs} output{'s' * (outputs > 1)} it should "
            f"have {one if outputs == 1 else several}."
        )
    single = len(shape) == len(lead)
    matrix = (g.unsqueeze(-1) if single else g).to(device, dtype).flatten(0, len(lead) - 1)
    if not bool(torch.isfinite(matrix).all()):
        bad = int((~torch.isfinite(matrix)).nonzero()[0, 0]) // outputs
        raise ValueError(f"{name} has NaN or infinity, first in sample {bad}.")
    return Columns(matrix, samples, single)


def outputs_of(K: Any) -> int | None:
    """C of a kernel (N, N, C, C); a matrix does not say."""
    return K.shape[2] if len(K.shape) == 4 else None


def read(K: Any, g: Targets, name: str = "g") -> tuple[Matrix, Columns]:
    """A kernel, and targets for it."""
    matrix = square(K)
    if isinstance(K, Tensor | np.ndarray):  # what is known by its products is symmetric, and rows of it are costly
        check_some_rows(matrix)
    return matrix, as_columns(g, matrix.shape[0], outputs_of(K), matrix.dtype, matrix.device, name)
