"""Section 5.4 of the thesis: closed forms beside a fine integration in float64, times beside roots, examples."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

from torchtangent.lab.recipes.george2022 import closed, examples, modes, plain
from torchtangent.lab.recipes.george2022.measures.examples import gap, half_times, second_when_first, when
from torchtangent.lab.recipes.george2022.modes import Array

EXACT = {"method": "DOP853", "rtol": 1e-13, "atol": 1e-15}


def flow(rate: Callable[[Array], Array], start: Array, times: Array) -> Array:
    """The solution of θ̇ = rate(θ), integrated from each time to the next: (times, modes)."""
    path = [start]
    for span in pairwise(times):
        path.append(solve_ivp(lambda _, theta: rate(theta), span, path[-1], **EXACT).y[:, -1])
    return np.array(path)


def in_w(x: Array, y: Array, right: Array, start: Array, times: Array, *, linear: bool) -> Array:
    """θ_λ by gradient flow in w, with autograd's gradient of ½‖Xθ − y‖²; the linearization is autograd's too."""
    X, Y, V, w0 = (torch.from_numpy(a) for a in (x, y, right, np.sqrt(2 * start)))

    def network(w: Tensor) -> Tensor:
        return V @ w.square() / 2

    J = torch.autograd.functional.jacobian(network, w0)

    def theta(w: Tensor) -> Tensor:
        return network(w0) + J @ (w - w0) if linear else network(w)

    def rate(w: Array) -> Array:
        leaf = torch.from_numpy(w).clone().requires_grad_()
        (gradient,) = torch.autograd.grad((X @ theta(leaf) - Y).square().sum() / 2, leaf)
        return -gradient.numpy()

    ws = flow(rate, w0.numpy(), times)
    return np.array([(V.T @ theta(torch.from_numpy(w))).numpy() for w in ws])


@pytest.mark.parametrize(
    ("mu", "target", "start"),
    [
        (2.0, 1.5, 0.01),
        (0.3, 4.0, 1.0),
        (2.0, 0.5, 3.0),
        (1.5, 0.0, 0.7),
        (1.0, 1e-9, 0.2),
        (3.0, -0.4, 0.3),
        (0.0, 0.0, 0.2),
    ],
)
def test_a_mode_of_the_network_follows_its_equation(mu: float, target: float, start: float) -> None:
    times = np.linspace(0, 4, 9)
    expected = flow(lambda theta: -2 * mu * theta * (theta - target), np.array([start]), times)
    found = modes.network(times, np.array([start]), np.array([mu]), np.array([target]))
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("shape", [(4, 6), (5, 5), (6, 3)])
def test_modes_do_not_mix(shape: tuple[int, int]) -> None:
    """Gradient flow in w on data of any shape is the closed form in every mode, also where μ = 0 or θ* = 0."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=shape), rng.normal(size=shape[0])
    u = np.linalg.svd(x)[0][:, 1]
    y = y - u * (u @ y)
    problem = modes.decompose(x, y)
    start = rng.uniform(0.05, 0.2, size=shape[1])
    times = np.linspace(0, 1.5, 4)
    for linear, formula in ((False, modes.network), (True, modes.linearized)):
        expected = in_w(x, y, problem.right, start, times, linear=linear)
        found = formula(times, start, problem.mu, problem.target)
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)
        if shape[0] < shape[1]:
            assert (problem.mu[shape[0] :] == 0).all()
            np.testing.assert_array_equal(found[:, shape[0] :], np.broadcast_to(start[shape[0] :], (4, 2)))


def test_the_printed_exponent_is_too_small() -> None:
    """Half of the right one: at time t it gives what is true at t/2."""
    start, mu, target, times = np.array([0.1]), np.array([3.0]), np.array([2.0]), np.linspace(0, 5, 6)
    expected = flow(lambda theta: -2 * mu * start * (theta - target), start, times)
    np.testing.assert_allclose(modes.linearized(times, start, mu, target), expected, rtol=1e-11)
    printed = modes.linearized(times, start, mu, target, factor=1.0)
    assert abs(printed - expected).max() > 0.3
    np.testing.assert_allclose(printed, modes.linearized(times / 2, start, mu, target), rtol=1e-12)


def test_times_are_when_the_flow_is_within_epsilon() -> None:
    start, mu, target, epsilon = np.array([0.01]), np.array([3.0]), np.array([0.7]), 1e-3
    rates = {
        "network": lambda _, theta: -2 * mu * theta * (theta - target),
        "linearized": lambda _, theta: -2 * mu * start * (theta - target),
    }
    for name, rate in rates.items():
        found = getattr(modes, f"{name}_time")(start, mu, target, epsilon)
        near = lambda _, theta: theta[0] - (target[0] - epsilon)  # noqa: E731
        solved = solve_ivp(rate, (0, 1.5 * found[0]), start, events=near, max_step=found[0] / 50, **EXACT)
        np.testing.assert_allclose(found, solved.t_events[0], rtol=1e-9)


def test_one_mode_waits_for_the_other() -> None:
    """What the power of σ says, in the flow of two modes from a small start."""
    mu, target, epsilon = np.array([1.0, 0.75]), np.ones(2), 1e-2
    learned = []
    for sigma in (1e-4, 1e-8):
        start = np.full(2, sigma)
        (end,) = modes.network_time(start[:1], mu[:1], target[:1], epsilon)
        theta = flow(lambda now: -2 * mu * now * (now - target), start, np.array([0.0, end]))[-1]
        assert theta[0] == pytest.approx(1 - epsilon, rel=1e-9)
        learned.append(theta[1])
    power = np.log((1 / learned[1] - 1) / (1 / learned[0] - 1)) / np.log(1e-8 / 1e-4)
    assert power == pytest.approx(0.75 - 1, abs=1e-3)


