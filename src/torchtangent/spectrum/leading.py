"""The leading eigenpairs of a symmetric matrix in memory, on disk or known by its products; tasks made of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from torchtangent.jacobians.call import float32_products
from torchtangent.kernel.matrix import Matrix, as_matrix, as_square
from torchtangent.notice import warn
from torchtangent.operators import ConvergenceWarning, Operator
from torchtangent.operators.lanczos import leading_pairs
from torchtangent.operators.symmetric import eigh
from torchtangent.spectrum.checks import check_symmetric, resolution

DENSE_LIMIT = 2048
"""The largest size at which a matrix is always fully decomposed."""


@dataclass(frozen=True, eq=False, repr=False)
class Eigenpairs:
    """The leading eigenpairs of a symmetric K; unpacks as `values, vectors`.

    Attributes:
        values: (k,), in descending order.
        vectors: (N, k), orthonormal, each with its largest entry positive. For C outputs (N·C, k), where row n·C + c
            is output c of sample n.
        residuals: (k,), the true ‖K φ − λ φ‖: K has an eigenvalue within this distance of each value.
        converged: whether all residuals are as small as was asked for.
    """

    values: Float[Tensor, " K"]
    vectors: Float[Tensor, "N K"]
    residuals: Float[Tensor, " K"]
    converged: bool

    def __repr__(self) -> str:
        first, last = float(self.values[0]), float(self.values[-1])
        found = f"{len(self.values)} of size {len(self.vectors)}, values {first:.4g} … {last:.4g}"
        return f"Eigenpairs({found}, residuals ≤ {float(self.residuals.max()):.1e}, converged={self.converged})"

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.values, self.vectors))

    def __getitem__(self, i: int) -> Tensor:
        return (self.values, self.vectors)[i]

    def extend(self, K_new: Tensor | np.ndarray | Any) -> Float[Tensor, "M K"]:
        """The eigenfunctions at new points, φ_j(x) = K(x, X) φ_j / λ_j (Nyström extension).

        At the points of K itself, these are the eigenvectors.

        Args:
            K_new: The kernel between new points and those of K, (M, N) or (M, N, C, C); a tensor or an array.

        Returns:
            (M, k), or (M·C, k).

        Reference:
            Williams and Seeger, Using the Nyström method to speed up kernel machines, 2001.

        >>> pairs = top(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), k=2)
        >>> pairs.extend(torch.tensor([[1.0, 3.0]]))
        tensor([[0.5000, 3.0000]])
        """
        matrix = as_matrix(K_new, self.vectors.device)
        if matrix.shape[1] != len(self.vectors):
            raise ValueError(
                f"K_new is {matrix.shape}, and the eigenvectors have {len(self.vectors)} entries: K_new needs a row "
                "for each new point and a column for each point of K."
            )
        sizes = self.values.abs()
        lost = sizes <= self.residuals + resolution(self.values.dtype) * sizes.max()
        if bool(lost.any()):
            first = int(lost.nonzero()[0])
            raise ValueError(
                f"Eigenvalue {first} of {len(sizes)} is {float(self.values[first]):.1e}, zero to rounding beside the "
                f"largest, {float(sizes.max()):.1e}: its eigenfunction at new points is not determined. Ask top for "
                f"k={first} pairs."
            )
        with torch.no_grad(), float32_products():
            return (matrix @ self.vectors.to(matrix.dtype)).to(self.vectors.dtype) / self.values


def top(
    K: Tensor | np.ndarray | Operator | Any,
    k: int,
    *,
    tol: float = 1e-5,
    seed: int = 0,
    device: torch.device | str | None = None,
    max_restarts: int = 30,
) -> Eigenpairs:
    """The k algebraically largest eigenpairs of a symmetric K (N, N), or of (N, N, C, C) as a matrix (N·C, N·C).

    Up to N = 2048, or for more than a quarter of the spectrum, K is fully decomposed in float64. Otherwise, block
    Lanczos iterations with full reorthogonalization and thick restarts need products with K and memory for about
    5 k vectors. A pair has converged when ‖Kφ − λφ‖ ≤ tol · |λ|, or when the residual is at the level of rounding in
    K's dtype, 30 eps · max |λ|. The result is then challenged with a random block, because from a single start an
    eigenvalue of higher multiplicity than the width of a block is found too few times.

    Args:
        K: A tensor; an array, also on disk (`np.load(…, mmap_mode="r")`), which is read in blocks of rows; an
            operator; or anything with `shape` and `@`. For C outputs, row n·C + c is output c of sample n, as in
            `tt.flatten`.
        k: The number of eigenpairs.
        tol: The residual at which a pair has converged, relative to its own eigenvalue.
        seed: The seed of the random blocks. The same seed gives the same result.
        device: The device to compute on; by default that of K.
        max_restarts: The number of restarts after which the iteration gives up and warns; see `residuals`.

    Returns:
        The eigenpairs with their residuals, in K's dtype (float32 for half precision).

    Reference:
        Wu and Simon, Thick-restart Lanczos method for large symmetric eigenvalue problems, 2000.

    >>> lam, phi = top(torch.diag(torch.tensor([1.0, 3.0, 2.0])), k=2)
    >>> lam, phi[:, 0]
    (tensor([3., 2.]), tensor([0., 1., 0.]))
    """
    source = as_square(K, device)
    size = source.shape[0]
    if not 1 <= k <= size:
        raise ValueError(f"k must be between 1 and N = {size}, got {k}.")
    with torch.no_grad(), float32_products():  # TF32 would show in the residuals
        if size <= DENSE_LIMIT or 4 * k > size:
            return _decomposed(source, k)
        # Narrow blocks reach higher powers of K with equally many columns; wide ones save passes over a K on disk.
        block = min(max(k // 8, 16), 128) if source.resident else min(max(k // 2, 32), 512)
        values, vectors, residuals, missed = leading_pairs(
            source, k, block=block, tol=tol, seed=seed, max_restarts=max_restarts, check=check_symmetric
        )
    if bool(missed.any()):
        warn(
            f"{int(missed.sum())} of the {k} leading eigenpairs did not converge to tol={tol:g} in {max_restarts} "
            f"restarts: the largest residual is {float(residuals.max() / values.abs().max()):.1e} of the largest "
            "eigenvalue. Raise tol or max_restarts, or ask for fewer pairs.",
            ConvergenceWarning,
        )
    return Eigenpairs(values, _signed(vectors), residuals.to(values.dtype), not bool(missed.any()))


@overload
def eigentasks(pairs: Eigenpairs, train: None = None) -> Int[Tensor, "N K"]: ...
@overload
def eigentasks(pairs: Eigenpairs, train: int) -> tuple[Int[Tensor, "N K"], Int[Tensor, "M K"]]: ...
def eigentasks(
    pairs: Eigenpairs, train: int | None = None
) -> Int[Tensor, "N K"] | tuple[Int[Tensor, "N K"], Int[Tensor, "M K"]]:
    """Binary classification tasks made of eigenvectors: label 1 where φ_j > 0, else 0.

    From the kernel of training and test points together, in this order, come labels for both. The leading eigenvector
    of a kernel without negative entries has only one sign, so its task is constant.

    Args:
        pairs: Eigenpairs, as from `top`.
        train: The number of training points, which come first; with several outputs, the number of their rows.

    Returns:
        The labels (N, k) of all points; with `train`, those of the training points and those of the others.

    Reference:
        Ortiz-Jiménez, Moosavi-Dezfooli and Frossard, What can linearized neural networks actually say about
        generalization?, 2021.

    >>> eigentasks(top(torch.tensor([[1.0, 0.5], [0.5, 1.0]]), k=2))[:, 0]
    tensor([1, 1])
    """
    labels = (pairs.vectors > 0).long()
    if train is None:
        return labels
    if not 0 < train < len(labels):
        raise ValueError(f"train must leave training and test points of the {len(labels)} there are, got {train}.")
    return labels[:train], labels[train:]


def _signed(vectors: Float[Tensor, "N K"]) -> Float[Tensor, "N K"]:
    """The vectors, with the sign that makes their largest entry positive."""
    largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
    return torch.where(largest < 0, -vectors, vectors)


def _decomposed(source: Matrix, k: int) -> Eigenpairs:
    """The leading pairs by a full decomposition."""
    K = source.dense().double()
    check_symmetric(K, source.dtype)
    values, vectors = eigh(K)
    values, vectors = values[-k:].flip(0).to(source.dtype), vectors[:, -k:].flip(1).to(source.dtype)
    wide = vectors.double()  # the residuals are those of what is returned
    residuals = torch.linalg.vector_norm(K @ wide - wide * values, dim=0)
    return Eigenpairs(values, _signed(vectors), residuals.to(source.dtype), True)
