"""spectrum.density against full decompositions in float64."""

from __future__ import annotations

import math
import os
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torchtangent as tt
from torchtangent.operators import ImplicitOperator
from torchtangent.operators.estimate import Estimate
from torchtangent.spectrum import Density, density

module = sys.modules[density.__module__]  # the package has the function under its name

N = 60


def values(dtype: torch.dtype = torch.float64) -> Tensor:
    """A bulk around zero, and two outliers."""
    return torch.cat([torch.linspace(-1, 1, N - 2, dtype=dtype), torch.tensor([5.0, 9.0], dtype=dtype)])


def rotated(lam: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    Q = torch.linalg.qr(torch.randn(len(lam), len(lam), generator=generator, dtype=torch.float64)).Q
    return (Q * lam.double()) @ Q.T


def test_quadrature_is_exact_for_polynomials_up_to_degree_2m_minus_1_and_not_beyond() -> None:
    """For a diagonal matrix zᵀf(M)z is tr f(M) for any signs z, so there is no error of sampling."""
    steps, lam = 7, torch.linspace(-1, 1, N, dtype=torch.float64)
    found = density(torch.diag(lam), steps=steps, probes=3)
    assert found.points.shape == found.weights.shape == (3, steps)
    for power in range(2 * steps):
        exact = lam.pow(power).sum()
        estimate = found.trace(lambda t, p=power: t.pow(p))
        torch.testing.assert_close(estimate.value, exact, rtol=1e-10, atol=1e-10)
        if power < 2 * (steps // 2):  # then half of the steps are exact as well
            assert estimate.standard_error < 1e-8 * lam.abs().pow(power).sum()
    beyond = found.trace(lambda t: t.pow(2 * steps)).value
    assert abs(beyond / lam.pow(2 * steps).sum() - 1) > 1e-5


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
def test_with_all_steps_every_function_of_a_diagonal_matrix_is_exact(dtype: torch.dtype, rtol: float) -> None:
    lam = values()
    found = density(torch.diag(lam).to(dtype), steps=10 * N, probes=2)
    assert found.points.shape[1] == N  # further steps would be empty
    torch.testing.assert_close(found.weights.sum(1), torch.ones(2, dtype=torch.float64))
    torch.testing.assert_close(found.trace(torch.exp).value, lam.exp().sum(), rtol=rtol, atol=0.0)


def test_few_distinct_eigenvalues_need_as_many_steps() -> None:
    lam = torch.tensor([2.0] * 30 + [3.0] * 9 + [0.0], dtype=torch.float64)
    found = density(torch.diag(lam), steps=3, probes=4)
    torch.testing.assert_close(
        found.points, torch.tensor([[0.0, 2.0, 3.0]] * 4, dtype=torch.float64), atol=1e-12, rtol=0
    )
    torch.testing.assert_close(found.weights, torch.tensor([[1 / 40, 3 / 4, 9 / 40]] * 4, dtype=torch.float64))
    more = density(torch.diag(lam), steps=20, probes=4)  # the Krylov space has ended: nothing is invented after it
    torch.testing.assert_close(more.trace(lambda t: (t + 1).log()).value, (lam + 1).log().sum())
    assert more.trace(torch.exp).standard_error < 1e-10, "and nothing is left to more steps"
    assert more.points.min() > -1e-12
    assert more.points.max() < 3 + 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_points_after_the_end_of_a_krylov_space_lie_among_the_eigenvalues(dtype: torch.dtype) -> None:
    """Far from zero, where an empty row would put them."""
    lam = torch.tensor([1000.0] * 30 + [1001.0] * 30, dtype=dtype)
    for M in (torch.diag(lam), torch.diag(-lam), torch.diag(lam).fill_diagonal_(1000.0)):
        found, least, most = density(M, steps=12, probes=3), float(M.diagonal().min()), float(M.diagonal().max())
        assert found.points.min() > least - 1e-3
        assert found.points.max() < most + 1e-3
        torch.testing.assert_close(found.weights.sum(1), torch.ones(3, dtype=torch.float64))
        torch.testing.assert_close(found.trace(lambda t: t).value, M.trace().double(), rtol=1e-6, atol=0)
    grid, _ = density(torch.diag(lam), steps=12).curve()
    assert float(grid[0]) > 999


def test_traces_are_unbiased_and_the_standard_error_is_what_it_says() -> None:
    M, exact = rotated(values()), values().exp().sum()
    found = [density(M, steps=12, probes=8, seed=seed).trace(torch.exp) for seed in range(60)]
    estimates = torch.stack([e.value for e in found])
    assert abs(estimates.mean() - exact) < 4 * estimates.std() / 60**0.5
    assert 0.7 < torch.stack([e.standard_error for e in found]).square().mean().sqrt() / estimates.std() < 1.4


def test_errors_cover_a_quadrature_with_too_few_steps() -> None:
    """The spread of the probes alone is a twelfth of the error, or a fourteenth."""
    kernel = torch.logspace(3.5, -3, 300, dtype=torch.float64)
    flat = torch.linspace(-1, 1, 70, dtype=torch.float64).pow(9)  # most of them close to zero, as a Hessian's
    for seed in range(5):
        value, error = density(rotated(kernel), steps=20, seed=seed).trace(lambda t: (t + 0.01).clamp(1e-6).log())
        assert abs(value - (kernel + 0.01).log().sum()) < 3 * error
        value, error = density(rotated(flat), steps=16, seed=seed).below(0.0)
        assert abs(value - 0.5) < 3 * error


def test_errors_of_fractions_know_the_weight_of_clusters() -> None:
    """Most eigenvalues are within rounding of zero, and a point that stands for them all is on either side of it."""
    lam = torch.cat([torch.linspace(-1, -0.1, 10), 1e-9 * torch.linspace(-3, 1, 60), torch.linspace(0.1, 3, 10)])
    M = rotated(lam.double())
    for seed in range(10):
        whole = density(M, steps=80, probes=4, seed=seed)
        for value in (-0.5, -0.05, -1e-6, 0.0, 1e-6, 1.0):
            exact = whole.below(value)
            for steps in (4, 8, 16, 24):
                fraction, error = density(M, steps=steps, probes=4, seed=seed).below(value)
                assert abs(fraction - exact.value) <= error + 1e-12
            assert error > 0.1 if value == 0.0 else error < 2 * exact.standard_error + 0.03
    found = density(torch.diag(torch.tensor([-1.0, 0.0, 2.0])), steps=3)
    torch.testing.assert_close(found.below(-0.5), Estimate(torch.tensor(1 / 3).double(), torch.tensor(0.0).double()))


def test_no_step_is_lost_to_an_eigenvalue_found_before(monkeypatch: pytest.MonkeyPatch) -> None:
    lam = torch.logspace(0, -6, N, dtype=torch.float64)
    exact, M = lam.sort().values.expand(2, -1), rotated(lam)
    torch.testing.assert_close(density(M, steps=N, probes=2).points, exact, rtol=0, atol=1e-13)
    monkeypatch.setattr(module, "_BASIS", N * N - 1)
    without = density(M, steps=N, probes=2)
    assert (without.points - exact).abs().max() > 1e-6
    torch.testing.assert_close(without.trace(torch.exp).value, density(M, steps=9, probes=2).trace(torch.exp).value)


def test_as_many_probes_at_once_as_their_bases_leave_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    M, columns = rotated(values()), list[int]()

    def product(V: Tensor) -> Tensor:
        columns.append(V.shape[1])
        return M @ V

    operator = ImplicitOperator(product, N, M.dtype, M.device)
    for limit, widths in ((2 * 10 * N, [2, 2, 1]), (10 * N - 1, [5])):
        monkeypatch.setattr(module, "_BASIS", limit)
        columns.clear()
        density(operator, steps=10, probes=5)
        assert columns == [width for width in widths for _ in range(10)]


@pytest.mark.parametrize("scale", [2.0**-100, 2.0**100])
def test_the_scale_of_the_matrix_does_not_matter(scale: float) -> None:
    M = rotated(values()).float()
    plain, scaled = density(M, steps=20), density(scale * M, steps=20)
    torch.testing.assert_close(scaled.points / scale, plain.points)
    torch.testing.assert_close(scaled.weights, plain.weights)


def test_the_hessian_of_a_network() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    x, y = torch.randn(40, 3, dtype=torch.float64), torch.randint(2, (40,))
    theta = dict(net.named_parameters())

    def loss(flat: Tensor) -> Tensor:
        parts = flat.split([p.numel() for p in theta.values()])
        named = {name: part.view_as(p) for (name, p), part in zip(theta.items(), parts, strict=True)}
        return nn.functional.cross_entropy(torch.func.functional_call(net, named, (x,)), y)

    flat = torch.cat([p.detach().flatten() for p in theta.values()])
    exact = torch.linalg.eigvalsh(torch.autograd.functional.hessian(loss, flat))
    H = tt.hessian(net, (x, y), nn.functional.cross_entropy)
    counted: list[tuple[int, int | None]] = []
    found = density(H, steps=32, probes=32, progress=lambda *done: counted.append(done))
    assert counted[-1] == (32 * 32, 32 * 32)
    assert found.size == len(exact) == 32
    torch.testing.assert_close(found.points.max(), exact.max(), rtol=1e-6, atol=0)
    torch.testing.assert_close(found.points.min(), exact.min(), rtol=1e-6, atol=0)
    for function in (torch.exp, lambda t: (t + 1).log()):
        value, error = found.trace(function)
        assert abs(value - function(exact).sum()) < 5 * error
    negative, error = found.below(-1e-6)
    assert abs(negative - (exact < -1e-6).double().mean()) < 5 * error + 0.02


def test_kernels_arrays_and_several_probes_at_once_give_the_same() -> None:
    M = rotated(values())
    found = density(M, steps=10, probes=5)
    torch.testing.assert_close(density(M.numpy(), steps=10, probes=5).points, found.points)
    torch.testing.assert_close(
        density(M.view(N // 2, 2, N // 2, 2).transpose(1, 2), steps=10, probes=5).points, found.points
    )
    assert not torch.equal(density(M, steps=10, probes=5, seed=1).points, found.points)


def test_the_curve_is_a_density_with_its_peaks_where_the_eigenvalues_are() -> None:
    lam = torch.tensor([0.0] * 30 + [1.0] * 10, dtype=torch.float64)
    found = density(torch.diag(lam), steps=2)
    grid, p = found.curve(2001)
    assert torch.trapezoid(p, grid) == pytest.approx(1, abs=3e-3)
    assert grid[p.argmax()] == pytest.approx(0, abs=0.01)
    left, right = found.curve(torch.tensor([0.0, 1.0], dtype=torch.float64), width=0.02)[1]
    assert left / right == pytest.approx(3)
    flat_grid, flat = density(torch.eye(4), steps=3).curve()
    assert torch.trapezoid(flat, flat_grid) == pytest.approx(1, abs=0.01)
    with pytest.raises(ValueError, match="width must be positive, got 0"):
        found.curve(width=0.0)


def test_a_curve_is_drawn_where_it_is_asked_for() -> None:
    found, places = density(torch.diag(values())), torch.tensor([0.0, 1.0, 5.0], dtype=torch.float64)
    expected = found.curve(places, 0.1)[1]
    for grid in ([0.0, 1.0, 5.0], (0.0, 1.0, 5.0), np.array([0, 1, 5], dtype=np.float32), places.float()):
        drawn, p = found.curve(grid, 0.1)
        assert torch.equal(drawn, places)
        assert torch.equal(p, expected)
    assert len(found.curve(7)[0]) == 7


def test_unknown_errors_are_nan() -> None:
    M = torch.diag(values())
    assert density(M, probes=1).trace(torch.exp).standard_error.isnan()
    value, error = density(M, steps=1).trace(torch.exp)
    torch.testing.assert_close(value, N * (values().sum() / N).exp())
    assert error.isnan()
    found = density(M, steps=5)
    alone = Density(found.points, found.weights, found.size)
    assert alone.below(0.5).value == found.below(0.5).value
    assert alone.trace(torch.exp).standard_error.isnan()
    assert density(M, probes=1).below(0.5).standard_error.isnan()


@pytest.mark.skipif("TORCHTANGENT_SHAPES" in os.environ, reason="the shape checks would speak first")
def test_what_can_be_drawn_counted_and_summed() -> None:
    found = density(torch.diag(values()), steps=6, probes=4)
    assert len(found.curve(np.int64(7))[0]) == 7
    for bad in (1000.0, [[0.0, 1.0]]):
        with pytest.raises(ValueError, match="grid should be a whole number or a row of places"):
            found.curve(bad)
    for value in (1, np.float32(1), torch.tensor(1.0)):
        assert found.below(value) == found.below(1.0)
    for bad in ("1", None, [1.0], torch.zeros(2), math.nan):
        with pytest.raises(ValueError, match=r"value should be a number, got ('1'|None|\[1.0\]|tensor|nan)"):
            found.below(bad)
    with pytest.raises(ValueError, match=r"f should act entry by entry; it made \(4,\) of \(4, 6\)\."):
        found.trace(lambda t: t.sum(1))
    with pytest.raises(ValueError, match=r"it made a float of \(4, 6\)"):
        found.trace(lambda t: 1.0)


@pytest.mark.parametrize(
    ("M", "options", "message"),
    [
        (torch.ones(3, 2), {}, "square"),
        (torch.ones(3, 3).triu(), {}, "not symmetric"),
        (torch.full((3, 3), torch.nan), {}, "NaN or infinity"),
        (torch.eye(3), {"steps": 0}, "steps=0"),
        (torch.eye(3), {"probes": 0}, "probes=0"),
    ],
)
def test_bad_input_is_refused(M: Tensor, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        density(M, **options)
