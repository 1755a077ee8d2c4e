"""SuperNat against the thesis' formulas: features that are really rescaled, and the bound that is really minimized."""

from __future__ import annotations

import copy
import os

import pytest
import torch
from torch import Tensor, nn

import torchtangent as tt
from torchtangent.optim import SuperNat

LR = 0.05


def problem(n: int = 12, d: int = 4, outputs: int = 1, bias: bool = False) -> tuple[nn.Linear, Tensor, Tensor]:
    x, y = torch.randn(n, d).double(), torch.randn(n, outputs).double()
    return nn.Linear(d, outputs, bias=bias).double(), x, y


def loss(f: Tensor, y: Tensor) -> Tensor:
    return (f - y).square().sum() / 2


def run(model: nn.Linear, opt: torch.optim.Optimizer, x: Tensor, y: Tensor, steps: int = 1) -> None:
    for _ in range(steps):
        opt.zero_grad()
        loss(model(x), y).backward()
        opt.step()


def square_root(values: Tensor, V: Tensor) -> Tensor:
    return V @ torch.diag(values.sqrt()) @ V.T


def test_features_are_rescaled_and_descended_in() -> None:
    """Gradient descent in Φ_t, then Φ_{t+1} = Ã_t⁻¹Φ_t with dense matrices, for five steps."""
    model, x, y = problem()
    opt = SuperNat(model, x, LR)
    f, features = model(x).detach()[:, 0], x.clone()
    for _ in range(5):
        slope = f - y[:, 0]
        f = f - LR * features @ features.T @ slope
        U, _, Vt = torch.linalg.svd(features, full_matrices=False)
        nu = 1 / (U.T @ slope).abs()
        nu = nu / nu.min()  # max ν⁻¹ = 1
        features = features @ torch.linalg.inv(square_root(nu, Vt.T))
        run(model, opt, x, y)
        torch.testing.assert_close(model(x).detach()[:, 0], f, rtol=1e-9, atol=1e-11)
        kernel = torch.linalg.eigvalsh(features @ features.T)[-4:]
        torch.testing.assert_close(opt.eigenvalues[:, 0].sort().values, kernel, rtol=1e-8, atol=1e-12)


def test_it_is_natural_gradient_descent_in_the_original_features() -> None:
    """δw = −η (A_t A_tᵀ)⁻¹ ∇_w with A_t = Ã_0 … Ã_{t−1}."""
    model, x, y = problem()
    opt = SuperNat(model, x, LR)
    U, _, Vt = torch.linalg.svd(x, full_matrices=False)
    A = torch.eye(4).double()
    for _ in range(4):
        before = model.weight.detach().clone()
        slope = (model(x) - y).detach()[:, 0]
        run(model, opt, x, y)
        wanted = -LR * torch.linalg.solve(A @ A.T, model.weight.grad[0])
        torch.testing.assert_close((model.weight - before)[0], wanted, rtol=1e-8, atol=1e-11)
        nu = 1 / (U.T @ slope).abs()
        A = A @ square_root(nu / nu.min(), Vt.T)


