"""Arrowhead matrices: a diagonal bordered by one row and column (quasi-diagonal Fisher)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.operators.base import Operator
from torchtangent.operators.basis import BatchBasis
from torchtangent.operators.checks import check_alike
from torchtangent.operators.space import Space
from torchtangent.operators.spectrum import Factorization, Spectrum, indefinite, rounding, singular, square_sum
from torchtangent.operators.symmetric import eigh

_PIVOT = 0.1  # an eliminated entry of an indefinite row, relative to the largest: a digit may be lost with it


@final
@dataclass(frozen=True, eq=False, repr=False)
class ArrowheadOperator(Operator):
    """One arrowhead per row of a row-major (R, I+1) matrix [W b]:

        M_r = [[diag(diagonal[r]), edge[r]], [edge[r]ᵀ, corner[r]]]

    It may be indefinite: then `solve` still works, while `sqrt_mv` and `logdet` say so. Solves and
    log-determinants are by elimination of the diagonal, O(P); `eigh` and `sqrt_mv` decompose R dense
    matrices of (I+1)².

    Args:
        diagonal: (R, I), of the weights.
        edge: (R, I), between the weights and the bias of their row.
        corner: (R,), of the biases.

    Example:
        >>> import torch
        >>> M = ArrowheadOperator(torch.tensor([[2.0, 4.0]]), torch.tensor([[1.0, 2.0]]), torch.tensor([3.0]))
        >>> M.dense()
        tensor([[2., 0., 1.],
                [0., 4., 2.],
                [1., 2., 3.]])
        >>> M.logdet().exp().round(decimals=4)
        tensor(12.)
    """

    diagonal: Tensor
    edge: Tensor
    corner: Tensor
    space: Space | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        shapes = [tuple(t.shape) for t in (self.diagonal, self.edge, self.corner)]
        if len(shapes[0]) != 2 or shapes[1] != shapes[0] or shapes[2] != shapes[0][:1]:
            raise ValueError(f"ArrowheadOperator needs shapes (R, I), (R, I) and (R,), got {shapes}.")
        check_alike([self.diagonal, self.edge, self.corner])
        self._describe(self.diagonal.numel() + self.corner.numel(), like=self.diagonal)

    def _matmat(self, V: Float[Tensor, "P K"]) -> Float[Tensor, "P K"]:
        w, b = self._split(V)
        weights = torch.addcmul(self.edge[:, :, None] * b, self.diagonal[:, :, None], w)
        bias = self.edge[:, None] @ w + self.corner[:, None, None] * b
        return torch.cat([weights, bias], dim=1).reshape(V.shape)

    def _factorize(self, damping: float) -> Factorization:
        d, c = self.diagonal + damping, self.corner + damping
        ratio = self.edge / d
        schur = c - (self.edge * ratio).sum(1)
        definite = (d > 0).all(1) & (schur > 0)
        unsafe = self._check_rows(d, schur, definite, damping)

        def solve(V: Tensor) -> Tensor:
            w, b = self._split(V)
            bias = (b - ratio[:, None] @ w) / schur[:, None, None]
            weights = (w - self.edge[:, :, None] * bias) / d[:, :, None]
            out = torch.cat([weights, bias], dim=1)
            if unsafe is not None:
                out[unsafe] = self._solve_rows(unsafe, damping, V.reshape(out.shape)[unsafe])
            return out.reshape(V.shape)

        def logdet() -> Tensor:
            if not bool(definite.all()):
                smallest = float(self._spectrum.values.min()) + damping
                raise indefinite(f"{self!r} with damping={damping:g}", smallest, "log-determinant")
            return d.log().sum() + schur.log().sum()

        return Factorization(solve, logdet)

    def _decompose(self) -> Spectrum:
        values, vectors = eigh(self._row_matrices(slice(None)))
        return Spectrum(values.reshape(-1), BatchBasis(vectors))

    def _diagonal(self) -> Float[Tensor, " P"]:
        return torch.cat([self.diagonal, self.corner[:, None]], dim=1).reshape(-1)

    def _power_trace(self, power: int) -> Float[Tensor, ""]:
        if power == 1:
            return self.diagonal.sum() + self.corner.sum()
        return square_sum(self.diagonal) + 2 * square_sum(self.edge) + square_sum(self.corner)

    def _check_rows(self, d: Tensor, schur: Tensor, definite: Tensor, damping: float) -> Tensor | None:
        """The rows where eliminating d may fail, if any; an error if one is singular.

        Elimination is stable in definite rows; in the others a small pivot is not safe.
        """
        unsafe = None
        if d.shape[1] and not bool(definite.all()):
            if bool(((d == 0) & (self.edge == 0)).any()):
                raise singular(repr(self), damping)
            largest = torch.maximum(d.abs(), self.edge.abs()).amax(1)
            unsafe = ~definite & (d.abs().amin(1) <= _PIVOT * largest)
        threshold = rounding(self.dtype, d.shape[1] + 1) * self.corner.abs() if damping == 0 else 0.0
        zero = schur.abs() <= threshold
        if bool((zero if unsafe is None else zero & ~unsafe).any()):
            raise singular(repr(self), damping)
        return unsafe if unsafe is not None and bool(unsafe.any()) else None

    def _split(self, V: Float[Tensor, "P K"]) -> tuple[Float[Tensor, "R I K"], Float[Tensor, "R 1 K"]]:
        """The entries of the weights and of the biases."""
        rows, width = self.diagonal.shape
        X = V.reshape(rows, width + 1, V.shape[1])
        return X[:, :-1], X[:, -1:]

    def _row_matrices(self, rows: slice | Tensor) -> Float[Tensor, "R J J"]:
        """The arrowheads of some rows as dense matrices."""
        d, e, c = self.diagonal[rows], self.edge[rows], self.corner[rows]
        M = torch.diag_embed(torch.cat([d, c[:, None]], dim=1))
        M[:, :-1, -1] = e
        M[:, -1, :-1] = e
        return M

    def _solve_rows(self, rows: Tensor, damping: float, V: Float[Tensor, "R J K"]) -> Float[Tensor, "R J K"]:
        """Dense solves with pivoting, for the rows whose diagonal cannot be eliminated safely."""
        M = self._row_matrices(rows)
        M.diagonal(dim1=-2, dim2=-1).add_(damping)
        LU, pivots, info = torch.linalg.lu_factor_ex(M)
        diagonal = LU.diagonal(dim1=-2, dim2=-1).abs()
        threshold = rounding(self.dtype, M.shape[-1]) * diagonal.amax(-1) if damping == 0 else 0.0
        if bool((info != 0).any()) or bool((diagonal.amin(-1) <= threshold).any()):
            raise singular(repr(self), damping)
        return torch.linalg.lu_solve(LU, pivots, V)
