"""Gradient descent and gradient flow on the squared loss of a linearized network, at any time, in closed form.

With K = UΛUᵀ, the residual y − f decays independently along each eigenvector, and not at all if its eigenvalue is zero.
The loss is the mean over n = N·C terms, so its gradient in function space is 2(f − y)/n.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.linear.predict.problem import Problem, problem
from torchtangent.notice import warn

__all__ = ["descent", "flow", "time_to"]

_BISECTIONS = 100  # of a time known up to the condition number of K: enough for the last bit


def descent(
    K: Any, y: Any, steps: Any, lr: float, K_test: Any = None, *, f0: Any = None, f0_test: Any = None
) -> Float[Tensor, "..."]:
    """Predictions after full-batch gradient descent on the mean squared error of the linearized network.

    Along an eigenvector of K with eigenvalue λ, the fraction 1 − (1 − 2·lr·λ/n)^steps of y − f₀ is fitted, n = N·C.

    Args:
        K: The kernel of the training points.
        y: Their targets.
        steps: The number of steps, or a list or vector of such numbers.
        lr: The learning rate.
        K_test: The kernel between test and training points, (M, N) or (M, N, C, C). Without it, predictions are at the
            training points.
        f0: The network's outputs at the training points, (N,) or (N, C); zero by default.
        f0_test: Those at the test points.

    Returns:
        Predictions in the form of y; if there are several numbers of steps, with a first axis for them.

    Raises:
        ValueError: If lr is not below n/λ₁, where gradient descent stops being stable.

    Reference:
        Jacot, Gabriel and Hongler, Neural tangent kernel, 2018; Lee et al., Wide neural networks of any depth evolve as
        linear models under gradient descent, 2019.

    >>> descent(torch.tensor([[1.0, 0.0], [0.0, 0.5]]), torch.ones(2), [0, 1, 2], lr=0.5)
    tensor([[0.0000, 0.0000],
            [0.5000, 0.2500],
            [0.7500, 0.4375]])
    """
    counts = torch.as_tensor(steps, device="cpu")
    if counts.is_floating_point() or counts.dim() > 1 or not counts.numel() or int(counts.min()) < 0:
        raise ValueError(f"steps must be whole numbers of at least 0, one or several; got {steps}.")

    def fitted(values: Tensor, n: int, t: Tensor) -> Tensor:
        rates = 2 * lr / n * values
        if not 0 < lr < math.inf or bool((rates >= 2).any()):
            limit = n / float(values.detach().max()) if len(values) else math.inf
            raise ValueError(f"lr={lr:g} does not converge: lr must be positive and less than N·C/λ₁ = {limit:.4g}.")
        # The power keeps the sign of modes that overshoot, expm1 the digits of those that have hardly moved.
        small = rates < 0.5
        slow = torch.log1p(-rates.where(small, torch.zeros_like(rates)))
        return torch.where(small, -torch.expm1(t * slow), 1 - (1 - rates) ** t)

    return _predicted(fitted, counts, problem(K, y, f0), K_test, f0_test)


def flow(K: Any, y: Any, t: Any, K_test: Any = None, *, f0: Any = None, f0_test: Any = None) -> Float[Tensor, "..."]:
    """Predictions at time t of gradient flow dθ/dt = −∇L on the mean squared error of the linearized network.

        f_t(x) = f₀(x) + K(x, X) K⁺ (I − exp(−2Kt/n)) (y − f₀),    n = N·C

    Time is learning rate times steps. At t = ∞ this is kernel regression without a ridge; along the null space of a
    singular K, f stays f₀.

    Args:
        K: The kernel of the training points.
        y: Their targets.
        t: The time, or a list or vector of times.
        K_test: The kernel between test and training points, (M, N) or (M, N, C, C). Without it, predictions are at the
            training points.
        f0: The network's outputs at the training points, (N,) or (N, C); zero by default.
        f0_test: Those at the test points.

    Returns:
        Predictions in the form of y; if there are several times, with a first axis for them.

    Reference:
        Jacot, Gabriel and Hongler, Neural tangent kernel, 2018.

    >>> flow(torch.tensor([[1.0, 0.0], [0.0, 0.0]]), torch.ones(2), [0.0, math.log(2), math.inf])
    tensor([[0.0000, 0.0000],
            [0.5000, 0.0000],
            [1.0000, 0.0000]])
    """
    times = torch.as_tensor(t, dtype=torch.float64, device="cpu")
    if times.dim() > 1 or not times.numel() or not bool((times >= 0).all()):
        said = f"a tensor {tuple(times.shape)}; the kernel of other samples comes after t" if times.dim() > 1 else t
        raise ValueError(f"t must be a time of at least 0, or a list of such times; got {said}.")

    def fitted(values: Tensor, n: int, t: Tensor) -> Tensor:
        return -torch.expm1(-2 / n * t * values)

    return _predicted(fitted, times, problem(K, y, f0), K_test, f0_test)


def time_to(K: Any, y: Any, loss: float, *, f0: Any = None) -> Float[Tensor, "*k"]:
    """The time at which gradient flow has reduced the training loss to a given value.

    The loss is (1/n) Σ_j e^(−4λ_j t/n) (u_jᵀ(y − f₀))² with n = N·C. Terms with eigenvalue zero remain.

    Args:
        K: The kernel of the training points.
        y: Their targets.
        loss: The mean squared error to reach.
        f0: The network's outputs at the training points; zero by default.

    Returns:
        A time for each target: 0 if the loss is small enough at the start, infinity if it never will be.

    >>> time_to(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.ones(2), loss=math.exp(-2))
    tensor(1.)
    """
    if not 0 <= loss < math.inf:
        raise ValueError(f"loss must be a number of at least 0, got {loss}.")
    task = problem(K, y, f0)
    values, U = task.modes()
    parts = U.T @ task.residual
    remains = (task.residual - U @ parts).square().mean(0)
    energy = parts.square() / task.rows
    goal = loss - remains
    times = torch.full_like(goal, math.inf)
    times[energy.sum(0) <= goal] = 0
    between = (goal > 0) & (energy.sum(0) > goal)
    if bool(between.any()):
        times[between] = _bisected(4 / task.rows * values, energy[:, between], goal[between])
    resolved = task.matrix.stored == torch.float64 or len(values) in (0, task.rows)
    if bool(times.isinf().any()) and loss > 0 and not resolved and isinstance(task.K, Tensor | np.ndarray):
        warn(
            f"{task.rows - len(values)} of K's {task.rows} eigenvalues are below the rounding of {task.matrix.stored} "
            "and count as zero, so that the loss is never reached. A kernel of a float64 model tells more."
        )
    return task.form.each(times.to(task.matrix.dtype))


def _bisected(
    rates: Float[Tensor, " R"], energy: Float[Tensor, "R K"], goal: Float[Tensor, " K"]
) -> Float[Tensor, " K"]:
    """The time at which Σ_j e^(−rate_j t) energy_j falls to the goal, by bisection of log t."""
    with torch.no_grad():
        alone = torch.log(energy.sum(0) / goal)  # rate times time, if a single mode had all the energy
        low, high = torch.log(alone / rates.max()), torch.log(alone / rates.min())
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            above = (torch.exp(-rates[:, None] * middle.exp()) * energy).sum(0) > goal
            low, high = torch.where(above, middle, low), torch.where(above, high, middle)
        time = high.exp()
    if not (rates.requires_grad or energy.requires_grad or goal.requires_grad):
        return time
    left = torch.exp(-rates[:, None] * time) * energy
    gap, slope = left.sum(0) - goal, (rates[:, None] * left).sum(0).detach()
    return time + (gap - gap.detach()) / slope  # the same number, with the derivative of the root


def _predicted(
    fitted: Callable[[Tensor, int, Tensor], Tensor], times: Tensor, task: Problem, K_test: Any, f0_test: Any
) -> Float[Tensor, "..."]:
    """f₀ + K_test K⁺ g(K)(y − f₀) at each time t, where g = fitted(λ, n, t) is the fraction that is fitted by then."""
    start = task.start(K_test, f0_test)
    values, U = task.modes()
    weights = fitted(values, task.rows, times.reshape(-1, 1).to(values))  # (T, R)
    if K_test is not None:
        weights = weights / values
    parts = weights[:, :, None] * (U.T @ task.residual)  # (T, R, K)
    columns = U @ parts.transpose(0, 1).flatten(1)
    if K_test is not None:
        columns = task.times(K_test, columns)
    f = columns.unflatten(1, (len(weights), -1)) + start[:, None]
    found = torch.stack([task.shaped(f_t) for f_t in f.unbind(1)])
    return found if times.dim() else found[0]
