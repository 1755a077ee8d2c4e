"""Similarity of two kernels, and of a kernel and the labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from torchtangent.alignment.labels import Targets, one_hot
from torchtangent.kernel.matrix import Matrix, as_matrix, as_square, wide_rows
from torchtangent.kernel.targets import numbers
from torchtangent.notice import check_choice, warn
from torchtangent.operators.scale import scale_of
from torchtangent.operators.symmetric import asymmetry
from torchtangent.spectrum.checks import check_numbers, check_symmetric

_BLOCK_BYTES = 64 << 20  # of rows that are read at a time
NOISE = 1  # roundings of K: a centred K that is smaller is only rounding (which was measured to be a third of that)
_CENTERINGS = ("class", "plain")


def kernels(K1: Any, K2: Any) -> Any:
    """Kernel alignment ⟨K1, K2⟩ / (‖K1‖ ‖K2‖), uncentred: between 0 and 1 for positive semidefinite kernels.

    Centred kernel alignment (CKA) of two kernels is `kernels(spectrum.center(K1), spectrum.center(K2))`.

    Args:
        K1: (N, M) or (N, M, C, C): a tensor, an array (also on disk, read in blocks of rows), an operator or
            features; or a dict of them, as from `tt.ntk(..., per_layer=True)`.
        K2: Another of the same size, or a dict with the same names.

    Returns:
        A scalar, 0 if a kernel is zero; or a dict of them.

    Reference:
        Cristianini et al., On kernel-target alignment, 2001.

    >>> kernels(torch.eye(2), torch.ones(2, 2))
    tensor(0.7071)
    """
    if isinstance(K1, Mapping) or isinstance(K2, Mapping):
        if not (isinstance(K1, Mapping) and isinstance(K2, Mapping) and K1.keys() == K2.keys()):
            raise ValueError("K1 and K2 should both be kernels, or both dicts of kernels with the same names.")
        return {name: kernels(K, K2[name]) for name, K in K1.items()}
    A = as_matrix(K1)
    B = as_matrix(K2, A.device)
    if A.shape != B.shape:
        raise ValueError(f"K1 {tuple(K1.shape)} and K2 {tuple(K2.shape)} are kernels of different sizes.")
    sums = torch.zeros(3, dtype=torch.float64, device=A.device)
    scales: list[Tensor] = []
    for (_, a), (_, b) in zip(_blocks(A), _blocks(B), strict=True):
        scales = scales or [scale_of(a), scale_of(b)]
        a, b = (a / scales[0]).flatten(), (b / scales[1]).flatten()
        sums += torch.stack([a.dot(b), a.dot(a), b.dot(b)])
    return _ratio(sums[0], sums[1].sqrt() * sums[2].sqrt()).to(torch.promote_types(A.dtype, B.dtype))


def cka(K: Any, y: Targets, *, centering: str = "class") -> Any:
    """Centred alignment (CKA) of a kernel with the labels: ⟨HKH, YYᵀ⟩ / (‖HKH‖ ‖YYᵀ‖), where Y is centred by H as well.

    With C outputs, the one-hot Y is a single vector of N·C entries, and this is YᵀKY / (‖HKH‖ ‖Y‖²). For a positive
    semidefinite kernel it is between 0 and 1. The scales of K and y do not matter, nor does the coding of two classes.

    Args:
        K: (N, N) or (N, N, C, C), symmetric: a tensor, an array (also on disk, read in blocks of rows), an operator or
            features; or a dict of them, as from `tt.ntk(..., per_layer=True)`.
        y: Integers (N,) are classes, which for a kernel (N, N, C, C) are 0 … C − 1. Floating-point numbers (N,) are a
            real target of one output. Numbers (N, C) have a column per output or, for a kernel (N, N), per class.
        centering: What is subtracted from the tangent features and from Y: "class", the mean over samples for each
            output separately; "plain", the mean over samples and outputs. For a kernel (N, N) both are the same.

    Returns:
        A scalar, 0 if centering leaves nothing of the kernel (as for the bias of the last layer); or a dict of them.

    Reference:
        Cortes, Mohri and Rostamizadeh, Algorithms for learning kernels based on centered alignment, 2012; per class:
        Baratin et al., Implicit regularization via neural feature alignment, 2021.

    >>> y = torch.tensor([0, 0, 1, 1])
    >>> K = torch.ones(4, 4) + (y[:, None] == y)
    >>> cka(K, y), cka(K, torch.tensor([1, -1, 1, -1]))
    (tensor(1.), tensor(0.))
    """
    check_choice("centering", centering, _CENTERINGS)
    if isinstance(K, Mapping):
        return {name: cka(k, y, centering=centering) for name, k in K.items()}
    matrix = as_square(K)
    outputs = K.shape[2] if len(K.shape) == 4 else 1
    samples = matrix.shape[0] // outputs
    if outputs == 1 and _is_kernel(y, samples):
        raise ValueError(
            f"y, {tuple(y.shape)}, is symmetric: a kernel? cka compares a kernel with labels. Of two kernels it is "
            "tt.alignment.kernels(tt.spectrum.center(K1), tt.spectrum.center(K2))."
        )
    Y = _label_matrix(y, samples, outputs).to(matrix.device)
    Y = Y / scale_of(Y)
    each = Y.new_ones(1, 1) if centering == "plain" else torch.eye(outputs, dtype=Y.dtype, device=Y.device)
    B = F.normalize(each.repeat(matrix.shape[0] // len(each), 1), dim=0)  # H = I − BBᵀ
    Yc = Y - B @ (B.T @ Y)
    if bool(torch.linalg.vector_norm(Yc) <= 30 * torch.finfo(Y.dtype).eps * torch.linalg.vector_norm(Y)):
        raise ValueError("y is the same for all samples: there is nothing to align with.")
    products = matrix.times(torch.cat([B, Yc], 1))
    scale = scale_of(products)
    KB, KY = (products / scale).split([B.shape[1], Y.shape[1]], 1)
    size = _centred_norm(matrix, scale, B, KB)
    return _ratio((Yc * KY).sum(), size * torch.linalg.matrix_norm(Yc.T @ Yc)).to(matrix.dtype)


def _is_kernel(y: Any, samples: int) -> bool:
    """Whether y, which should be labels, is a symmetric matrix, and not by chance, as few different numbers may be."""
    if not isinstance(y, Tensor) or tuple(y.shape) != (samples, samples) or not y.is_floating_point():
        return False
    return samples > 1 and len(y[:8].unique()) > 2 and asymmetry(y, y.dtype) == 0


def _centred_norm(
    K: Matrix, scale: Float[Tensor, ""], B: Float[Tensor, "rows R"], KB: Float[Tensor, "rows R"]
) -> Float[Tensor, ""]:
    """‖HKH‖ / scale for H = I − BBᵀ, a few rows at a time; 0 if it is only rounding. K must be symmetric.

    KB is K B / scale.
    """
    right = KB.T - (B.T @ KB) @ B.T
    sums = torch.zeros(2, dtype=torch.float64, device=K.device)
    for index, rows in _blocks(K):
        rows = rows / scale
        check_symmetric(rows[:, index], K.dtype)
        centred = (rows - KB[index] @ B.T).addmm_(B[index], right, alpha=-1)
        sums += torch.stack([torch.linalg.vector_norm(t).square() for t in (centred, rows)])
    size, whole = sums.sqrt()
    if bool(size > NOISE * torch.finfo(K.dtype).eps * whole):
        return size
    if bool(size > 100 * torch.finfo(torch.float64).eps * whole):
        warn(
            f"Centering leaves {float(size / whole):.1e} of K, less than the rounding of {K.dtype}: its alignment is "
            "taken for 0. A kernel of a float64 model tells more."
        )
    return size * 0


def _blocks(K: Matrix) -> Iterator[tuple[Int[Tensor, " R"], Float[Tensor, "R N"]]]:
    """The rows in float64, a few at a time, with their indices."""
    most, few = max(1, _BLOCK_BYTES // (8 * K.shape[1])), wide_rows(K.shape[1], K.device)
    for index in torch.arange(K.shape[0], device=K.device).split(most):
        for part, rows in zip(index.split(few), K.rows(index).split(few), strict=True):
            yield part, rows.double()


def _ratio(inner: Float[Tensor, ""], sizes: Float[Tensor, ""]) -> Float[Tensor, ""]:
    """inner / sizes, a cosine; 0 if sizes is zero. NaN is refused."""
    check_numbers(inner + sizes)
    return torch.where(sizes > 0, inner / sizes, 0.0)


def _label_matrix(y: Targets, samples: int, outputs: int) -> Float[Tensor, "rows K"]:
    """Y of the kernel YYᵀ: one column of N·C entries, or, for one output, a column per class."""
    y = numbers(y, "y")
    if y.dim() not in (1, 2) or len(y) != samples or (y.dim() == 2 and outputs not in (1, y.shape[1])):
        one = f"classes or numbers ({samples},), or a column for each class"
        several = f"classes ({samples},) or numbers ({samples}, {outputs})"
        raise ValueError(
            f"y has shape {tuple(y.shape)}; for a kernel of {samples} samples and {outputs} "
            f"output{'s' * (outputs > 1)} it should be {one if outputs == 1 else several}."
        )
    if not bool(torch.isfinite(y).all()):
        raise ValueError("y has NaN or infinity.")
    if outputs > 1:
        return (one_hot(y, outputs, "y") if y.dim() == 1 else y).double().reshape(-1, 1)
    if y.dim() == 2 and y.shape[1] == 1 and not y.is_floating_point():  # classes, in a column
        y = y[:, 0]
    if y.dim() == 1:
        y = y[:, None] if y.is_floating_point() else F.one_hot(y.unique(return_inverse=True)[1])
    return y.double()
