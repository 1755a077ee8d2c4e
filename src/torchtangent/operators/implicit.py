"""Operators known only by their products."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.notice import warn
from torchtangent.operators.autocast import without_autocast
from torchtangent.operators.base import Operator
from torchtangent.operators.checks import Number, check_real, checked_damping
from torchtangent.operators.columns import column_squares, unit_columns
from torchtangent.operators.derivative import linear
from torchtangent.operators.krylov import SolveReport, conjugate_gradients, iterative
from torchtangent.operators.space import Space, Vector
from torchtangent.operators.spectrum import EXACT_LIMIT, Factorization, Spectrum, dense_spectrum

_MANY = 1024  # products that are worth a warning
_OPTIONS = (
    ", or give the operator another limit or a preconditioner: dataclasses.replace(F, max_iter=…, "
    "preconditioner=kfac.inverse(damping))"
)


@final
@dataclass(frozen=True, eq=False, repr=False)
class ImplicitOperator(Operator):
    """M given by the function V ↦ M V.

    Solves use conjugate gradients, which need M + damping·I to be positive definite and warn
    (`ConvergenceWarning`) if they do not reach `rtol`; `cg` also returns a report. Traces, diagonals
    and norms are exact, from P products, up to a size of `exact_limit`. Beyond it they are refused, and
    `estimate_trace` and `estimate_diag` give estimates with standard errors.

    Args:
        matmat: (P, K) → (P, K), symmetric.
        size: P.
        dtype: the dtype of the vectors.
        device: the device of the vectors, or its name.
        rtol: the relative residual ‖b − Ax‖ / ‖b‖ at which conjugate gradients stop.
        max_iter: the number of products after which they give up; by default 10 P, but at most 1000.
        preconditioner: an operator close to the inverse, for instance `kfac.inverse(damping)`.
        exact_limit: the largest size at which exact results from P products are allowed.

    Example:
        >>> import torch
        >>> M = ImplicitOperator(lambda V: 2 * V, 3, torch.float64, torch.device("cpu"))
        >>> M.solve(torch.ones(3, dtype=torch.float64), damping=2.0)
        tensor([0.2500, 0.2500, 0.2500], dtype=torch.float64)
        >>> x, report = M.cg(torch.ones(3, dtype=torch.float64))
        >>> report.converged, report.iterations
        (True, 1)
    """

    matmat: Callable[[Tensor], Tensor]
    size: int
    dtype: torch.dtype
    device: torch.device
    space: Space | None = field(default=None, kw_only=True)
    rtol: float = field(default=1e-6, kw_only=True)
    max_iter: int | None = field(default=None, kw_only=True)
    preconditioner: Operator | None = field(default=None, kw_only=True)
    exact_limit: int = field(default=EXACT_LIMIT, kw_only=True)

    products_only: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_real(self.dtype)
        where = torch.empty(0, dtype=self.dtype, device=self.device).device  # "cuda" is "cuda:0"
        object.__setattr__(self, "device", where)

    @without_autocast
    def cg(self, v: Vector, damping: Number = 0.0) -> tuple[Any, SolveReport]:
        """(M + damping·I)⁻¹ v by conjugate gradients, and a report instead of warnings."""
        V, restore = self._columns(v)
        X, report = conjugate_gradients(self, checked_damping(damping, self.dtype), V.detach(), **self._settings)
        return restore(X), report

    def _matmat(self, V: Float[Tensor, "P K"]) -> Float[Tensor, "P K"]:
        out = linear(self.matmat, self.matmat, V)
        if out.shape != V.shape:
            raise ValueError(f"The function of {self!r} turned {tuple(V.shape)} into {tuple(out.shape)}.")
        return out.clone() if _owner(out) is _owner(V) else out

    def _factorize(self, damping: float) -> Factorization:
        return iterative(self, damping, options=_OPTIONS, **self._settings)

    def _decompose(self) -> Spectrum:
        self._check_size("All eigenvalues", "eigh(k) finds the k largest; for all use a structured representation")
        return dense_spectrum(self.dense()).without_noise()  # no factorization tells whether it is singular

    def _diagonal(self) -> Float[Tensor, " P"]:
        self._check_size("The exact diagonal", "use estimate_diag()")
        out = torch.empty(self.size, dtype=self.dtype, device=self.device)
        for where, columns in unit_columns(self):
            out[where] = columns[where].diagonal()
        return out

    def _power_trace(self, power: int) -> Float[Tensor, ""]:
        if power == 1:
            self._check_size("The exact trace", "use estimate_trace()")
            return self._diagonal().sum()
        self._check_size("The exact norm", "use a structured representation")
        return column_squares(self)

    @property
    def _settings(self) -> dict[str, Any]:
        """Those of conjugate gradients."""
        limit = min(10 * self.size, 1000) if self.max_iter is None else self.max_iter
        return {"rtol": self.rtol, "max_iter": limit, "preconditioner": self.preconditioner}

    def _check_size(self, what: str, advice: str) -> None:
        """Refuse what takes P products with a large operator; warn if they are many."""
        if self.size > self.exact_limit:
            raise ValueError(
                f"{what} of {self!r} would take {self.size} products (exact_limit={self.exact_limit}): "
                f"{advice}, or raise exact_limit."
            )
        if self.size > _MANY:
            warn(f"{what} of {self!r} takes {self.size} products, which may be long. Instead, {advice}.")


def _owner(t: Tensor) -> Tensor:
    """The tensor that t is a view of, or t itself."""
    return t if t._base is None else t._base
