"""A kernel and its targets in a common form: a matrix, and columns in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.kernel.matrix import Matrix, as_matrix, as_square
from torchtangent.kernel.sketch import Features
from torchtangent.kernel.targets import Form, as_columns
from torchtangent.linear.points import Terms, at_start
from torchtangent.operators import DenseOperator, ImplicitOperator, Operator
from torchtangent.operators.spectrum import EXACT_LIMIT
from torchtangent.operators.symmetric import eigh, reflect
from torchtangent.spectrum.checks import check_symmetric, resolved


class Modes(NamedTuple):
    """The eigenpairs of K with eigenvalues that are not zero up to rounding, in float64.

    Attributes:
        values: (R,).
        vectors: (rows, R), orthonormal.
    """

    values: Float[Tensor, " R"]
    vectors: Float[Tensor, "rows R"]


@final
@dataclass(frozen=True, eq=False)
class Problem:
    """Fit targets y, starting from f₀, with a kernel: one row per sample and output, one column per target.

    Attributes:
        K: The kernel as it was given, or as an operator if it is no array; operators with structure are in float64.
        matrix: The kernel as a matrix, in its own dtype.
        y: (rows, k), in float64, like all columns here.
        f0: (rows, 1), or (rows, k) if each target has its own.
        terms: Which terms predictions have.
    """

    K: Tensor | np.ndarray | Operator
    matrix: Matrix
    y: Float[Tensor, "rows K"]
    f0: Float[Tensor, "rows _"]
    terms: Terms

    @property
    def form(self) -> Form:
        """The form in which the targets were given."""
        return self.terms.form

    @property
    def rows(self) -> int:
        """N·C."""
        return self.matrix.shape[0]

    @property
    def residual(self) -> Float[Tensor, "rows K"]:
        """y − f₀."""
        return self.y - self.f0

    def shaped(self, columns: Float[Tensor, "rows K"]) -> Float[Tensor, "..."]:
        """Columns in the form of the targets, in K's dtype."""
        return self.form.restore(columns.to(self.matrix.dtype))

    def start(self, K_test: Any, f0_test: Any) -> Float[Tensor, "rows _"]:
        """f₀ at the points of K_test, or at those of K if there is no K_test."""
        if K_test is None:
            if f0_test is not None:
                raise ValueError("f0_test is given without K_test: predictions at new points need both.")
            return self.f0
        return self.terms.at(K_test, f0_test, None, self.y).f0

    def times(self, K: Any, V: Float[Tensor, "rows K"]) -> Float[Tensor, "M K"]:
        """K V for a kernel between other points and these, in float64 if K has entries, as much may cancel."""
        return as_matrix(K, self.matrix.device).times(V)

    def dense(self) -> Float[Tensor, "rows rows"]:
        """A copy of K in float64, symmetric to the last bit."""
        if isinstance(self.K, Operator) and self.rows > EXACT_LIMIT:
            raise ValueError(
                f"K is known by its products only, and this takes all {self.rows} columns of it; up to {EXACT_LIMIT} "
                "are computed unasked. Pass the matrix itself, or features (tt.sketch.nystrom)."
            )
        dense = self.matrix.dense().to(torch.float64, copy=True)
        check_symmetric(dense, self.matrix.dtype)
        return reflect(dense)

    def modes(self) -> Modes:
        """The eigenpairs of K."""
        if isinstance(self.K, Operator) and not self.K.matrix_free:
            values, basis = self.K.eigh()
            vectors = basis.dense()
        else:
            values, vectors = eigh(self.dense())
        kept = resolved(values, self.matrix.stored)
        return Modes(values[kept], vectors[:, kept])


def problem(K: Any, y: Any, f0: Any = None) -> Problem:
    """The problem for K, y and f₀ as a user gives them, after checks."""
    if isinstance(K, Features):
        K = K.operator()
    elif isinstance(K, DenseOperator):
        K = K.matrix
    matrix = as_square(as_matrix(K))
    like = torch.empty(0, dtype=torch.float64, device=matrix.device)
    columns, form = as_columns(y, K.shape, like, instead=", or to tt.predict.classify")
    if isinstance(y, Tensor) and y.requires_grad:  # labels may be learned, as those of distilled samples are
        columns = y.to(like).reshape(columns.shape)
    if isinstance(K, Operator) and not K.matrix_free:
        K = K.to(torch.float64)
    elif not isinstance(K, Tensor | np.ndarray | Operator):
        K = ImplicitOperator(matrix.__matmul__, matrix.shape[0], matrix.dtype, matrix.device)
    return Problem(K, matrix, columns, at_start(f0, form, like, "f0"), Terms(form, biased=f0 is not None))
