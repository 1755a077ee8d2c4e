"""f₀ + α(f − f₀): where it starts, how it moves with α, and what it refuses."""

from __future__ import annotations

import copy
import inspect

import oracle
import pytest
import torch
from cases import ZOO
from oracle import assert_close, flat
from torch import Tensor, nn
from torch.nn import functional as F

import torchtangent as tt
from torchtangent.linear import Lazy, lazy, linearize

X = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.randn(6, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def net() -> nn.Module:
    """A smooth network, the same every time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)).double()


def train(module: nn.Module, lr: float, steps: int = 30) -> nn.Module:
    """Momentum SGD on the squared loss, with the same batches every time."""
    optimizer = torch.optim.SGD(module.parameters(), lr=lr, momentum=0.5)
    generator = torch.Generator().manual_seed(2)
    for _ in range(steps):
        batch = torch.randperm(len(X), generator=generator)[:4]
        optimizer.zero_grad()
        F.mse_loss(module(X[batch]), Y[batch]).backward()
        optimizer.step()
    return module


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("alpha", [0.3, 1.0, 50.0])
def test_value_and_gradient(alpha: float, bias: bool) -> None:
    model, start = net(), net()
    scaled = lazy(model, alpha, bias)
    f0 = start(X).detach()
    assert torch.equal(scaled(X).detach(), f0 if bias else torch.zeros_like(f0))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    f = oracle.outputs(model, X)
    assert_close(scaled(X), (f0 if bias else 0) + alpha * (f - f0))
    scaled(X).backward(Y)
    grads = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert_close(grads, alpha * torch.einsum("nc,ncp->p", Y, oracle.jacobian(model, X)))


def test_alpha_one_is_the_network() -> None:
    assert_close(train(lazy(net(), 1.0), 0.1)(X), train(net(), 0.1)(X).detach())


def test_the_first_step_is_one_over_alpha_in_weights_and_one_in_outputs() -> None:
    J = oracle.jacobian(net(), X).flatten(0, 1)
    step = 0.1 * J.T @ (2 * (oracle.outputs(net(), X) - Y) / Y.numel()).flatten()
    for alpha in (1.0, 30.0, 1000.0):
        model = net()
        scaled = lazy(model, alpha)
        optimizer = torch.optim.SGD(scaled.parameters(), lr=scaled.learning_rate(0.1))
        F.mse_loss(scaled(X), Y).backward()
        optimizer.step()
        assert_close(flat(model) - flat(net()), -step / alpha, 1e-9)
        assert_close(alpha * J @ (flat(model) - flat(net())), -J @ step, 1e-9)  # α J δ, the same for every α
    assert lazy(net(), 4.0).learning_rate(0.8) == pytest.approx(0.05)


@pytest.mark.parametrize("bias", [True, False])
def test_for_large_alpha_training_is_that_of_the_linearized_network(bias: bool) -> None:
    linear = train(linearize(net(), bias=bias), 0.1)(X).detach()
    errors = []
    for alpha in (10.0, 100.0, 1000.0):
        scaled = lazy(net(), alpha, bias)
        errors.append(oracle.relative_error(train(scaled, scaled.learning_rate(0.1))(X), linear))
    assert oracle.relative_error(linear, train(linearize(net(), bias=bias), 0.1, steps=0)(X).detach()) > 0.3
    assert errors[2] < 1e-3
    assert 8 < errors[0] / errors[1] < 12
    assert 8 < errors[1] / errors[2] < 12


def test_the_model_itself_is_trained_under_its_own_names() -> None:
    model = net()
    scaled = lazy(model, 10.0)
    assert [(n, id(p)) for n, p in scaled.named_parameters()] == [(n, id(p)) for n, p in model.named_parameters()]
    train(scaled, scaled.learning_rate(0.1))
    assert (flat(model) - flat(net())).norm() > 0
    assert_close(flat(nn.ModuleList([lazy(net(), 10.0)])), flat(net()), 0)


def test_its_kernel_is_alpha_squared_times_the_network_s() -> None:
    K = torch.einsum("ncp,mep->nmce", *[oracle.jacobian(net(), X)] * 2)
    assert_close(tt.ntk(lazy(net(), 10.0), X), 100 * K)


def test_a_lone_layer_with_buffers_moves_with_its_wrapper() -> None:
    """The root's own parameters and buffers are shared, not copied."""
    model = nn.BatchNorm1d(3).double().eval()
    scaled = lazy(model, 5.0)
    assert set(scaled.state_dict()) == {*model.state_dict(), *(f"theta0.{name}" for name in model.state_dict())}
    scaled.float()
    assert {t.dtype for t in [*model.parameters(), model.running_mean, scaled.theta0.weight]} == {torch.float32}
    assert torch.equal(scaled(X.float()).detach(), model(X.float()).detach())
    params = {name: torch.zeros_like(p) for name, p in scaled.named_parameters()}
    f0 = model(X.float()).detach()
    assert_close(torch.func.functional_call(scaled, params, (X.float(),)), -4 * f0, 1e-5)


def test_state_dict_round_trip_and_copy() -> None:
    scaled = train(lazy(net(), 10.0), 1e-3)
    other = net()
    with torch.no_grad():
        for p in other.parameters():
            p.add_(1)
    twin = lazy(other, 10.0)
    twin.load_state_dict(scaled.state_dict())
    assert_close(twin(X), scaled(X).detach(), 0)
    double = copy.deepcopy(scaled)
    y = scaled(X).detach()
    train(double, 1e-3)
    assert_close(scaled(X), y, 0)
    assert (double(X) - y).norm() > 1e-3
    assert {id(p) for p in double.parameters()}.isdisjoint(id(p) for p in scaled.parameters())


@pytest.mark.parametrize("name", ["language-model", "dict-output"])
def test_outputs_inside_objects(name: str) -> None:
    model, x, output = ZOO[name].build()
    assert_close(oracle.forward(lazy(model, 10.0), x), oracle.outputs(model, x, output))
    assert_close(oracle.forward(lazy(model, 10.0, output=output), x), oracle.outputs(model, x, output))


def test_gradients_flow_to_the_input() -> None:
    model = net()
    scaled = lazy(model, 7.0)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1)
    a, b = (X.clone().requires_grad_() for _ in range(2))
    scaled(a).backward(Y)
    (7 * model(b) - 6 * net()(b)).backward(Y)
    assert_close(a.grad, b.grad)


