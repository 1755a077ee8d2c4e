"""Symmetric matrices: whether one is, Gram matrices at half the work, an eigendecomposition that does not fail."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from torchtangent.operators.product import add_product, add_products, by_onednn

_BLOCK = {"cpu": 128, "cuda": 1024}  # rows at a time, at least
_STRIPS = 8
_JACOBI = 512  # rows of the largest float32 matrix that a GPU decomposes by Jacobi's method
_APART = 100  # units of rounding between eigenvalues with which torch's derivatives of eigenvectors are of use
_TURNED = 2048  # rows that are transposed at a time, as oneDNN needs them


def add_gram(total: Float[Tensor, "*G I I"], rows: Float[Tensor, "*G R I"]) -> None:
    """Add rowsᵀ rows to the lower triangle of `total`; above the diagonal, the result is undefined."""
    if rows.dim() == 3:
        add_products(total, rows.mT, rows)
    elif by_onednn(rows[:_TURNED].T, rows[:_TURNED]) and not rows.T.is_contiguous():
        for part in rows.split(_TURNED):
            _add_strips(total, part.T.contiguous())
    else:
        _add_strips(total, rows.T)


def _add_strips(total: Float[Tensor, "I I"], columns: Float[Tensor, "I R"]) -> None:
    """total += columns columnsᵀ by strips of rows, each up to the column where its diagonal block ends."""
    n = len(columns)
    step = max(_BLOCK.get(columns.device.type, 128), math.ceil(n / _STRIPS))
    for i in range(0, n, step):
        end = min(i + step, n)
        add_product(total[i:end, :end], columns[i:end], columns[:end].T)


def reflect(lower: Float[Tensor, "I I"]) -> Float[Tensor, "I I"]:
    """Copy the lower triangle into the upper one, in place, and return the matrix."""
    n = len(lower)
    step = max(_BLOCK.get(lower.device.type, 128), n // 64)
    for i in range(0, n, step):
        end = min(i + step, n)
        corner = lower[i:end, i:end]
        corner.copy_(corner.tril() + corner.tril(-1).T)
        lower[:i, i:end] = lower[i:end, :i].T
    return lower


def asymmetry(M: Float[Tensor, "n n"], dtype: torch.dtype) -> float:
    """‖M − Mᵀ‖ / ‖M‖, or 0 if rounding in this dtype explains it; NaN if M has NaN or infinity.

    >>> asymmetry(torch.tensor([[1.0, 2.0], [2.0, 1.0]]), torch.float32)
    0.0
    """
    M = M.detach()
    # In float64, where squares of float32 numbers neither overflow nor underflow.
    gap, size = (float(torch.linalg.vector_norm(t, dtype=torch.float64)) for t in (M - M.T, M))
    return 0.0 if gap == 0 or gap < 10 * torch.finfo(dtype).eps ** 0.5 * size else gap / size


def eigh(M: Float[Tensor, "*G n n"]) -> tuple[Float[Tensor, "*G n"], Float[Tensor, "*G n n"]]:
    """Eigenvalues, in ascending order, and eigenvectors.

    In float32, LAPACK fails for some matrices of low rank, or silently returns NaN: they are decomposed in float64. So
    are, from the start, float32 matrices of up to 512 rows on a GPU, to which torch applies Jacobi's method: that takes
    two to three times as long and may lose three digits of the eigenvectors.
    """
    half = M.dtype in (torch.float16, torch.bfloat16)  # torch decomposes none of these
    small = M.is_cuda and M.dtype == torch.float32 and M.shape[-1] <= _JACOBI
    first = torch.float64 if half or small else M.dtype
    for dtype in dict.fromkeys((first, torch.float64)):
        try:
            A = M.to(dtype)
            values, vectors = torch.linalg.eigh(A)
        except torch.linalg.LinAlgError as error:
            why = str(error).splitlines()[0]
            continue
        if bool(torch.isfinite(vectors).all()):
            if vectors.requires_grad and int(_equal(values.detach()).sum()) > values.numel():
                vectors = _Vectors.apply(A, values.detach(), vectors.detach())
            return values.to(M.dtype), vectors.to(M.dtype)
        why = "the result has NaN"
    if not bool(torch.isfinite(M).all()):
        why = "it has NaN or infinity"
    shape = " × ".join(map(str, M.shape))
    raise torch.linalg.LinAlgError(f"A symmetric matrix ({shape}) could not be decomposed: {why}.")


def _equal(values: Float[Tensor, "*G n"]) -> Bool[Tensor, "*G n n"]:
    """Which pairs of eigenvalues of a matrix are equal, but for rounding."""
    largest = values.abs().amax(-1)[..., None, None] if values.numel() else 0.0
    gaps = (values.unsqueeze(-2) - values.unsqueeze(-1)).abs()
    return gaps <= _APART * torch.finfo(values.dtype).eps * largest


class _Vectors(torch.autograd.Function):
    """The eigenvectors of a matrix with equal eigenvalues: those of the other eigenvalues have derivatives."""

    @staticmethod
    def forward(M: Tensor, values: Tensor, vectors: Tensor) -> Tensor:
        return vectors.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        values, vectors = ctx.saved_tensors
        equal = _equal(values)
        repeated = equal.sum(-1, keepdim=True).mT > 1
        if bool((repeated & (grad != 0)).any()):
            raise RuntimeError(
                "Some eigenvalues of a matrix are equal, and their eigenvectors have no derivatives. What is computed "
                "without them can be differentiated: products, DenseOperator's solve and logdet, predict.ridge."
            )
        gaps = torch.where(equal, torch.inf, values.unsqueeze(-2) - values.unsqueeze(-1))
        return vectors @ (vectors.mT @ grad / gaps) @ vectors.mT, None, None