def test_modes_are_those_of_the_inputs_with_labels_that_are_not_negative() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(4, 7)), rng.normal(size=4)
    problem = modes.decompose(x, y)
    np.testing.assert_allclose((problem.left * np.sqrt(problem.mu)) @ problem.right.T, x, atol=1e-12)
    np.testing.assert_allclose(problem.left.T @ y, problem.y, atol=1e-12)
    np.testing.assert_allclose(problem.right.T @ problem.right, np.eye(7), atol=1e-12)
    assert (problem.y >= 0).all()
    assert (modes.decompose(x, y, flip=False).y < 0).any()
    np.testing.assert_allclose(problem.outputs(problem.target[None])[0], y, atol=1e-12)
    again = modes.in_basis(x, y, problem.left[:, :4])
    np.testing.assert_allclose(again.mu, problem.mu[:4])
    np.testing.assert_allclose(again.right, problem.right[:, :4], atol=1e-12)


def test_the_integrated_flow_is_that_of_the_data() -> None:
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(3, 4)), rng.normal(size=3)
    problem, start, times = modes.decompose(x, y), np.full(4, 0.1), np.linspace(0, 1, 3)
    for linear in (False, True):
        expected = in_w(x, y, problem.right, start, times, linear=linear)
        found = closed.integrated(x, y, problem, start, times, linear=linear)
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


def test_example_1_turns_the_labels_round() -> None:
    problem = modes.decompose(*examples.example_1(np.array([9.0, 8.0, 7.0, 6.0, 5.0])))
    np.testing.assert_allclose(problem.mu, [9, 8, 7, 6, 5])
    np.testing.assert_allclose(problem.labels, [5, 6, 7, 8, 9])


def test_example_2_has_one_mode_above_equal_ones() -> None:
    x, y, wrong = examples.example_2(20, 5, 5.0)
    assert wrong.sum() == 5
    assert abs(y.sum()) == 0
    values = np.linalg.svd(x)[1]
    np.testing.assert_allclose(values**2, [45] + [25] * 19)
    first = np.where(wrong, -y, y) / np.sqrt(20)
    rest = y - first * (first @ y)
    left = np.linalg.qr(np.column_stack([first, rest, np.eye(20)[:, :18]]))[0]
    problem = modes.in_basis(x, y, left)
    np.testing.assert_allclose(problem.labels[:2], [15, 5 * 15**0.5])
    np.testing.assert_allclose(problem.labels[2:], 0, atol=1e-12)


def test_example_3_has_labels_in_two_modes() -> None:
    x, y, wrong = examples.example_3(20, 5, 10.0, 1.0)
    problem = modes.decompose(x, y)
    np.testing.assert_allclose(problem.mu[:20], [130, 110] + [100] * 18)
    np.testing.assert_allclose(problem.labels[:2] ** 2, [130 * 15, 110 * 5])
    np.testing.assert_allclose(np.abs(problem.left[:, 0]) > 1e-9, ~wrong)


def test_groups_are_averaged_apart_and_together() -> None:
    f, y = np.array([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]), np.array([1.0, 0.0, 1.0])
    errors = examples.by_group(f, y, np.array([False, False, True]))
    np.testing.assert_allclose(errors, [[2.0, 0.5], [4.0, 1.0], [8 / 3, 2 / 3]])


@pytest.mark.parametrize("alpha", [0.1, 10.0])
def test_the_plain_network_descends_along_autograds_gradient(alpha: float) -> None:
    x, y = examples.example_1(np.array([3.0, 2.0, 1.0]))
    config = {"width": 4, "lr": 1e-2, "scale": 0.5, "runs": 2}
    found = plain.descend(x, y, np.array([0, 3]), alpha, config)
    for run in range(2):
        rng = np.random.default_rng(run)
        weights = [torch.from_numpy(0.25 * rng.uniform(-1, 1, shape)).requires_grad_() for shape in ((4, 3), (1, 4))]

        def outputs(first: Tensor, last: Tensor) -> Tensor:
            return (last @ first @ torch.from_numpy(x).T)[0]

        start = outputs(*weights).detach()
        for _ in range(3):
            loss = (alpha * (outputs(*weights) - start) - torch.from_numpy(y)).square().mean()
            with torch.no_grad():
                torch._foreach_add_(weights, torch.autograd.grad(loss, weights), alpha=-1e-2 / alpha**2)
        np.testing.assert_array_equal(found[run, 0], 0)
        np.testing.assert_allclose(found[run, 1], (alpha * (outputs(*weights) - start)).detach(), rtol=1e-10)


def test_values_are_read_where_a_curve_is_halved() -> None:
    time = np.linspace(0, 1, 11)
    assert when(1 - time, time) == pytest.approx(0.5)
    assert np.isnan(when(1 - 0.1 * time, time))
    assert when(np.array([4.0, 1.0, 3.0, 0.0]), np.array([0.0, 3.0, 9.0, 9.0])) == pytest.approx(2.0)  # the first time
    learned = np.stack([time, time**2, 0.3 * time], axis=1)
    np.testing.assert_allclose(half_times(time, learned), [0.5, 0.5**0.5, np.inf], atol=2e-3)
    errors = np.stack([1 - time, 2 - time, 1.5 * (1 - time)])
    assert gap(errors) == pytest.approx(1.0)
    assert second_when_first(errors) == pytest.approx(0.75)
