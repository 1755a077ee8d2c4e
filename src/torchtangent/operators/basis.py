"""Orthonormal bases Q (P, R), structured so that a large one never has to be formed.

The columns of Q are orthonormal; R < P is a thin basis. What an operator needs of a basis is the
way up (Q C), the way down (Qᵀ V) and, for the diagonal of Q diag(c) Qᵀ, the entrywise square.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from torchtangent.operators.product import product
from torchtangent.operators.space import Place


class Basis(ABC):
    """Orthonormal columns Q (P, R).

    Attributes:
        size: P, the dimension of the space.
        rank: R, the number of columns.
        dtype: the dtype of the entries; None for an identity, which takes any.
        device: the device of the entries; None for an identity, which takes any.
    """

    size: int
    rank: int
    dtype: torch.dtype | None
    device: torch.device | None

    @abstractmethod
    def lift(self, C: Float[Tensor, "R K"]) -> Float[Tensor, "P K"]:
        """Q C."""

    @abstractmethod
    def project(self, V: Float[Tensor, "P K"]) -> Float[Tensor, "R K"]:
        """Qᵀ V."""

    @abstractmethod
    def lift_squared(self, C: Float[Tensor, "R K"]) -> Float[Tensor, "P K"]:
        """(Q ∘ Q) C with the entrywise square of Q."""

    def dense(self) -> Float[Tensor, "P R"]:
        """Q as one matrix; not a copy if it is stored as one."""
        return self.lift(torch.eye(self.rank, dtype=self.dtype, device=self.device))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(size={self.size}, rank={self.rank})"

    def _describe(self, size: int, rank: int, like: Tensor | Basis) -> None:
        """Set the attributes that follow from the arguments: size, rank, dtype and device."""
        self.__dict__.update(size=size, rank=rank, dtype=like.dtype, device=like.device)


@final
@dataclass(frozen=True, eq=False, repr=False)
class Identity(Basis):
    """The unit vectors of R^P, without a matrix.

    Example:
        >>> Identity(2).dense()
        tensor([[1., 0.],
                [0., 1.]])
    """

    size: int
    dtype: torch.dtype | None = None
    device: torch.device | None = None

    def __post_init__(self) -> None:
        self.__dict__.update(rank=self.size)

    def lift(self, C: Float[Tensor, "R K"]) -> Float[Tensor, "P K"]:
        return C

    def project(self, V: Float[Tensor, "P K"]) -> Float[Tensor, "R K"]:
        return V

    def lift_squared(self, C: Float[Tensor, "R K"]) -> Float[Tensor, "P K"]:
        return C.clone()


@final
@dataclass(frozen=True, eq=False, repr=False)
class Columns(Basis):
    """The orthonormal columns of a matrix (P, R).

    Example:
        >>> import torch
        >>> Columns(torch.tensor([[0.6], [0.8]])).project(torch.tensor([[5.0], [0.0]]))
        tensor([[3.]])
    """

    matrix: Tensor

    def __post_init__(self) -> None:
        if self.matrix.ndim != 2 or self.matrix.shape[1] > self.matrix.shape[0]:
            raise ValueError(f"A basis needs a (P, R) matrix with R <= P, got {tuple(self.matrix.shape)}.")
        self._describe(self.matrix.shape[0], self.matrix.shape[1], like=self.matrix)

    def lift(self, C: Float[Tensor, "R K"]) -> Float[Tensor, "P K"]:
        return product(self.matrix, C)

    def project(self, V: Float[Tensor, "P K"]) -> Float[Tensor, "R K"]:
        return product(self.matrix.T, V)

    def lift_squared(self, C: Float[Tensor, "R K"]) -> Float[Tensor, "P K"]:
        return product(self.matrix.square(), C)

    def dense(self) -> Float[Tensor, "P R"]:
        return self.matrix


@final
@dataclass(frozen=True, eq=False, repr=False)
class KroneckerBasis(Basis):
    """Q_L ⊗ Q_R, acting on (rows, cols) matrices flattened in row-major order.

    Example:
        >>> import torch
        >>> KroneckerBasis(Identity(2), Columns(torch.tensor([[0.6], [0.8]]))).dense()
        tensor([[0.6000, 0.0000],
                [0.8000, 0.0000],
                [0.0000, 0.6000],
                [0.0000, 0.8000]])
    """

    left: Basis
    right: Basis

    def __post_init__(self) -> None:
        like = self.right if self.left.dtype is None else self.left
        self._describe(self.left.size * self.right.size, self.left.rank * self.right.rank, like)

    def lift(self, C: Float[Tensor, "R K"]) -> Float[Tensor, "P K"]:
        return both_sides(self.left.lift, self.right.lift, C, (self.left.rank, self.right.rank))

    def project(self, V: Float[Tensor, "P K"]) -> Float[Tensor, "R K"]:
        return both_sides(self.left.project, self.right.project, V, (self.left.size, self.right.size))

    def lift_squared(self, C: Float[Tensor, "R K"]) -> Float[Tensor, "P K"]:
        return both_sides(self.left.lift_squared, self.right.lift_squared, C, (self.left.rank, self.right.rank))


@final
@dataclass(frozen=True, eq=False, repr=False)
class BatchBasis(Basis):
    """A block-diagonal basis of B blocks (n, r) of the same size, one after the other."""

    matrices: Float[Tensor, "B n r"]

    def __post_init__(self) -> None:
        batch, size, rank = self.matrices.shape
        self._describe(batch * size, batch * rank, like=self.matrices)

    def lift(self, C: Float[Tensor, "R K"]) -> Float[Tensor, "P K"]:
        return self._each(self.matrices, C)

    def project(self, V: Float[Tensor, "P K"]) -> Float[Tensor, "R K"]:
        return self._each(self.matrices.mT, V)

    def lift_squared(self, C: Float[Tensor, "R K"]) -> Float[Tensor, "P K"]:
        return self._each(self.matrices.square(), C)

    def _each(self, matrices: Float[Tensor, "B m n"], V: Tensor) -> Tensor:
        batch, rows, cols = matrices.shape
        return product(matrices, V.reshape(batch, cols, V.shape[1])).reshape(batch * rows, V.shape[1])


@final
@dataclass(frozen=True, eq=False, repr=False)
class BlockBasis(Basis):
    """A block-diagonal basis, where each block has its own place in the flat vector."""

    blocks: tuple[tuple[Place, Basis], ...]
    size: int

    def __post_init__(self) -> None:
        known = [basis for _, basis in self.blocks if basis.dtype is not None]
        like = (known or [self.blocks[0][1]])[0]
        self._describe(self.size, sum(basis.rank for _, basis in self.blocks), like)

    def lift(self, C: Float[Tensor, "R K"]) -> Float[Tensor, "P K"]:
        return self._scatter(C, lambda basis: basis.lift)

    def project(self, V: Float[Tensor, "P K"]) -> Float[Tensor, "R K"]:
        V = V.contiguous()
        return torch.cat([basis.project(place.gather(V)) for place, basis in self.blocks])

    def lift_squared(self, C: Float[Tensor, "R K"]) -> Float[Tensor, "P K"]:
        return self._scatter(C, lambda basis: basis.lift_squared)

    def _scatter(self, C: Tensor, lift: Callable[[Basis], Callable[[Tensor], Tensor]]) -> Tensor:
        out = C.new_zeros(self.size, C.shape[1])
        pieces = C.split([basis.rank for _, basis in self.blocks])
        for (place, basis), piece in zip(self.blocks, pieces, strict=True):
            place.scatter(lift(basis)(piece), out)
        return out


@final
@dataclass(frozen=True, eq=False, repr=False)
class PickedBasis(Basis):
    """Some columns of another basis, in a chosen order."""

    basis: Basis
    index: Int[Tensor, " R"]

    def __post_init__(self) -> None:
        self._describe(self.basis.size, len(self.index), like=self.basis)

    def lift(self, C: Float[Tensor, "R K"]) -> Float[Tensor, "P K"]:
        return self.basis.lift(self._spread(C))

    def project(self, V: Float[Tensor, "P K"]) -> Float[Tensor, "R K"]:
        return self.basis.project(V)[self.index]

    def lift_squared(self, C: Float[Tensor, "R K"]) -> Float[Tensor, "P K"]:
        return self.basis.lift_squared(self._spread(C))

    def _spread(self, C: Tensor) -> Tensor:
        return C.new_zeros(self.basis.rank, C.shape[1]).index_copy_(0, self.index, C)


def pick(basis: Basis, index: Int[Tensor, " R"]) -> Basis:
    """The columns `index` of a basis."""
    return Columns(basis.matrix[:, index]) if isinstance(basis, Columns) else PickedBasis(basis, index)


def as_basis(basis: Basis | Tensor) -> Basis:
    """A matrix with orthonormal columns as a basis; a basis as it is."""
    return Columns(basis) if isinstance(basis, Tensor) else basis


def both_sides(
    left: Callable[[Tensor], Tensor], right: Callable[[Tensor], Tensor], V: Tensor, shape: tuple[int, int]
) -> Tensor:
    """(L ⊗ R) V for V (rows·cols, K) in row-major order, given functions that apply L and R to columns.

    For a single column this is two matrix products on transposed views, without a copy.
    """
    (rows, cols), K = shape, V.shape[1]
    if K == 1:
        return left(right(V.reshape(rows, cols).T).T).reshape(-1, 1)
    X = right(V.reshape(rows, cols, K).transpose(0, 1).reshape(cols, rows * K))
    cols = X.shape[0]
    X = left(X.reshape(cols, rows, K).transpose(0, 1).reshape(rows, cols * K))
    return X.reshape(X.shape[0] * cols, K)
