"""Summaries of the eigenvalues of a kernel, and the kernel of centred features."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.kernel.matrix import Matrix, as_square, wide_rows
from torchtangent.kernel.sketch import Features
from torchtangent.kernel.targets import numbers
from torchtangent.operators import Operator
from torchtangent.spectrum.checks import check_numbers, check_symmetric, resolved
from torchtangent.spectrum.leading import DENSE_LIMIT, top

_TILE = 256  # rows and columns of a kernel that are compared at a time
_NO_ENTROPY = (
    ", or little is left of it but rounding (then a kernel of a float64 model will do), and μ log μ of a negative μ is "
    "not defined."
)


def effective_rank(K: Tensor | np.ndarray | Operator | Any) -> Float[Tensor, ""]:
    """exp(−Σ_j μ_j log μ_j) with μ = λ / Σλ: the number of equal eigenvalues with the same entropy as those of K.

    It is between 1 and the rank of K. Eigenvalues that are zero or negative up to rounding are dropped. All eigenvalues
    are computed, in float64, which is O(N³) for a matrix: a second for N = 2,000, a thousand times as long and 6 GB for
    N = 20,000. Features and low-rank operators are decomposed through their small factor.

    Args:
        K: A kernel (N, N) or (N, N, C, C), as a tensor, an array (also on disk), features or an operator; or the vector
            of all its eigenvalues.

    Reference:
        Roy and Vetterli, The effective rank, 2007.

    >>> effective_rank(torch.eye(3)), effective_rank(torch.ones(3, 3))
    (tensor(3.), tensor(1.))
    """
    values, dtype, stored = _eigenvalues(K)
    values = values[resolved(values, stored, _NO_ENTROPY)]
    if not len(values):
        raise ValueError("All eigenvalues of K are zero: it has no effective rank.")
    mu = values / values.sum()
    return torch.exp(-(mu * mu.log()).sum()).to(dtype)


def trace_ratio(K: Tensor | np.ndarray | Operator | Any, k: int | Sequence[int]) -> Float[Tensor, "*k"]:
    """T_k = Σ_{j≤k} λ_j / Σ_j λ_j: the fraction of the trace in the k largest eigenvalues.

    Of a large K, only these eigenvalues and the diagonal are computed.

    Args:
        K: A kernel (N, N) or (N, N, C, C), as a tensor, an array (also on disk), features or an operator; or the vector
            of all its eigenvalues.
        k: The number of eigenvalues, or several such numbers.

    Returns:
        A scalar, or one number for each k.

    >>> trace_ratio(torch.diag(torch.tensor([1.0, 4.0, 3.0])), [1, 2, 3])
    tensor([0.5000, 0.8750, 1.0000])
    """
    source = _vector(K) if len(K.shape) == 1 else _matrix(K)
    counts = torch.as_tensor(k, device=source.device)
    if counts.is_floating_point() or not counts.numel():
        raise ValueError(f"k must be a whole number, or several, got {k}.")
    if int(counts.min()) < 1 or int(counts.max()) > source.shape[0]:
        raise ValueError(f"k must be between 1 and N = {source.shape[0]}, got {k}.")
    if isinstance(source, Tensor):
        values = source.to(torch.promote_types(source.dtype, torch.float32)).sort(descending=True).values
        total = values.sum()
    else:
        total = source.diagonal().sum()
        if isinstance(K, Tensor | np.ndarray) and source.shape[0] <= DENSE_LIMIT:
            values = _eigenvalues(K)[0].flip(0).to(source.dtype)
        else:
            pairs = top(source, int(counts.max()))
            values = pairs.values
            if total.requires_grad:  # the derivative of an eigenvalue is that of φᵀKφ with a constant φ
                values = (pairs.vectors * source.times(pairs.vectors)).sum(0).to(values.dtype)
    size = float(total.detach())
    if not size > 0:
        raise ValueError(f"The trace of K is {size:.1e}: there is nothing to divide among the eigenvalues.")
    return values.cumsum(0)[counts - 1] / total


def center(K: Float[Tensor, "..."] | np.ndarray) -> Float[Tensor, "..."]:
    """The kernel of Φ(x) − mean_n Φ(x_n): K minus the means of its rows and columns, plus the mean of all entries.

    With C outputs, the features of each are centred over the samples, for every pair of outputs: the result has at
    least C zero eigenvalues. It is differentiable.

    Args:
        K: (N, N) or (N, N, C, C).

    Reference:
        Cortes, Mohri and Rostamizadeh, Algorithms for learning kernels based on centered alignment, 2012.

    >>> center(torch.tensor([[2.0, 0.0], [0.0, 2.0]]))
    tensor([[ 1., -1.],
            [-1.,  1.]])
    """
    if isinstance(K, np.ndarray):
        K = torch.from_numpy(np.array(K))
    if not isinstance(K, Tensor):
        raise TypeError(
            f"center takes a kernel as a tensor or an array, got {type(K).__name__}. The matrix of an operator is "
            "M.dense(), that of features Φ.operator().dense()."
        )
    if K.dim() not in (2, 4) or K.shape[0] != K.shape[1]:
        raise ValueError(f"center takes a kernel (N, N) or (N, N, C, C) of one set of points, got {tuple(K.shape)}.")
    if K.is_complex():
        raise ValueError(f"K has dtype {K.dtype}: a kernel has real numbers. Convert it first.")
    rows = _row_means(K)
    check_numbers(rows)
    symmetric = _is_symmetric(K)
    columns = _flipped(rows if symmetric and not K.requires_grad else _row_means(_flipped(K)))
    if symmetric:  # the same bits as the rows, so that the result is, too; the derivative stays that of the columns
        columns = _flipped(rows).detach() + (columns - columns.detach())
    whole = rows.mean(0, keepdim=True)
    found = torch.empty_like(K, dtype=torch.promote_types(K.dtype, torch.float32))
    for here in _few_rows(K):
        found[here] = K[here] - (rows[here] + columns - whole)  # float64: the result may be far smaller than the means
    return found


def _row_means(K: Float[Tensor, "N M *C"]) -> Float[Tensor, "N 1 *C"]:
    return torch.cat([K[here].mean(1, keepdim=True, dtype=torch.float64) for here in _few_rows(K)])


def _is_symmetric(K: Float[Tensor, "N N *C"]) -> bool:
    """Whether K equals its transpose bit by bit; by tiles, as a transpose is read column by column."""
    starts = range(0, len(K), _TILE)
    tiles = ((slice(i, i + _TILE), slice(j, j + _TILE)) for i in starts for j in starts if j <= i)
    return all(torch.equal(K[i, j], _flipped(K[j, i])) for i, j in tiles)


def _few_rows(K: Tensor) -> Iterator[slice]:
    step = wide_rows(K[0].numel(), K.device)
    for i in range(0, len(K), step):
        yield slice(i, i + step)


def _flipped(K: Tensor) -> Tensor:
    """The transpose of K over samples and over outputs."""
    return K.T if K.dim() == 2 else K.permute(1, 0, 3, 2)


def _eigenvalues(K: Any) -> tuple[Float[Tensor, " R"], torch.dtype, torch.dtype]:
    """All eigenvalues in float64, perhaps without zeros; the dtype for results, and the dtype in which K is stored."""
    if len(K.shape) == 1:
        values = _vector(K)
        return values.double(), values.dtype, values.dtype
    if isinstance(K, Features | Operator):
        M = K.operator() if isinstance(K, Features) else K
        wide = M if M.matrix_free else M.to(torch.float64)
        return wide.eigh().values.double(), M.dtype, M.dtype
    matrix = _matrix(K)
    dense = matrix.dense().double()
    check_symmetric(dense, matrix.dtype)
    return torch.linalg.eigvalsh(dense), matrix.dtype, matrix.stored


def _vector(values: Any) -> Float[Tensor, " R"]:
    """A vector of eigenvalues."""
    found = values if isinstance(values, Tensor) else numbers(values, "K")
    if not found.is_floating_point() or not bool(torch.isfinite(found).all()):
        raise ValueError("A vector of eigenvalues must hold finite floating-point numbers.")
    return found


def _matrix(K: Any) -> Matrix:
    """A kernel as a square matrix, with one row per sample and output."""
    return as_square(K.operator() if isinstance(K, Features) else K)