def test_of_a_compiled_model_it_takes_the_module() -> None:
    model = net()
    scaled = lazy(torch.compile(model, backend="eager"), 2.0)
    assert list(dict(scaled.named_parameters())) == list(dict(model.named_parameters()))


# ------------------------------------------------------------------------------------------------- what it refuses


def test_batch_statistics_and_randomness_are_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)).double()
    scaled = lazy(model.eval(), 20.0)
    f = model(X).detach()
    scaled.train()
    assert model.training
    with pytest.raises(ValueError, match=r"BatchNorm1d '1' normalizes .* α = 20 would amplify .* eval mode"):
        scaled(X)
    model[1].eval()
    with pytest.raises(ValueError, match=r"Dropout '2' is active .* α = 20 would amplify .* eval mode"):
        scaled(X)
    model[2].eval()
    assert torch.equal(scaled(X).detach(), f)
    assert torch.equal(scaled.eval()(X).detach(), f)
    assert not model.training
    with pytest.raises(ValueError, match="BatchNorm1d normalizes"):
        lazy(nn.BatchNorm1d(3, track_running_stats=False).double().eval(), 2.0)(X)


class Shifty(nn.Module):
    """Another function in training mode, and not a random one."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 1 if self.training else x


def test_both_terms_run_in_the_same_mode() -> None:
    scaled: Lazy = lazy(nn.Sequential(nn.Linear(3, 2), Shifty()).double().eval(), 100.0, bias=False)
    assert scaled(X).abs().max() == 0
    assert scaled.train()(X).abs().max() == 0


@pytest.mark.parametrize("training", [True, False])
def test_looking_at_it_leaves_its_modes_alone(training: bool) -> None:
    """The model's root has no place among the modules, yet is put into eval mode, and back, with them."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double().train(training)
    scaled = lazy(model, 10.0)
    seen: list[bool] = []
    model.register_forward_hook(lambda *_: seen.append(model.training))
    probe = tt.TangentProbe(scaled, X, torch.arange(6) % 2)
    scaled.train()
    probe.log(0)
    assert not any(seen)
    assert all(module.training for module in (scaled, *model.modules()))


def test_modes_may_be_set_on_the_model_itself() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Dropout()).double()
    scaled = lazy(model, 10.0)
    K = 100 * torch.einsum("ncp,mep->nmce", *[oracle.jacobian(model.eval(), X)] * 2)
    assert not scaled.training
    assert_close(tt.ntk(scaled, X), K)
    scaled.train()
    assert model.training
    model[1].eval()
    assert_close(tt.ntk(scaled, X), K)


class Writes(nn.Module):
    """Changes its input."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sub_(1)


class Drops(nn.Module):
    """Dropout that is no layer."""

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.5, training=self.training)


def test_two_calls_that_differ_are_refused() -> None:
    scaled = lazy(nn.Sequential(Writes(), nn.Linear(3, 2)).double(), 100.0)
    with pytest.raises(ValueError, match=r"called twice .* α = 100 would amplify .* writes to its input"):
        scaled(X.clone())
    drops = nn.Sequential(nn.Linear(3, 2), Drops()).double().eval()
    scaled = lazy(drops, 100.0)
    f = drops(X).detach()
    assert torch.equal(scaled(X).detach(), f)
    scaled.train()  # where it was not called before
    for _ in range(2):
        with pytest.raises(ValueError, match=r"called twice .* random numbers .* eval mode"):
            scaled(X)
    assert torch.equal(scaled.eval()(X).detach(), f)


def test_a_change_of_the_weights_is_no_difference_of_two_calls() -> None:
    scaled = lazy(net(), 100.0)
    with torch.no_grad():
        for p in scaled.parameters():
            p.add_(1)
    assert (scaled(X) - net()(X)).abs().max() > 1


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("inf"), float("nan")])
def test_alpha_is_positive_and_finite(alpha: float) -> None:
    with pytest.raises(ValueError, match=f"positive, finite number, got {alpha}"):
        lazy(net(), alpha)


def test_alpha_is_a_number() -> None:
    with pytest.raises(ValueError, match="positive, finite number, got '10'"):
        inspect.unwrap(lazy)(net(), "10")


def test_other_bad_input_is_named() -> None:
    with pytest.raises(TypeError):
        lazy(X, 1.0)
    with pytest.raises(ValueError, match="linearized already"):
        lazy(linearize(net()), 3.0)
    with pytest.raises(ValueError, match="lazy already"):
        lazy(lazy(net(), 5.0), 3.0)
    with pytest.raises(ValueError, match=r"a part called 'theta0'.*Rename it"):
        lazy(nn.ModuleDict({"theta0": nn.Linear(3, 2)}), 1.0)
    with pytest.raises(ValueError, match="output is a tuple, not a floating-point tensor"):
        lazy(nn.LSTM(3, 2).double(), 1.0)(X)
