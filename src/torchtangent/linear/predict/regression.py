"""Kernel regression and classification, with or without a ridge, and leave-one-out predictions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from torchtangent.kernel.targets import numbers
from torchtangent.linear.labels import check_varies, read_classes
from torchtangent.linear.predict.problem import Modes, Problem, problem
from torchtangent.operators import Operator
from torchtangent.operators.scale import largest_eigenvalue
from torchtangent.spectrum.inverse import check_invertible, checked_ridge, rounded_up, singular
from torchtangent.spectrum.leading import DENSE_LIMIT

__all__ = ["classify", "coefficients", "leave_one_out", "ridge"]

_INSTEAD = ", or fit only what K can by flow(K, y, math.inf)"
_RESIDUAL = 1e-5  # the largest relative residual of a solution: beyond it, there is none
_ITERATED = 1e-2  # the same for conjugate gradients, which warn earlier


def ridge(
    K: Any, y: Any, K_test: Any = None, *, ridge: float = 0.0, f0: Any = None, f0_test: Any = None
) -> Float[Tensor, "..."]:
    """Kernel ridge regression: f₀(x) + K(x, X) (K + ridge·I)⁻¹ (y − f₀).

    It minimizes Σ(f − y)² + ridge·‖θ − θ₀‖² over the weights of the linearized network; without a ridge it is the
    interpolator with the smallest ‖θ − θ₀‖. Matrices are solved by Cholesky decomposition in float64, low-rank
    operators and features through their factor, other operators by conjugate gradients.

    These are the means of a Gaussian process with noise of variance `ridge`. Its covariance at test points is
    K_new − ridge(K, K_test.T, K_test, ridge=…), with the kernel K_new between them and columns of K_testᵀ as targets.
    (Kernels (N, N, C, C) first become matrices by `tt.flatten`.) It is δ J (JᵀJ/σ² + δ)⁻¹ Jᵀ for `ridge` = σ² δ.

    Args:
        K: The kernel of the training points.
        y: Their targets.
        K_test: The kernel between test and training points, (M, N) or (M, N, C, C); of features Φ it is
            Φ(x_new) @ Φ.matrix.T. Without it, predictions are at the training points.
        ridge: Not divided or multiplied by N.
        f0: The network's outputs at the training points, (N,) or (N, C); zero by default.
        f0_test: Those at the test points.

    Returns:
        Predictions in the form of y.

    Raises:
        ValueError: If K + ridge·I is singular up to rounding; the message has the condition number.

    Reference:
        Saunders, Gammerman and Vovk, Ridge regression learning algorithm in dual variables, 1998.

    >>> K = torch.tensor([[1.0, 0.0], [0.0, 3.0]])
    >>> ridge(K, torch.tensor([2.0, 4.0]), ridge=1.0)
    tensor([1., 3.])
    """
    return _predicted(K, y, K_test, ridge, f0, f0_test)


def coefficients(K: Any, y: Any, *, ridge: float = 0.0, f0: Any = None) -> Float[Tensor, "..."]:
    """c = (K + ridge·I)⁻¹ (y − f₀) in the form of y: `ridge` predicts f₀(x) + K(x, X) c, the weights are θ₀ + Jᵀc.

    Args:
        K: The kernel of the training points.
        y: Their targets.
        ridge: Not divided or multiplied by N.
        f0: The network's outputs at the training points; zero by default.

    >>> coefficients(torch.tensor([[1.0, 0.0], [0.0, 3.0]]), torch.tensor([2.0, 4.0]), ridge=1.0)
    tensor([1., 1.])
    """
    task = problem(K, y, f0)
    return task.shaped(_solved(task, checked_ridge(ridge)))


def classify(K: Any, y: Any, K_test: Any = None, *, ridge: float = 0.0) -> Int[Tensor, "M *k"]:
    """The class with the largest score, where scores are the kernel regression on one-hot labels.

    A kernel (N, N) is used for every class, one against the rest (any other coding than 0 and 1 gives the same
    classes). A class without samples is never predicted. For the scores themselves, call `ridge` with one-hot labels.

    Args:
        K: The kernel of the training points, (N, N), or (N, N, C, C) with one output per class.
        y: Classes 0, 1, …, (N,), or (N, K) for K sets of labels at once. Classes (N, T) of T positions would be read
            as T such sets: for a network with outputs (N, T, C), take one position at a time.
        K_test: The kernel between test and training points. Without it, predictions are at the training points.
        ridge: Not divided or multiplied by N.

    Returns:
        Classes (M,) or (M, K).

    >>> classify(torch.eye(3), torch.tensor([0, 2, 1]), torch.tensor([[0.0, 0.1, 0.9]]))
    tensor([1])
    """
    labels, form = read_classes(numbers(y, "y"), K.shape, "y", "classify")
    labels, outputs = labels[:, None], form.outputs
    check_varies(labels[:, 0], form)
    classes = torch.arange(outputs, device=labels.device).to(labels) if outputs > 1 else labels.unique()
    Y = labels == classes[:, None]  # (N, C, K)
    scores = _predicted(K, Y if outputs > 1 else Y.flatten(1), K_test, ridge).reshape(-1, *Y.shape[1:])
    seen = Y.any(0).to(scores.device)
    return form.each(classes.to(scores.device)[scores.where(seen, -torch.inf).argmax(1)])


def leave_one_out(K: Any, y: Any, *, ridge: float = 0.0, f0: Any = None) -> Float[Tensor, "..."]:
    """For each training point, the prediction of kernel regression on all other points.

    In closed form y_n − ([A⁻¹]_nn)⁻¹ c_n, with A = K + ridge·I and c = A⁻¹(y − f₀). With C outputs, those of a sample
    are left out together, and [A⁻¹]_nn is a C × C block.

    Args:
        K: The kernel of the training points.
        y: Their targets.
        ridge: Not divided or multiplied by N.
        f0: The network's outputs at the training points; zero by default.

    Returns:
        Predictions in the form of y; their differences from y are the leave-one-out errors.

    Reference:
        Allen, The relationship between variable selection and data augmentation and a method for prediction, 1974.

    >>> leave_one_out(torch.tensor([[2.0, 1.0], [1.0, 2.0]]), torch.tensor([4.0, 8.0]))
    tensor([4., 2.])
    """
    task = problem(K, y, f0)
    c, blocks = _with_inverse(task, checked_ridge(ridge))
    errors = torch.linalg.solve(blocks, task.form.by_sample(c))
    return task.shaped(task.y - errors.flatten(0, 1))


def _predicted(K: Any, y: Any, K_test: Any, ridge: float, f0: Any = None, f0_test: Any = None) -> Float[Tensor, "..."]:
    """f₀ + K_test c."""
    task = problem(K, y, f0)
    start = task.start(K_test, f0_test)
    c = _solved(task, checked_ridge(ridge))
    return task.shaped(start + task.times(task.K if K_test is None else K_test, c))


class _Range(NamedTuple):
    """The extreme eigenvalues of A = K + ridge·I, estimated."""

    smallest: float
    largest: float


def _solved(task: Problem, ridge: float) -> Float[Tensor, "rows K"]:
    """A⁻¹(y − f₀) with A = K + ridge·I."""
    if not isinstance(task.K, Operator):
        return _by_cholesky(task, ridge)[0]
    if task.K.matrix_free:
        return _by_products(task, ridge)
    _, span = _modes(task, ridge)
    try:
        c = task.K.solve(task.residual, damping=ridge)
    except torch.linalg.LinAlgError as error:
        raise singular(*span, ridge, task.matrix.stored, instead=_INSTEAD) from error
    return _checked(task, ridge, c, _times(task, ridge, c), span)


def _with_inverse(task: Problem, ridge: float) -> tuple[Float[Tensor, "rows K"], Float[Tensor, "N C C"]]:
    """A⁻¹(y − f₀), and the blocks on the diagonal of A⁻¹."""
    C = task.form.outputs
    if not isinstance(task.K, Operator):
        c, L = _by_cholesky(task, ridge)
        blocks = torch.cholesky_inverse(L).view(-1, C, task.form.samples, C).diagonal(dim1=0, dim2=2)
        return c, blocks.permute(2, 0, 1)
    # A⁻¹ = U (1/(λ + ridge) − ρ) Uᵀ + ρ I, where ρ = 1/ridge belongs to what is orthogonal to all modes U.
    (values, U), _ = _modes(task, ridge)
    rest = 0.0 if len(values) == task.rows else 1 / ridge
    weights = 1 / (values + ridge) - rest
    V = U.view(task.form.samples, C, len(values))
    c = U @ (weights[:, None] * (U.T @ task.residual)) + rest * task.residual
    return c, (V * weights) @ V.mT + rest * torch.eye(C, device=V.device).to(V)


def _by_cholesky(task: Problem, ridge: float) -> tuple[Float[Tensor, "rows K"], Float[Tensor, "rows rows"]]:
    """The solution, and the factor A = LLᵀ; an error if A is not positive definite to rounding."""
    A = task.dense()
    A.diagonal().add_(ridge)
    L, info = torch.linalg.cholesky_ex(A)
    if info != 0:
        # Of large matrices all eigenvalues would take many times as long as what has failed.
        small = len(A) <= DENSE_LIMIT
        span = _Range(*torch.linalg.eigvalsh(A)[[0, -1]].tolist()) if small else _range(A.matmul, A)
        raise singular(*span, ridge, task.matrix.stored, instead=_INSTEAD)
    span = _Range(
        1 / largest_eigenvalue(lambda V: _substitute(L, V), L), largest_eigenvalue(lambda V: L @ (L.T @ V), L)
    )
    check_invertible(*span, ridge, task.matrix.stored, instead=_INSTEAD)
    c = _substitute(L, task.residual)
    return _checked(task, ridge, c, A @ c, span), L


def _by_products(task: Problem, ridge: float) -> Float[Tensor, "rows K"]:
    """The solution by conjugate gradients; an error if their residual shows that there is none."""
    K = task.K
    assert isinstance(K, Operator)
    c = K.solve(task.residual.to(K.dtype), damping=ridge).double()
    left = _left(task, _times(task, ridge, c))
    if not left <= _ITERATED:
        smallest, largest = _range(lambda V: K @ V + ridge * V, c.to(K.dtype))
        if largest == 0 or smallest < -_ITERATED * largest:
            raise singular(smallest, largest, ridge, task.matrix.stored)
        raise ValueError(
            f"K + ridge·I is singular to rounding, or nearly: conjugate gradients left {left:.1e} of y − f₀ over. Pass "
            f"a ridge of at least {rounded_up(ridge + 1e-4 * largest)}{_INSTEAD}."
        )
    return c


def _modes(task: Problem, ridge: float) -> tuple[Modes, _Range]:
    """The modes of K, and the extreme eigenvalues of A; an error if A is singular up to rounding."""
    modes = task.modes()
    smallest = min(modes.values.tolist()) if len(modes.values) == task.rows else 0.0
    span = _Range(smallest + ridge, max(modes.values.tolist(), default=0.0) + ridge)
    check_invertible(*span, ridge, task.matrix.stored, instead=_INSTEAD)
    return modes, span


def _checked(
    task: Problem, ridge: float, c: Float[Tensor, "rows K"], Ac: Float[Tensor, "rows K"], span: _Range
) -> Float[Tensor, "rows K"]:
    """c, if it is a solution; else an error."""
    if not _left(task, Ac) <= _RESIDUAL:
        raise singular(*span, ridge, task.matrix.stored, instead=_INSTEAD)
    return c


def _times(task: Problem, ridge: float, c: Float[Tensor, "rows K"]) -> Float[Tensor, "rows K"]:
    """A c with A = K + ridge·I."""
    return task.times(task.K, c) + ridge * c


def _left(task: Problem, Ac: Float[Tensor, "rows K"]) -> float:
    """The largest ‖Ac − b‖ / ‖b‖ of all targets, with b = y − f₀."""
    b = task.residual.detach()
    gap = torch.linalg.vector_norm(Ac.detach() - b, dim=0)
    return float((gap / torch.linalg.vector_norm(b, dim=0).clamp(min=torch.finfo(b.dtype).tiny)).max())


def _substitute(L: Float[Tensor, "rows rows"], V: Float[Tensor, "rows K"]) -> Float[Tensor, "rows K"]:
    """(LLᵀ)⁻¹ V, without the copy of L that `torch.cholesky_solve` makes."""
    return torch.linalg.solve_triangular(L.mT, torch.linalg.solve_triangular(L, V, upper=False), upper=True)


def _range(times: Callable[[Tensor], Tensor], like: Float[Tensor, "rows _"]) -> _Range:
    """The extreme eigenvalues of a singular A from its products; the smallest is 0 unless it is well below zero."""
    size = largest_eigenvalue(times, like)
    return _Range(min(0.0, size - largest_eigenvalue(lambda V: size * V - times(V), like, steps=100)), size)
