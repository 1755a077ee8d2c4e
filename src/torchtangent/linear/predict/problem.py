"""A kernel and targets brought to one form: a matrix, and columns in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.jacobians.call import float32_products
from torchtangent.kernel.matrix import Matrix, as_matrix
from torchtangent.kernel.sketch import Features
from torchtangent.linear.losses import check_labels, find_loss
from torchtangent.operators import ImplicitOperator, Operator
from torchtangent.operators.spectrum import EXACT_LIMIT
from torchtangent.spectrum import square
from torchtangent.spectrum.lanczos import check_symmetric
from torchtangent.spectrum.leading import rounding

_BLOCK_BYTES = 256 << 20  # of rows that are converted to float64 at a time
_NEGATIVE = 1e-2  # of the largest eigenvalue: more than kernels of the lowest precision are off


class Modes(NamedTuple):
    """The eigenpairs of K whose eigenvalues are not zero to rounding, in float64.

    Attributes:
        values: (R,).
        vectors: (rows, R), orthonormal.
    """

    values: Float[Tensor, " R"]
    vectors: Float[Tensor, "rows R"]


@final
@dataclass(frozen=True, eq=False)
class Problem:
    """Targets y, from f₀, for a kernel of N samples with C outputs: row n·C + c, and a column for each target.

    Attributes:
        K: The kernel as it was given, or as an operator if it is no array; in float64 if it has a structure.
        matrix: The same as a matrix, in its own dtype.
        y: (rows, k), float64 like all columns here.
        f0: (rows, 1), or (rows, k) if each target has its own; None for zero.
        outputs: C.
        single: Whether y came without an axis for targets.
    """

    K: Tensor | np.ndarray | Operator
    matrix: Matrix
    y: Float[Tensor, "rows K"]
    f0: Float[Tensor, "rows _"] | None
    outputs: int
    single: bool

    @property
    def rows(self) -> int:
        """N·C."""
        return self.matrix.shape[0]

    @property
    def residual(self) -> Float[Tensor, "rows K"]:
        """y − f₀."""
        return self.y if self.f0 is None else self.y - self.f0

    def shaped(self, columns: Float[Tensor, "rows K"]) -> Float[Tensor, "..."]:
        """Columns in the form of the targets, in K's dtype."""
        found = columns.to(self.matrix.dtype)
        found = found[:, 0] if self.single else found
        return found if self.outputs == 1 else found.unflatten(0, (-1, self.outputs))

    def start(self, K_test: Any, f0_test: Any) -> Float[Tensor, "rows _"]:
        """f₀ at the points of K_test, or without one at those of K."""
        if K_test is None:
            if f0_test is not None:
                raise ValueError("f0_test is given without K_test: predictions at new points need both.")
            return self.y.new_zeros(self.rows, 1) if self.f0 is None else self.f0
        matrix = as_matrix(K_test, self.matrix.device)
        if matrix.shape[1] != self.rows or matrix.shape[0] % self.outputs:
            raise ValueError(
                f"K_test has shape {tuple(K_test.shape)}, K {tuple(self.K.shape)}: K_test needs a row for each test "
                "point (and output), and a column for each training point (and output)."
            )
        if (self.f0 is None) != (f0_test is None):
            given, missing = ("f0_test", "f0") if self.f0 is None else ("f0", "f0_test")
            raise ValueError(
                f"{given} is given without {missing}: predictions start from f₀ at all points, or from zero."
            )
        found = _columns(f0_test, matrix.shape[0], self.y, self.outputs, "f0_test")
        return self.y.new_zeros(matrix.shape[0], 1) if found is None else found

    def times(self, K: Any, V: Float[Tensor, "rows K"]) -> Float[Tensor, "M K"]:
        """K V for a kernel between other points and these, in float64 where K's numbers are known: much may cancel."""
        matrix = as_matrix(K, self.matrix.device)
        if not isinstance(K, Tensor | np.ndarray):
            with float32_products():
                return (matrix @ V.to(matrix.dtype)).double()
        step = max(1, _BLOCK_BYTES // (8 * matrix.shape[1]))
        return torch.cat([matrix.rows(part).double() @ V for part in torch.arange(matrix.shape[0]).split(step)])

    def dense(self) -> Float[Tensor, "rows rows"]:
        """A copy of K in float64."""
        if isinstance(self.K, Operator) and self.rows > EXACT_LIMIT:
            raise ValueError(
                f"K is known by its products only, and this takes all {self.rows} columns of it; up to {EXACT_LIMIT} "
                "are computed unasked. Pass the matrix itself, or features (tt.sketch.nystrom)."
            )
        dense = self.matrix.dense().to(torch.float64, copy=True)
        check_symmetric(dense, self.matrix.dtype)
        return dense

    def modes(self) -> Modes:
        """The eigenpairs of K."""
        if isinstance(self.K, Operator) and not self.K.matrix_free:
            values, basis = self.K.eigh()
            vectors = basis.dense()
        else:
            values, vectors = torch.linalg.eigh(self.dense())
        smallest, largest = float(values.min()), float(values.max())
        if smallest < -_NEGATIVE * largest:
            raise ValueError(
                f"K has eigenvalues from {smallest:.1e} to {largest:.1e}: it is no kernel. Check how it was computed."
            )
        kept = values > rounding(self.matrix.dtype) * largest
        return Modes(values[kept], vectors[:, kept])


def problem(K: Any, y: Any, f0: Any = None) -> Problem:
    """K, y and f₀, checked."""
    K = K.operator() if isinstance(K, Features) else K
    matrix = square(as_matrix(K))
    if isinstance(K, Operator) and not K.matrix_free:
        K = K.to(torch.float64)
    elif not isinstance(K, Tensor | np.ndarray | Operator):
        K = ImplicitOperator(matrix.__matmul__, matrix.shape[0], matrix.dtype, matrix.device)
    y = torch.as_tensor(y).detach()
    outputs = outputs_of(K, len(y) if y.dim() else 0)
    like = torch.empty(0, dtype=torch.float64, device=matrix.device)
    columns, single = check_labels(y, find_loss("mse"), matrix.shape[0] // outputs, outputs, like)
    columns = columns.flatten(0, 1)
    return Problem(K, matrix, columns, _columns(f0, matrix.shape[0], columns, outputs, "f0"), outputs, single)


def outputs_of(K: Any, samples: int) -> int:
    """C: the last axis of a kernel (N, N, C, C); of a matrix, how many rows it has for each of so many samples."""
    if len(K.shape) == 4:
        return int(K.shape[2])
    rows = int(K.shape[0])
    return rows // samples if samples and rows % samples == 0 else 1


def _columns(f0: Any, rows: int, y: Float[Tensor, "_ K"], outputs: int, name: str) -> Float[Tensor, "rows _"] | None:
    """Outputs of the network at some points as columns: one, or as many as there are targets."""
    if f0 is None:
        return None
    found = torch.as_tensor(f0).detach().to(y)
    samples = rows // outputs
    if found.dim() == 0 or len(found) != samples or found.numel() not in (rows, rows * y.shape[1]):
        one = (samples,) if outputs == 1 else (samples, outputs)
        raise ValueError(f"{name} must have shape {one}, or a value for each target like y; got {tuple(found.shape)}.")
    if not bool(torch.isfinite(found).all()):
        raise ValueError(f"{name} has NaN or infinity. Check the outputs of the network.")
    return found.reshape(rows, -1)
