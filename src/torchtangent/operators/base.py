"""The algebra of symmetric operators M on parameter space R^P, written once.

A subclass implements five methods: the product with columns (P, K), a factorization of the damped
operator, the eigendecomposition, the diagonal, and the traces of M and M². All public methods are
written here in terms of these five, and run with autocast switched off.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.notice import dtype_name
from torchtangent.operators.autocast import without_autocast
from torchtangent.operators.basis import Basis
from torchtangent.operators.checks import Number, check_alike, check_real, checked_damping, constant
from torchtangent.operators.derivative import with_slope
from torchtangent.operators.estimate import Estimate, estimated_diagonal, estimated_trace
from torchtangent.operators.krylov import top_eigenpairs
from torchtangent.operators.space import Restore, Space, Vector, check_kind, tensor_columns
from torchtangent.operators.spectrum import EXACT_LIMIT, Eigh, Factorization, Spectrum, rounding
from torchtangent.operators.tree import converted, parts, tensors

Self = TypeVar("Self", bound="Operator")
T = TypeVar("T")


class Operator(ABC):
    """A symmetric linear map M on R^P.

    Subclasses are final; their constructors store and check their arguments, and compute nothing.

    Attributes:
        size: P, the number of parameters.
        dtype: the dtype of the vectors it is applied to.
        device: the device of these vectors.
        space: names and shapes of the parameters, if attached by `on`: vectors can then also be
            dicts and lists of tensors.

    Example:
        >>> import torch
        >>> from torchtangent.operators import DiagonalOperator
        >>> M = DiagonalOperator(torch.tensor([1.0, 3.0]))
        >>> M @ torch.ones(2), M.solve(torch.ones(2), damping=1.0)
        (tensor([1., 3.]), tensor([0.5000, 0.2500]))
        >>> (2 * M + M).trace()
        tensor(12.)
    """

    size: int
    dtype: torch.dtype
    device: torch.device
    space: Space | None

    products_only: ClassVar[bool] = False
    """Whether products are the only cheap operation."""

    keeps_factorization: ClassVar[bool] = False
    """Whether the last factorization takes about as little memory as a vector, so that it is kept."""

    registry: ClassVar[dict[str, type[Operator]]] = {}
    """Every final operator by its name, for reading files and for the contract tests."""

    def __init_subclass__(cls) -> None:
        Operator.registry[cls.__name__] = cls

    # ------------------------------------------------------------------ what a subclass implements

    @abstractmethod
    def _matmat(self, V: Float[Tensor, "P K"]) -> Float[Tensor, "P K"]:
        """M V."""

    @abstractmethod
    def _factorize(self, damping: float) -> Factorization:
        """A factorization of M + damping·I, which solves and gives the log-determinant."""

    @abstractmethod
    def _decompose(self) -> Spectrum:
        """The eigendecomposition of M."""

    @abstractmethod
    def _diagonal(self) -> Float[Tensor, " P"]:
        """The diagonal of M."""

    @abstractmethod
    def _power_trace(self, power: int) -> Float[Tensor, ""]:
        """The trace of M (power 1) or of M² (power 2), the latter in float64."""

    @property
    def shape(self) -> tuple[int, int]:
        """(P, P)."""
        return self.size, self.size

    # --------------------------------------------------------------------------- products and solves

    @without_autocast
    def __matmul__(self, v: Vector) -> Any:
        """M v in the format of v: flat (P,), columns (P, K), or, with a space, a dict or list of tensors."""
        V, restore = self._columns(v)
        return restore(self._matmat(V))

    @without_autocast
    def solve(self, v: Vector, damping: Number = 0.0) -> Any:
        """(M + damping·I)⁻¹ v, in the format of v.

        Operators that solve by their eigendecomposition keep it, so further solves are cheap with any damping,
        and cheapest with the same. For the others, `inverse(damping)` keeps the factorization. Operators known
        only by their products solve by conjugate gradients, to a relative residual of `rtol` (1e-6, see
        `ImplicitOperator`); a `ConvergenceWarning` says how far the solution is off if they miss it.
        """
        V, restore = self._columns(v)
        return restore(self._factorized(checked_damping(damping, self.dtype)).solve(V))

    @without_autocast
    def quad(self, v: Vector) -> Tensor:
        """vᵀ M v, a scalar; for columns (P, K), one value per column, (K,)."""
        V, _ = self._columns(v)
        values = (V * self._matmat(V)).sum(0)
        return values if isinstance(v, Tensor) and v.ndim == 2 else values[0]

    @without_autocast
    def sqrt_mv(self, v: Vector) -> Any:
        """M^½ v with the symmetric positive semi-definite root; a ValueError if M is indefinite."""
        V, restore = self._columns(v)
        return restore(self._spectrum.root(repr(self)).matmat(V))

    # ------------------------------------------------------------------------------------- summaries

    @without_autocast
    def trace(self) -> Float[Tensor, ""]:
        """The trace of M, exact."""
        return self._power_trace(1)

    @without_autocast
    def diag(self) -> Float[Tensor, " P"]:
        """The diagonal of M, exact. `M.space.split(M.diag())` gives it by parameter."""
        return self._diagonal()

    @without_autocast
    def frobenius(self) -> Float[Tensor, ""]:
        """The Frobenius norm ‖M‖ = (tr M²)^½, exact."""
        return self._power_trace(2).clamp(min=0).sqrt().to(self.dtype)

    @without_autocast
    def logdet(self, damping: Number = 0.0) -> Float[Tensor, ""]:
        """log det(M + damping·I); a ValueError if that is not positive definite.

        It can be differentiated with respect to the damping, once: the derivative is the trace of the inverse.
        """
        shift = checked_damping(damping.detach() if isinstance(damping, Tensor) else damping, self.dtype)
        if not (isinstance(damping, Tensor) and damping.requires_grad):
            return self._factorize(shift).logdet()
        if self.matrix_free:
            return with_slope(self._factorize(shift).logdet(), lambda: self.inverse(shift).trace(), damping)
        spectrum, name = self._spectrum, repr(self)  # once for all dampings
        value = spectrum.logdet(shift, name, rounding(self.dtype, self.size))
        return with_slope(value, lambda: spectrum.inverse(shift, name).power_trace(1), damping)

    @without_autocast
    def eigh(self, k: int | None = None, *, seed: int = 0) -> Eigh:
        """Eigenvalues, in descending order, and their eigenvectors as a basis.

        Eigenvalues that are zero by structure (outside the span of a low-rank factor) are left out,
        so there may be fewer than P, or than k.

        Args:
            k: how many of the algebraically largest eigenvalues; all by default. Operators known only
                by their products find them by block Lanczos iterations, to eps^⅔ of each or 30 eps of
                the largest, and warn (`ConvergenceWarning`) if they miss that, or if a small eigenvalue
                is not resolved. Of what they find only the values can be differentiated.
            seed: the seed of the random blocks of these iterations.
        """
        if k is not None and k < 1:
            raise ValueError(f"k must be at least 1, got {k}.")
        if k is not None and self.matrix_free and k * (10 if self.size <= EXACT_LIMIT else 4) <= self.size:
            return top_eigenpairs(self, k, seed)
        return self._spectrum.leading(k)

    @without_autocast
    def dense(self) -> Float[Tensor, "P P"]:
        """M as one matrix."""
        from torchtangent.operators.algebra import densified

        return densified(self)

    @without_autocast
    def estimate_trace(self, probes: int = 32, seed: int = 0) -> Estimate:
        """An estimate of the trace, E[zᵀMz] over random signs z, with its standard error."""
        return estimated_trace(self, probes, seed)

    @without_autocast
    def estimate_diag(self, probes: int = 32, seed: int = 0) -> Estimate:
        """An estimate of the diagonal, E[z ∘ Mz] over random signs z, with its standard error."""
        return estimated_diagonal(self, probes, seed)

    # --------------------------------------------------------------------------------- new operators

    def __add__(self, other: Operator) -> Operator:
        """M + N, in their common structure if they have one."""
        from torchtangent.operators.algebra import added

        if not isinstance(other, Operator):
            return NotImplemented
        if other.size != self.size:
            raise ValueError(
                f"Cannot add operators of sizes {self.size} and {other.size}: were they made with the same params=?"
            )
        check_alike([self, other])
        if None not in (self.space, other.space) and self.space != other.space:
            raise ValueError("Cannot add operators on different spaces: names or shapes differ.")
        return added(self, other).on(self.space or other.space)

    def __radd__(self, other: object) -> Operator:
        """0 + M, which `sum` starts with."""
        return self if type(other) is int and other == 0 else NotImplemented

    def __mul__(self, factor: Number) -> Operator:
        """factor · M, in the same structure where possible."""
        from torchtangent.operators.algebra import scaled

        if isinstance(factor, Operator) or (isinstance(factor, Tensor) and factor.ndim > 0):
            return NotImplemented
        return scaled(self, constant(factor, "A factor")).on(self.space)

    __rmul__ = __mul__

    def __truediv__(self, factor: Number) -> Operator:
        """M / factor."""
        return NotImplemented if isinstance(factor, Operator) else self * (1 / constant(factor, "A factor"))

    def __neg__(self) -> Operator:
        return -1.0 * self

    def __sub__(self, other: Operator) -> Operator:
        return self + (-1.0) * other

    def damped(self, damping: Number) -> Operator:
        """M + damping·I."""
        from torchtangent.operators.algebra import shifted

        return shifted(self, constant(damping, "This damping")).on(self.space)

    def inverse(self, damping: Number = 0.0) -> Operator:
        """(M + damping·I)⁻¹ as an operator that keeps its factorization."""
        from torchtangent.operators.algebra import inverted

        return inverted(self, checked_damping(damping, self.dtype)).on(self.space)

    def on(self: Self, space: Space | None) -> Self:
        """The same operator with a space attached: it also takes and returns dicts and lists of tensors."""
        if space is not None and space.size != self.size:
            raise ValueError(f"The space has {space.size} parameters, the operator {self.size}.")
        clone = object.__new__(type(self))
        clone.__dict__.update(self.__dict__, space=space)
        return clone

    def to(
        self,
        *kinds: torch.dtype | torch.device | str | None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Operator:
        """The same operator in another dtype or on another device: `M.to(torch.float64)`, `M.to("cuda")`."""
        for kind in kinds:
            if isinstance(kind, str) and isinstance(getattr(torch, kind, None), torch.dtype):
                kind = getattr(torch, kind)  # "float64"
            if isinstance(kind, torch.dtype):
                dtype = kind
            elif kind is not None:
                device = kind
        check_real(dtype or self.dtype)
        where = self.device if device is None else torch.empty(0, device=device).device  # "cuda" is "cuda:0"
        if where == self.device and dtype in (None, self.dtype):
            return self
        return converted(self, dtype, where)

    @without_autocast
    def eigenbasis(self) -> Basis:
        """Orthonormal eigenvectors of at least all non-zero eigenvalues, in any order."""
        return self._spectrum.basis

    # ----------------------------------------------------------------- files, other libraries, repr

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the operator and its space to a safetensors file."""
        from torchtangent.operators.serialize import save

        save(self, path)

    @staticmethod
    def load(path: str | os.PathLike[str], device: torch.device | str = "cpu") -> Operator:
        """Read an operator that was written by `save`."""
        from torchtangent.operators.serialize import load

        return load(path, device)

    def to_scipy(self) -> Any:
        """A `scipy.sparse.linalg.LinearOperator` that multiplies by M."""
        from torchtangent.operators.interop import to_scipy

        return to_scipy(self)

    def __repr__(self) -> str:
        inside = Counter(type(part).__name__ for part in parts(self, Operator))
        words = [f"size={self.size}", f"dtype={dtype_name(self.dtype)}"]
        return f"{type(self).__name__}({', '.join(words + [f'{n} {kind}' for kind, n in sorted(inside.items())])})"

    # ---------------------------------------------------------------------------------------- inside

    @property
    def _spectrum(self) -> Spectrum:
        """The eigendecomposition, computed once."""
        return self._once("_kept_spectrum", self._decompose)

    def _once(self, name: str, make: Callable[[], T], *key: object) -> T:
        """What `make` returns, kept under a name until the operator or the key changes; anew if differentiated."""
        given = self._kept_tensors
        if any(t.requires_grad for t in given):
            return make()
        now = key, [t._version for t in given if not t.is_inference()]
        kept: tuple[Any, T] | None = self.__dict__.get(name)
        if kept is None or kept[0] != now:
            with torch.inference_mode(False):  # what is made there could not be used for derivatives later
                kept = self.__dict__[name] = now, make()
        return kept[1]

    def _factorized(self, damping: float) -> Factorization:
        """`_factorize(damping)`, kept for the next solve if that takes little memory."""
        small = self.keeps_factorization and damping != 0  # or it may be that of dense factors
        if not small or any(t.is_inference() for t in self._kept_tensors):  # which do not tell when they change
            return self._factorize(damping)
        return self._once("_kept_factorization", lambda: self._factorize(damping), damping)

    @cached_property
    def _kept_tensors(self) -> list[Tensor]:
        return list(tensors(self))

    def __getstate__(self) -> dict[str, Any]:
        """What copies and pickles have of it; what it keeps for speed is made again."""
        return {name: value for name, value in self.__dict__.items() if not name.startswith("_kept")}

    @cached_property
    def matrix_free(self) -> bool:
        """Whether the operator, or a part of it, is known only by its products."""
        return self.products_only or any(part.matrix_free for part in parts(self, Operator))

    def _describe(self, size: int, like: Tensor | Operator) -> None:
        """Set the attributes that follow from the arguments: size, dtype and device."""
        check_real(like.dtype)
        self.__dict__.update(size=size, dtype=like.dtype, device=like.device)

    def _columns(self, v: Vector) -> tuple[Float[Tensor, "P K"], Restore]:
        """The vector as columns, and the function that brings a result back to its format."""
        if self.space is not None:
            V, restore = self.space.flatten(v)
        elif isinstance(v, Tensor):
            V, restore = tensor_columns(v, self.size)
        else:
            check_kind(v)
            raise ValueError(
                f"A {type(v).__name__} vector needs names and shapes of the parameters: "
                "attach them by operator.on(space)."
            )
        if V.dtype != self.dtype or V.device != self.device:
            raise ValueError(
                f"The vector is {V.dtype} on {V.device}, the operator {self.dtype} on {self.device}. "
                "Convert one of them with .to()."
            )
        return V, restore
