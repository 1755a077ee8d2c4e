"""Targets and the kernel: alignment α(g) in three ways, RKHS norm and its bound by Lemma 1, energy concentration."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchtangent.alignment.labels import Targets
from torchtangent.jacobians.call import float32_products
from torchtangent.jacobians.capture import Capture
from torchtangent.jacobians.inputs import Output
from torchtangent.jacobians.select import Params
from torchtangent.kernel.columns import pull_columns, split_columns
from torchtangent.kernel.matrix import Matrix, as_square
from torchtangent.kernel.samples import Samples
from torchtangent.kernel.targets import Form, as_columns, numbers
from torchtangent.notice import Overflow
from torchtangent.operators.scale import column_norms
from torchtangent.operators.symmetric import eigh
from torchtangent.spectrum import Eigenpairs, top
from torchtangent.spectrum.checks import check_numbers, check_some_rows, check_symmetric
from torchtangent.spectrum.inverse import check_invertible, checked_ridge


def target(
    model: nn.Module, x: Any, g: Targets, *, params: Params = None, output: Output = None
) -> Float[Tensor, "*K"]:
    """The alignment α(g) = ‖(1/N) Σ_n g(x_n) ∇f(x_n)‖² of targets, without forming the kernel.

    It takes one backward pass per target or, if there are more targets than outputs, the gradient of each sample once.
    With C outputs, the sum also runs over them. `of_kernel` and `of_spectrum` give the same number, gᵀKg / N².

    Args:
        model: Any module whose samples do not interact (BatchNorm and dropout in eval mode).
        x: Inputs: a tensor (N, ...), a tuple or dict of them, or a data set of single inputs.
        g: (N,) or (N, K) for one output, (N, C) or (N, C, K) for several, (N, T, C) or (N, T, C, K) for T·C.
        params: Which parameters, by name pattern or a predicate (name, parameter); all trainable ones by default.
        output: Which tensor of the model's result to use.

    Returns:
        One number per target: () or (K,).

    Reference:
        Ortiz-Jiménez, Moosavi-Dezfooli and Frossard, What can linearized neural networks actually say about
        generalization?, 2021, Lemma 1.

    >>> target(nn.Linear(2, 1), torch.eye(2), torch.tensor([1.0, -1.0]))      # ‖([1, 0, 1] − [0, 1, 1]) / 2‖²
    tensor(0.5000)
    """
    capture = Capture(model, params, output)
    samples = Samples(x, capture.device)
    with samples.explaining():
        capture.look(samples.few())
    N, shape, g = len(samples), capture.output_shape, numbers(g, "g")
    C, axes = shape.numel(), 1 + len(shape)
    if g.dim() > 2 and g.shape[1:axes] == shape:
        g = g.reshape(len(g), *[C] * (C > 1), *g.shape[axes:])
    like = torch.empty(0, dtype=capture.wide_dtype, device=capture.device)
    G, form = as_columns(g, (N, N, C, C), like, "g")
    squares = pulled_squares(capture, samples, form.by_sample(G)) / N**2
    if not bool(torch.isfinite(squares).all()):
        raise Overflow(f"The alignment leaves the range of {squares.dtype}. Scale the targets or pass model.double().")
    return form.each(squares)


def pulled_squares(capture: Capture, samples: Samples, U: Float[Tensor, "N C K"]) -> Float[Tensor, " K"]:
    """‖Jᵀu‖² = uᵀKu for each column."""
    with float32_products():
        return torch.cat([pull_columns(capture, samples, V).square_().sum(0) for V in split_columns(capture, U)])


def of_kernel(K: Any, g: Targets) -> Float[Tensor, "*K"]:
    """The alignment α(g) = gᵀKg / N², from a kernel.

    Args:
        K: (N, N), or (N, N, C, C) for C outputs, symmetric: a tensor, an array (also on disk), an operator or features.
        g: (N,) or (N, K); for C outputs (N, C) or (N, C, K).

    >>> of_kernel(torch.tensor([[2.0, 1.0], [1.0, 2.0]]), torch.tensor([1.0, -1.0]))
    tensor(0.5000)
    """
    matrix, G, form = _read(K, g)
    return form.each((_quadratic(matrix, G) / form.samples**2).to(matrix.dtype))


def of_spectrum(pairs: Eigenpairs, g: Targets) -> Float[Tensor, "*K"]:
    """The alignment α(g) = Σ_j λ_j (φ_jᵀg)² / N², from eigenpairs of the kernel.

    Exact with all eigenpairs; the leading ones of a positive semidefinite kernel give a lower bound.

    Args:
        pairs: Eigenpairs, as from `spectrum.top`.
        g: (N,) or (N, K); for C outputs, when eigenvectors have N·C entries, (N, C) or (N, C, K).

    >>> K = torch.tensor([[2.0, 1.0], [1.0, 2.0]])
    >>> of_spectrum(top(K, k=2), torch.tensor([1.0, -1.0]))
    tensor(0.5000)
    """
    values, vectors = pairs
    G, form = as_columns(g, (len(vectors), len(vectors)), vectors, "g")
    with float32_products():
        alpha = values @ (vectors.T @ G).square()
    return form.each(alpha / form.samples**2)


def norm(K: Any, g: Targets, *, ridge: float = 0.0) -> Float[Tensor, "*K"]:
    """The squared RKHS norm of targets, ‖g‖²_K = gᵀ(K + ridge·I)⁻¹g = Σ_j (φ_jᵀg)² / (λ_j + ridge).

    Without a ridge it is the smallest ‖θ − θ₀‖² with which the linearized network, starting from the zero function,
    fits g. K is fully decomposed, in float64.

    Args:
        K: (N, N), or (N, N, C, C) for C outputs; symmetric, and not singular unless there is a ridge.
        g: (N,) or (N, K); for C outputs (N, C) or (N, C, K).
        ridge: What is added to the diagonal.

    Reference:
        Ortiz-Jiménez, Moosavi-Dezfooli and Frossard, 2021, equation 3.

    >>> norm(torch.tensor([[2.0, 0.0], [0.0, 4.0]]), torch.tensor([2.0, 2.0]))
    tensor(3.)
    """
    ridge = checked_ridge(ridge)
    matrix, G, form = _read(K, g)
    dense = matrix.dense().double()
    check_symmetric(dense, matrix.dtype)
    values, vectors = eigh(dense)
    check_invertible(float(values[0]) + ridge, float(values[-1]) + ridge, ridge, matrix.stored)
    squares = (vectors.T @ G.double()).square()
    return form.each((1 / (values + ridge) @ squares).to(matrix.dtype))


def bound(K: Any, g: Targets) -> Float[Tensor, "*K"]:
    """The lower bound of Lemma 1 on the squared RKHS norm: ‖g‖²_K ≥ ‖g‖₂⁴ / α(g), with ‖g‖₂² = gᵀg / N.

    It is an equality if g is an eigenvector. No inverse is needed: the bound is infinite if K g = 0, and 0 if g = 0.

    Args:
        K: (N, N), or (N, N, C, C) for C outputs; positive semidefinite.
        g: (N,) or (N, K); for C outputs (N, C) or (N, C, K).

    Reference:
        Ortiz-Jiménez, Moosavi-Dezfooli and Frossard, 2021, Lemma 1.

    >>> bound(torch.tensor([[2.0, 0.0], [0.0, 4.0]]), torch.tensor([2.0, 2.0]))      # norm is 3
    tensor(2.6667)
    """
    matrix, G, form = _read(K, g)
    size = G.double().square().sum(0)
    found = size.square() / _quadratic(matrix, G).clamp(min=0)  # N cancels
    return form.each(torch.where(size > 0, found, size).to(matrix.dtype))


def energy(K: Any, y: Targets, k: int = 50) -> Float[Tensor, "*K"]:
    """Energy concentration: how much of a target lies in the k leading eigenvectors, ‖Φ_kᵀ y‖ / ‖y‖ (not squared).

    About √(k/N) for a random target, and 1 for one in their span. The target is used as it is, with its mean: code two
    classes as −1 and 1, not as 0 and 1.

    Args:
        K: (N, N), or (N, N, C, C) for C outputs; or at least k of its eigenpairs, as from `spectrum.top`.
        y: (N,) or (N, K); for C outputs (N, C) or (N, C, K).
        k: The number of eigenvectors.

    Reference:
        Ortiz-Jiménez, Moosavi-Dezfooli and Frossard, 2021, figure 6.

    >>> energy(torch.diag(torch.tensor([3.0, 2.0, 1.0])), torch.tensor([3.0, 0.0, 4.0]), k=1)
    tensor(0.6000)
    """
    if isinstance(K, Eigenpairs):
        vectors = K.vectors
        shape = (len(vectors), len(vectors))
        if not 1 <= k <= vectors.shape[1]:
            raise ValueError(f"k must be between 1 and the {vectors.shape[1]} eigenpairs that were given, got {k}.")
    else:
        vectors, shape = top(K, k).vectors, K.shape
    y = numbers(y, "y")
    if y.dtype == torch.bool:
        raise ValueError("y is boolean, and the energy of True and False is that of 1 and 0. Pass 2.0 * y - 1 for ±1.")
    Y, form = as_columns(y, shape, torch.empty(0, dtype=torch.float64, device=vectors.device))
    sizes = column_norms(Y)
    if bool((sizes == 0).any()):
        zero = int((sizes == 0).nonzero()[0])
        raise ValueError(f"y is zero{'' if form.targets is None else f' in column {zero}'}.")
    with float32_products():
        part = vectors[:, :k].T @ (Y / sizes).to(vectors.dtype)
    return form.each(torch.linalg.vector_norm(part, dim=0))


def _read(K: Any, g: Targets) -> tuple[Matrix, Float[Tensor, "rows K"], Form]:
    """A kernel as a matrix, and its targets as columns with their form."""
    matrix = as_square(K)
    if isinstance(K, Tensor | np.ndarray):  # rows of an operator would be costly
        check_some_rows(matrix)
    return matrix, *as_columns(g, K.shape, matrix, "g")


def _quadratic(matrix: Matrix, G: Float[Tensor, "rows K"]) -> Float[Tensor, " K"]:
    """gᵀKg for each column, in float64."""
    found = (G * matrix.times(G.double())).sum(0)
    check_numbers(found)
    return found