def test_the_rescaling_minimizes_the_bound() -> None:
    """‖δw‖_Ã ‖Ã⁻¹Φᵀ‖_F over all ν, by numerical minimization."""
    model, x, y = problem()
    opt = SuperNat(model, x, LR)
    start = opt.eigenvalues.clone()
    _, roots, Vt = torch.linalg.svd(x, full_matrices=False)
    delta = Vt @ (-LR * x.T @ (model(x) - y).detach())[:, 0]
    log_nu = torch.zeros(4).double().requires_grad_()
    search = torch.optim.LBFGS([log_nu], max_iter=200, tolerance_grad=1e-14, tolerance_change=1e-16)

    def bound() -> Tensor:
        search.zero_grad()
        nu = log_nu.exp()
        value = ((nu * delta**2).sum() * (roots**2 / nu).sum()).log()
        value.backward()
        return value

    search.step(bound)
    run(model, opt, x, y)
    inverse = (-log_nu).exp().detach()
    torch.testing.assert_close((opt.eigenvalues / start)[:, 0], inverse / inverse.max(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("scale", ["max", "trace", 3.0])
def test_the_constant_is_explicit(scale: str | float) -> None:
    model, x, y = problem(outputs=2)
    opt = SuperNat(model, x, LR, scale=scale)
    start = opt.eigenvalues.clone()
    U = torch.linalg.svd(x, full_matrices=False)[0]
    slopes = (U.T @ (model(x) - y).detach()).abs()
    run(model, opt, x, y)
    ratio = opt.eigenvalues / start
    torch.testing.assert_close(ratio / ratio.sum(), slopes / slopes.sum(), rtol=1e-9, atol=1e-12)
    if scale == "max":
        assert float(ratio.max()) == pytest.approx(1, abs=1e-12)
    elif scale == "trace":
        torch.testing.assert_close(opt.eigenvalues.sum(), start.sum())
    else:
        torch.testing.assert_close(ratio, 3.0 * slopes)


def test_the_bias_is_a_feature_of_ones() -> None:
    model, x, y = problem(bias=True)
    wide = nn.Linear(5, 1, bias=False).double()
    wide.weight.data = torch.cat([model.weight, model.bias[:, None]], 1).detach()
    ones = torch.cat([x, torch.ones(len(x), 1)], 1)
    run(model, SuperNat(model, x, LR), x, y, steps=4)
    run(wide, SuperNat(wide, ones.double(), LR), ones.double(), y, steps=4)
    torch.testing.assert_close(torch.cat([model.weight, model.bias[:, None]], 1), wide.weight, rtol=1e-9, atol=1e-11)


def test_a_resumed_run_is_the_same_run() -> None:
    model, x, y = problem()
    opt = SuperNat(model, x, LR)
    run(model, opt, x, y, steps=3)
    other = copy.deepcopy(model)
    again = SuperNat(other, x, LR)
    again.load_state_dict(copy.deepcopy(opt.state_dict()))
    run(model, opt, x, y, steps=10)
    run(other, again, x, y, steps=10)
    assert torch.equal(model.weight, other.weight)
    assert torch.equal(opt.eigenvalues, again.eigenvalues)


def test_noise_directions_freeze() -> None:
    """Noisy regression with one signal and ten noise features: lower test error than gradient descent at the end."""
    errors: dict[str, list[float]] = {"descent": [], "supernat": []}
    for seed in range(5):
        g = torch.Generator().manual_seed(seed)
        signal, noise = torch.randn(50, 1, generator=g).double(), torch.randn(50, 10, generator=g).double() / 10**0.5
        x = torch.cat([signal, noise], 1)
        y = signal + noise @ torch.linalg.pinv(noise) @ torch.randn(50, 1, generator=g).double() * 0.1**0.5
        x_test = torch.cat([torch.randn(500, 1, generator=g), torch.randn(500, 10, generator=g) / 10**0.5], 1).double()
        for name in errors:
            model = nn.Linear(11, 1, bias=False).double()
            nn.init.zeros_(model.weight)
            opt = SuperNat(model, x, 0.1) if name == "supernat" else torch.optim.SGD(model.parameters(), 0.1)
            for _ in range(600):
                opt.zero_grad()
                ((model(x) - y).square().mean() / 2).backward()
                opt.step()
            errors[name].append((model(x_test) - x_test[:, :1]).square().mean().item())
    better = sum(s < d for s, d in zip(errors["supernat"], errors["descent"], strict=True))
    assert better == 5


def test_a_stationary_point_stays() -> None:
    model, x, _ = problem()
    opt = SuperNat(model, x, LR)
    before, values = model.weight.detach().clone(), opt.eigenvalues.clone()
    run(model, opt, x, model(x).detach())
    assert torch.equal(model.weight, before)
    assert torch.equal(opt.eigenvalues, values)


@pytest.mark.skipif("TORCHTANGENT_SHAPES" in os.environ, reason="the shape checks would speak first")
def test_a_network_that_is_not_linear() -> None:
    model, x, _ = problem()
    with pytest.raises(TypeError, match=r"expected an nn.Linear, got a Sequential"):
        SuperNat(nn.Sequential(model), x, LR)  # type: ignore[arg-type]


def test_a_step_that_is_not_finite_is_skipped() -> None:
    model, x, y = problem(bias=True)
    opt = SuperNat(model, x, LR)
    run(model, opt, x, y)
    before, values = copy.deepcopy(model.state_dict()), opt.eigenvalues.clone()
    with pytest.warns(tt.TangentWarning, match=r"step skipped, the loss or its gradient .* \(skipped so far: 1\)"):
        run(model, opt, x, y * float("nan"))
    run(model, opt, x, y * float("inf"))  # said once
    opt.zero_grad()

    def closure() -> Tensor:
        opt.zero_grad()
        found = loss(model(x), y)
        found.backward()
        return found * float("nan")

    opt.step(closure)
    assert opt.skipped == 3
    assert all(torch.equal(p, before[name]) for name, p in model.state_dict().items())
    assert torch.equal(opt.eigenvalues, values)


def test_a_minibatch_is_noticed() -> None:
    model, x, y = problem()
    opt = SuperNat(model, x, LR)
    for part in (slice(0, 4), slice(4, 12)):  # accumulated, they are all of x
        loss(model(x[part]), y[part]).backward()
    opt.step()
    loss(model(x[:3]), y[:3]).backward()
    with pytest.warns(tt.TangentWarning, match="made for all 12 rows of x, but the model was called with 3"):
        opt.step()
    run(model, opt, x[:5], y[:5])  # said once
    opt = SuperNat(model, x, LR)
    run(model, opt, x, y)
    model(x[:3])
    run(model, opt, x, y)


@pytest.mark.skipif("TORCHTANGENT_SHAPES" in os.environ, reason="the shape checks would speak first")
def test_inputs_that_are_no_matrix() -> None:
    model, x, _ = problem()
    with pytest.raises(TypeError, match=r"x: expected a tensor, got a ndarray. For an array, pass torch.as_tensor"):
        SuperNat(model, x.numpy(), LR)  # type: ignore[arg-type]
    for bad in (x[0], x[:0], x[None]):
        with pytest.raises(ValueError, match="it should be a matrix with a row for each sample"):
            SuperNat(model, bad, LR)


def test_bad_input() -> None:
    model, x, _ = problem()
    with pytest.raises(ValueError, match=r"lr=0.0: it should be positive"):
        SuperNat(model, x, 0.0)
    with pytest.raises(ValueError, match=r"scale='sum' is not known. Choose one of 'max', 'trace'"):
        SuperNat(model, x, LR, scale="sum")
    with pytest.raises(ValueError, match=r"scale=-1.0: it should be positive"):
        SuperNat(model, x, LR, scale=-1.0)
    with pytest.raises(ValueError, match="x has 3 features, the model takes 4"):
        SuperNat(model, x[:, :3], LR)
    x[3, 2] = float("nan")
    with pytest.raises(ValueError, match="x has NaN or infinity"):
        SuperNat(model, x, LR)


def test_states_of_another_problem_are_refused() -> None:
    model, x, _ = problem()
    saved = SuperNat(model, x, LR).state_dict()
    with pytest.raises(ValueError, match=r"saved with scale='max'; this SuperNat has scale='trace'"):
        SuperNat(model, x, LR, scale="trace").load_state_dict(saved)
    turned = x @ torch.linalg.qr(torch.randn(x.shape[1], x.shape[1]).to(x))[0]  # of the same eigenvalues
    with pytest.raises(ValueError, match="saved for other inputs x"):
        SuperNat(model, turned, LR).load_state_dict(saved)
    with pytest.raises(ValueError, match="saved for other inputs x"):
        SuperNat(model, 2 * x, LR).load_state_dict(saved)


def test_a_weight_without_gradient_is_told() -> None:
    model, x, y = problem()
    opt = SuperNat(model, x, LR)
    loss(model(x), y).backward()
    model.weight.grad = None
    with pytest.warns(tt.TangentWarning, match="the weight has no gradient, and nothing moves"):
        opt.step()


def test_it_is_not_copied() -> None:
    with pytest.raises(TypeError, match="SuperNat cannot be copied or pickled"):
        copy.deepcopy(SuperNat(nn.Linear(3, 2), torch.randn(5, 3), lr=0.1))
