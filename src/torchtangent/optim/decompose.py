"""Eigenvectors and inverses of second moments; a decomposition that fails is tried again with more damping."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.notice import warn
from torchtangent.operators.product import product
from torchtangent.operators.symmetric import eigh
from torchtangent.optim.layer import Layer

Found = TypeVar("Found")
_TRIES = 5


def eigenbases(layer: Layer, B: Float[Tensor, "G _ O"], A: Float[Tensor, "G _ I"]) -> dict[str, Tensor]:
    """The eigendecomposition of a layer's B ⊗ A.

    Returns:
        The eigenvectors of B ("left") and A ("right"), their eigenvalues per row ("rows") and column ("columns") of
        the layer's matrices, and the products of these ("values"), in the layer's own layout.
    """
    rows, left = eigenbasis(B, f"cotangents of {layer.key}")
    columns, right = eigenbasis(A, f"inputs of {layer.key}")
    columns = layer.columns(columns)
    values = layer.arrange(rows.unsqueeze(2) * columns.unsqueeze(1))
    return {"left": left, "right": right, "rows": rows, "columns": columns, "values": values}


def eigenbasis(M: Float[Tensor, "G _ n"], what: str) -> tuple[Float[Tensor, "G n"], Float[Tensor, "G n n"]]:
    """Eigenvalues, clamped at zero, and eigenvectors of symmetric matrices.

    A matrix is given by its lower triangle, or as R < n rows r of which it is Σ r rᵀ. The latter takes a QR
    decomposition and an eigendecomposition of size R, about nR² + Rn² multiplications instead of n³.
    """
    R, n = M.shape[1:]
    if n == R:
        return _persist(_decompose, M, what)
    Q, T = torch.linalg.qr(M.mT, mode="complete")
    try:
        values, vectors = _decompose(product(T[:, :R], T[:, :R].mT))
    except torch.linalg.LinAlgError:
        return _persist(_decompose, product(M.mT, M), what)
    Q[:, :, :R] = product(Q[:, :, :R], vectors)
    return torch.cat([values, values.new_zeros(len(M), n - R)], 1), Q


def _decompose(M: Float[Tensor, "G n n"]) -> tuple[Float[Tensor, "G n"], Float[Tensor, "G n n"]]:
    values, vectors = eigh(M)
    return values.clamp(min=0), vectors


def inverse(M: Float[Tensor, "G n n"], shift: Float[Tensor, "G 1"], what: str) -> Float[Tensor, "G n n"]:
    """(M + shift)⁻¹ for positive semi-definite matrices M, which are overwritten."""

    def invert(M: Tensor) -> Tensor:
        L = torch.linalg.cholesky(M)
        return torch.cholesky_inverse(L, out=L)

    M.diagonal(dim1=1, dim2=2).add_(shift)
    return _persist(invert, M, what)


def _persist(compute: Callable[[Tensor], Found], M: Tensor, what: str) -> Found:
    """compute(M); if that fails, try again with 10, 100, … times the rounding error added to the diagonal."""
    scale = M.diagonal(dim1=1, dim2=2).mean(1, keepdim=True).clamp(min=torch.finfo(M.dtype).tiny)
    for i in range(_TRIES):
        try:
            return compute(M)
        except torch.linalg.LinAlgError as error:
            more = M.shape[1] * torch.finfo(M.dtype).eps * 10.0 ** (i + 1)
            warn(
                f"The decomposition of the {what} failed ({str(error).splitlines()[0][:120]}). Trying again with "
                f"{more:.1e} of its mean eigenvalue added to its diagonal.",
            )
            M = M.clone()
            M.diagonal(dim1=1, dim2=2).add_(more * scale)
    return compute(M)
