"""f(θ₀) + J(θ − θ₀) as a module: against the oracle on the whole zoo, and as a good citizen of torch."""

from __future__ import annotations

import copy
import inspect
import io
import math
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import oracle
import pytest
import torch
from cases import ZOO, Case, Wired, every_case
from oracle import assert_close
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.autograd import grad
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import torchtangent as tt
from torchtangent.jacobians.modes import unwrapped
from torchtangent.linear import Linearized, linearize
from torchtangent.linear.frozen import load

SMOOTH = ["residual-gelu", "vision-transformer", "layernorm", "lstm", "transformer-batch-first-prenorm", "weight-norm"]
SLOW = ["embedding-bag", "weight-norm", "checkpointed", "custom-function"]


def moved(lin: Linearized, scale: float = 1.0) -> Linearized:
    """Away from the point of expansion, the same way every time."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in lin.parameters():
            p.add_(scale * torch.randn(p.shape, generator=generator).to(p))
    return lin


def flat(lin: Linearized) -> Tensor:
    """θ − θ₀ as one vector."""
    return torch.cat([d.detach().flatten() for d in lin.displacement().values()])


def gradient(lin: nn.Module, inputs: Any, u: Tensor) -> Tensor:
    """Jᵀu, by backward."""
    lin.zero_grad()
    oracle.forward(lin, inputs).backward(u)
    grads = [torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for p in lin.parameters()]
    return torch.cat([g.flatten() for g in grads])


def conv_net(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """Convolution, BatchNorm with statistics of its own, dropout: eval mode differs from training mode."""
    net = nn.Sequential(
        nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.Tanh(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(8, 3)
    )
    net[1].running_mean.normal_()
    net[1].running_var.uniform_(0.5, 2)
    return net.to(dtype).eval()


X = torch.randn(4, 1, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


# ------------------------------------------------------------------------------------------- against the oracle


@pytest.mark.usefixtures("quiet")
@every_case
def test_it_is_the_expansion(case: Case) -> None:
    model, x, output = case.build()
    f0, J = oracle.outputs(model, x, output), oracle.jacobian_of(case)
    lin = linearize(model, output=output)
    assert_close(oracle.forward(lin, x), f0)
    u = torch.randn_like(f0)
    at_start = gradient(lin, x, u)
    assert_close(at_start, torch.einsum("k,kp->p", u.flatten(), J.flatten(0, -2)))
    moved(lin)
    assert_close(oracle.forward(lin, x), f0 + J @ flat(lin))
    assert_close(gradient(lin, x, u), at_start)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("name", ["lenet", "batchnorm2d", "tied-embedding-and-output", *SLOW, *SMOOTH])
def test_float32_and_no_bias(name: str) -> None:
    """Single precision takes other kernels (of LSTM and attention)."""
    J = oracle.jacobian_of(ZOO[name])
    small, x32, output = ZOO[name].build(torch.float32)
    lin = moved(linearize(small, bias=False, output=output))
    assert_close(oracle.forward(lin, x32), J @ flat(lin).double(), 1e-5)
    with torch.no_grad():
        assert_close(oracle.forward(lin, x32), J @ flat(lin).double(), 1e-5)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("name", SMOOTH)
def test_it_tracks_the_network_to_second_order(name: str) -> None:
    model, x, _ = ZOO[name].build()
    errors = []
    for scale in (2e-3, 1e-3):
        lin, there = moved(linearize(model), scale), copy.deepcopy(model) if name != "weight-norm" else model
        there.load_state_dict(dict(lin.named_parameters()), strict=False)
        errors.append((oracle.forward(lin, x) - oracle.forward(there, x)).norm().item())
        model = ZOO[name].build().model
    assert errors[1] < 1e-4
    assert 3.8 < errors[0] / errors[1] < 4.2


KINDS = """mlp conv2d conv2d-reflect conv3d-groups conv-transpose2d-stride lenet batchnorm2d batchnorm-first
    layernorm layernorm-two-axes layernorm-first groupnorm groupnorm-vector instancenorm2d instancenorm2d-running
    rmsnorm norm-plain prelu-channels module-called-thrice norm-called-twice tied-linears tied-convolutions
    frozen-first-layers rnn lstm lstm-cell-loop gru-time-first attention-time-first transformer-batch-first-prenorm
    transformer-time-first-postnorm vision-transformer einsum weight-norm weight-norm-old spectral-norm orthogonal
    inplace-relu inplace-residual inplace-slice data-dependent-branch hypernetwork weights-from-data detached-branch
    no-grad-stem checkpointed custom-function residual-gelu mixer dict-output tuple-output keyword-call"""


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("name", KINDS.split())
def test_gradients_flow_to_the_input(name: str) -> None:
    """Also through norm layers, whose forward mode cannot be differentiated by the input."""
    model, x, output = ZOO[name].build()
    lin = moved(linearize(model, output=output))
    x.requires_grad_()
    y = lin(x)
    u = torch.randn_like(y)
    (got,) = torch.autograd.grad(y, x, u)
    parameters = list(oracle.trainable(model).values())
    with sdpa_kernel(SDPBackend.MATH):  # the others can be differentiated only once
        f = oracle.forward(model, x, output)
    rows = [
        torch.autograd.grad(entry, parameters, create_graph=True, allow_unused=True, materialize_grads=True)
        for entry in f.flatten()
    ]
    w = torch.stack([torch.cat([g.flatten() for g in row]) @ flat(lin) for row in rows]).view_as(f)
    assert_close(got, torch.autograd.grad(f + w, x, u)[0])


def test_gradients_to_the_input_are_said_to_cost_more() -> None:
    lin = moved(linearize(conv_net(), bias=False))
    y = lin(X)
    with pytest.warns(tt.TangentWarning, match=r"takes two reverse passes .*: the inputs need a gradient\."):
        again = lin(X.clone().requires_grad_())
    assert_close(again, y.detach())
    assert not any(g.requires_grad for g in torch.autograd.grad(again.sum(), list(lin.parameters())))
    with torch.no_grad():
        lin(X.clone().requires_grad_())


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("name", ["lenet", *SLOW])
def test_higher_derivatives(name: str) -> None:
    """The loss Σf³/6 has the Hessian Jᵀ diag(f) J, whose derivative along r is Jᵀ diag(J r) J."""
    model, x, output = ZOO[name].build()
    J = oracle.jacobian(model, x, output).flatten(0, -2)
    lin = moved(linearize(model, output=output))
    parameters = list(lin.parameters())
    v, r = (torch.randn(2, J.shape[1]).double().requires_grad_()).unbind()

    def along(gradient: tuple[Tensor, ...], direction: Tensor) -> Tensor:
        return torch.cat([g.to_dense().flatten() for g in gradient]) @ direction

    def grad(of: Tensor, by: Any = parameters) -> tuple[Tensor, ...]:
        return torch.autograd.grad(of, by, create_graph=True, allow_unused=True, materialize_grads=True)

    f = oracle.forward(lin, x)
    Hv = grad(along(grad(f.pow(3).sum() / 6), v))
    H = J.T @ (f.detach().flatten()[:, None] * J)
    assert_close(torch.cat([h.flatten() for h in Hv]), H @ v.detach())
    assert_close(grad(along(Hv, r), v)[0], H @ r.detach())
    third = torch.cat([t.flatten() for t in grad(along(Hv, r))])
    assert_close(third, J.T @ ((J @ v) * (J @ r)).detach())


@pytest.mark.usefixtures("quiet")
def test_a_penalty_on_the_gradient_by_the_input() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 2)).double()
    x = torch.randn(5, 3).double().requires_grad_()
    lin = moved(linearize(model))

    def penalty(y: Tensor) -> Tensor:
        return torch.autograd.grad(y.square().sum(), x, create_graph=True)[0].square().sum()

    got = torch.autograd.grad(penalty(lin(x)), [x, *lin.parameters()])
    v, f = flat(lin).requires_grad_(), model(x)
    rows = [torch.autograd.grad(entry, list(model.parameters()), create_graph=True) for entry in f.flatten()]
    w = torch.stack([torch.cat([g.flatten() for g in row]) @ v for row in rows]).view_as(f)
    want = torch.autograd.grad(penalty(f + w), [x, v])
    assert_close(got[0], want[0])
    assert_close(torch.cat([g.flatten() for g in got[1:]]), want[1])


class Once(torch.autograd.Function):
    """x³, without a second derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 3 * ctx.saved_tensors[0] ** 2 * grad


@pytest.mark.usefixtures("quiet")
def test_gradients_to_the_input_need_a_second_derivative() -> None:
    def wiring(self: Wired, x: Tensor) -> Tensor:
        return self.head(Once.apply(self.stem(x)))

    model, x = Wired(wiring, stem=nn.Linear(3, 3), head=nn.Linear(3, 2)).double(), torch.randn(5, 3).double()
    lin = moved(linearize(model))
    assert_close(lin(x), oracle.outputs(model, x) + oracle.jacobian(model, x) @ flat(lin))
    with pytest.raises(ValueError, match=r"inputs need a gradient.*second derivatives.*Detach"):
        lin(x.requires_grad_())


def test_gradient_descent_is_that_of_the_linear_model() -> None:
    model = conv_net()
    f0, J, y = oracle.outputs(model, X), oracle.jacobian(model, X).flatten(0, 1), torch.randn(4, 3).double()
    lin = linearize(model)
    optimizer = torch.optim.SGD(lin.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    theta, velocity = torch.zeros(J.shape[1]).double(), torch.zeros(J.shape[1]).double()
    for _ in range(20):
        optimizer.zero_grad()
        F.mse_loss(lin(X), y).backward()
        velocity = 0.9 * velocity + J.T @ (2 * (f0.flatten() + J @ theta - y.flatten()) / y.numel())
        theta = theta - optimizer.param_groups[0]["lr"] * velocity
        optimizer.step()
        schedule.step()
    assert_close(flat(lin), theta)


@pytest.mark.usefixtures("quiet")
def test_its_kernel_is_the_network_s_wherever_it_is() -> None:
    model = conv_net()
    assert_close(tt.ntk(moved(linearize(model)), X), oracle_kernel(model))


def oracle_kernel(model: nn.Module) -> Tensor:
    J = oracle.jacobian(model, X)
    return torch.einsum("ncp,mep->nmce", J, J)


# ------------------------------------------------------------------------------------------ the point of expansion


def test_at_a_state_dict_with_its_statistics() -> None:
    model, other = conv_net(), conv_net()
    before = copy.deepcopy(model.state_dict())
    lin = moved(linearize(model, other.state_dict()))
    assert_close(lin(X), oracle.outputs(other, X) + oracle.jacobian(other, X) @ flat(lin))
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())


def test_at_parameters_alone_keeps_the_statistics() -> None:
    model, other = conv_net(), conv_net()
    lin = linearize(model, dict(other.named_parameters()))
    other[1].load_state_dict(dict(model[1].named_buffers()), strict=False)
    assert_close(lin(X), oracle.outputs(other, X))


def test_at_a_safetensors_file(tmp_path: Path) -> None:
    model, other = conv_net(), conv_net()
    save_file(other.state_dict(), tmp_path / "there.safetensors")
    assert_close(linearize(model, tmp_path / "there.safetensors")(X), oracle.outputs(other, X))
    assert_close(linearize(model, str(tmp_path / "there.safetensors"))(X), oracle.outputs(other, X))


def test_at_needs_one_name_of_a_tied_weight() -> None:
    model, x, _ = ZOO["tied-embedding-and-output"].build()
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.table.weight.add_(1)
    state = other.state_dict()
    del state["table.weight"]
    assert_close(linearize(model, state)(x), oracle.outputs(other, x))


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable, tuple]:
        return Path.touch, (self.path,)


def test_at_never_unpickles(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(pickle.dumps(Bomb(tmp_path / "exploded")))
    with pytest.raises(ValueError, match=r"model\.pt' is not a safetensors file .* weights_only=True"):
        linearize(conv_net(), tmp_path / "model.pt")
    assert not (tmp_path / "exploded").exists()


def test_at_that_does_not_fit_is_named() -> None:
    state = conv_net().state_dict()
    state["5.wait"] = state.pop("5.weight")
    with pytest.raises(ValueError, match=r"does not fit Sequential: missing 5\.weight, unexpected 5\.wait\. "):
        linearize(conv_net(), state)
    with pytest.raises(RuntimeError, match=r"size mismatch for 5\.bias"):
        linearize(conv_net(), conv_net().state_dict() | {"5.bias": torch.zeros(7)})
    with pytest.raises(TypeError, match=r"a state dict or the path of a safetensors file, got a list\."):
        bare(load)(conv_net(), [1])


def bare(function: Callable) -> Callable:
    """Without the checks of types that only the tests have, which would come first."""
    return inspect.unwrap(function)


def test_at_that_is_nested_or_has_a_prefix_is_said_briefly() -> None:
    state = conv_net().state_dict()
    with pytest.raises(ValueError, match=r"missing 5\.bias and 3 more\. It holds other mappings \('adam', 'model'\)"):
        linearize(conv_net(), {"epoch": 3, "adam": {}, "model": state})
    with pytest.raises(ValueError, match=r"and 1 more\. Pass what the model's state_dict\(\) returns"):
        bare(load)(conv_net(), {5: X})
    with pytest.raises(ValueError, match=r"Its names begin with 'module\.', those of the model do not") as error:
        linearize(conv_net(), {f"module.{name}": t for name, t in state.items()})
    assert str(error.value).count("missing") == 6
    assert "unexpected" not in str(error.value)
    assert "and 9 more" in str(error.value)


# ------------------------------------------------------------------------------------------ parameters and outputs


def test_names_are_those_of_the_model() -> None:
    model = nn.Sequential()
    model.add_module("layer1", nn.Sequential(nn.Linear(3, 3), nn.ModuleDict({"conv": nn.Linear(3, 2)})["conv"]))
    lin = linearize(model)
    assert list(dict(lin.named_parameters())) == list(dict(model.named_parameters()))
    assert list(dict(linearize(nn.Linear(3, 2)).named_parameters())) == ["weight", "bias"]
    tied = ZOO["tied-linears"].build().model
    assert list(dict(linearize(tied).named_parameters())) == list(dict(tied.named_parameters()))


def test_frozen_and_unchosen_parameters_are_constants() -> None:
    model, x, _ = ZOO["frozen-layer"].build()
    assert "2.weight" not in dict(linearize(model).named_parameters())
    lin = moved(linearize(model, params="4.*"))
    assert list(lin.displacement()) == ["4.weight", "4.bias"]
    J = oracle.jacobian(model, x, keep=lambda name, _: name.startswith("4."))
    assert_close(lin(x), oracle.outputs(model, x) + J @ flat(lin))


def test_a_parameter_that_is_frozen_later_keeps_its_displacement() -> None:
    model = conv_net()
    lin = moved(linearize(model))
    y = lin(X)
    lin.get_parameter("0.weight").requires_grad_(False)
    assert_close(lin(X), y.detach(), 0)


@pytest.mark.parametrize("shape", [(), (5,), (5, 2), (5, 2, 2, 1)])
def test_the_output_keeps_its_shape(shape: tuple[int, ...]) -> None:
    def wiring(self: Wired, x: Tensor) -> Tensor:
        y = torch.tanh(self.lin(x))
        return y[:, : math.prod(shape[1:])].reshape(shape) if shape else y.mean()

    model, x = Wired(wiring, lin=nn.Linear(3, 4)).double(), torch.randn(5, 3).double()
    lin = moved(linearize(model))
    assert lin(x).shape == shape
    f = model(x)
    rows = [torch.autograd.grad(entry, list(model.parameters()), retain_graph=True) for entry in f.flatten()]
    w = torch.stack([torch.cat([g.flatten() for g in row]) @ flat(lin) for row in rows]).view_as(f)
    assert_close(lin(x), f.detach() + w)


def test_outputs_are_picked_by_key_attribute_or_logits() -> None:
    model, x, _ = ZOO["language-model"].build()
    assert_close(linearize(model)(**x), oracle.outputs(model, x, lambda y: y.logits))
    assert_close(linearize(model, output="hidden")(**x), oracle.outputs(model, x, lambda y: y.hidden))
    model, x, _ = ZOO["dict-output"].build()
    assert_close(linearize(model, output="features")(x), oracle.outputs(model, x, lambda y: y["features"]))
    with pytest.raises(ValueError, match="has no 'loss' for output='loss'"):
        linearize(model, output="loss")(x)
    model, x, _ = ZOO["tuple-output"].build()
    with pytest.raises(ValueError, match=r"output is a tuple, not a floating-point tensor\. Pass output="):
        linearize(model)(x)
    with pytest.raises(ValueError, match=r"output is a tensor of torch\.int64"):
        linearize(model, output=lambda y: y[1].argmax(1))(x)


def test_a_network_may_ask_for_its_own_parameters() -> None:
    """As Hugging Face models do for their dtype; a backbone may be all frozen."""

    def wiring(self: Wired, x: Tensor) -> Tensor:
        x = x.to(next(self.stem.parameters()).dtype)
        return self.head(torch.tanh(self.stem(x))) * sum(p.sum() for p in self.head.parameters())

    model = Wired(wiring, stem=nn.Linear(3, 4), head=nn.Linear(4, 2)).double()
    model.stem.requires_grad_(False)
    x = torch.randn(5, 3)
    lin = moved(linearize(model))
    assert_close(lin(x), oracle.outputs(model, x) + oracle.jacobian(model, x) @ flat(lin))
    assert list(lin.theta0.parameters()) == []


def test_sparse_gradients_stay_sparse() -> None:
    model, x, _ = ZOO["embedding-sparse"].build()
    lin = linearize(model)
    lin(x).sum().backward()
    assert lin.get_parameter("0.weight").grad.is_sparse


# --------------------------------------------------------------------------------------------------- independence


def test_the_model_is_left_alone_and_lets_go() -> None:
    model = conv_net().train()
    model[5].weight.grad = torch.ones_like(model[5].weight)
    state = copy.deepcopy(model.state_dict())
    lin = moved(linearize(model))
    y = lin(X)
    y.sum().backward()
    assert model.training
    assert all(torch.equal(state[name], t) for name, t in model.state_dict().items())
    assert torch.equal(model[5].weight.grad, torch.ones_like(model[5].weight))
    assert model[0].weight.grad is None
    with torch.no_grad():
        for t in [*model.parameters(), model[1].running_mean]:
            t.add_(1)
    assert_close(lin(X), y.detach(), 0)


def test_train_leaves_the_network_in_eval() -> None:
    model = conv_net()
    f = oracle.outputs(model, X)
    lin = linearize(model.train())
    whole = nn.Sequential(lin, nn.Dropout())
    whole.train()
    assert lin.training
    assert not any(module.training for module in lin.theta0.modules())
    assert_close(lin(X), f)
    assert_close(lin.theta0[1].running_mean, model[1].running_mean, 0)
    assert not lin.eval().training


def test_a_copy_is_independent() -> None:
    lin = moved(linearize(conv_net()))
    y = lin(X)
    twin = copy.deepcopy(lin)
    assert_close(twin(X), y.detach(), 0)
    with torch.no_grad():
        twin.get_parameter("0.weight").add_(1)
        twin.theta0.get_buffer("5.bias").add_(1)
    assert (twin(X) - y).abs().min() > 0
    assert_close(lin(X), y.detach(), 0)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("name", ["lstm", "tied-embedding-and-output", "orthogonal", "weight-norm-old"])
def test_a_used_network_can_be_copied_and_moved(name: str) -> None:
    model, x, output = ZOO[name].build(torch.float32)
    oracle.forward(model, x)
    lin = moved(linearize(model, output=output))
    y = oracle.forward(lin, x).detach()
    if name != "weight-norm-old":  # torch itself cannot copy it once it was called
        lin = copy.deepcopy(lin)
        assert_close(oracle.forward(lin, x), y, 0)
    lin.double()
    assert_close(oracle.forward(lin, x.double() if x.is_floating_point() else x), y, 1e-5)
    assert all(t.dtype == torch.float64 for t in lin.state_dict().values() if t.is_floating_point())


@pytest.mark.parametrize("name", ["batchnorm2d", "tied-embedding-and-output", "frozen-layer"])
def test_the_state_dict_holds_the_whole_function(name: str, tmp_path: Path) -> None:
    model, x, _ = ZOO[name].build()
    lin = moved(linearize(model))
    other = copy.deepcopy(model)
    with torch.no_grad():
        for t in other.state_dict().values():
            if t.is_floating_point():
                t.add_(1)
    twin = linearize(other)
    assert (twin(x) - lin(x)).abs().max() > 0.1
    save_file({name: t.clone() for name, t in lin.state_dict().items()}, tmp_path / "lin.safetensors")
    twin.load_state_dict(load_file(tmp_path / "lin.safetensors"))
    assert_close(twin(x), lin(x).detach(), 0)
    assert set(lin.state_dict()) == {*dict(lin.named_parameters()), *(f"theta0.{key}" for key in model.state_dict())}


def test_trained_weights_go_back_into_the_network() -> None:
    model = conv_net()
    lin = moved(linearize(model))
    model.load_state_dict(lin.state_dict(), strict=False)
    assert all(torch.equal(p, lin.get_parameter(name)) for name, p in model.named_parameters())


# ------------------------------------------------------------------------------------------------- torch's own tools


def test_it_can_be_pickled_whole() -> None:
    lin, file = moved(linearize(conv_net())), io.BytesIO()
    y = lin(X)
    torch.save(lin, file)
    file.seek(0)
    assert_close(torch.load(file, weights_only=False)(X), y.detach(), 0)


def test_importing_leaves_the_compiler_alone() -> None:
    """It takes seconds, and most programs never compile."""
    code = "import sys, torch; known = set(sys.modules); import torchtangent; print(*(set(sys.modules) - known))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    new = done.stdout.split()
    assert "torchtangent.linear.tangent" in new
    heavy = ("torch._dynamo", "torch._inductor", "torch.distributed", "torch.onnx", "sympy", "scipy")
    assert not [name for name in new if name.startswith(heavy)]


def test_the_primal_records_no_graph_and_runs_once() -> None:
    model, calls = conv_net(), []
    model[0].register_forward_hook(lambda *_: calls.append(1))
    lin = linearize(model)
    lin(X)
    calls.clear()
    total = lin(X).grad_fn
    assert len(calls) == 1
    assert total.next_functions[0][0] is None  # f(θ₀); the other is J(θ − θ₀)
    assert total.next_functions[1][0] is not None


def test_autocast() -> None:
    lin = moved(linearize(conv_net(torch.float32)), 0.1)
    x = X.float()
    exact = gradient(lin, x, torch.ones(4, 3))
    with torch.autocast("cpu", torch.bfloat16):
        y = lin(x)
    assert y.dtype == torch.bfloat16
    assert_close(y, lin(x).detach(), 2e-2)
    lin.zero_grad()
    y.backward(torch.ones_like(y))
    assert_close(torch.cat([p.grad.flatten() for p in lin.parameters()]), exact, 2e-2)


def test_norms_are_called_as_the_model_does() -> None:
    """By keyword, and with inputs of another dtype than their weights."""
    by_name = Wired(lambda self, x: self.norm(input=self.lin(x)), lin=nn.Linear(3, 4), norm=nn.LayerNorm(4))
    x = torch.randn(5, 3)
    assert_close(linearize(by_name)(x), by_name(x).detach(), 1e-6)
    with torch.autocast("cpu", torch.bfloat16):
        assert_close(linearize(by_name)(x), by_name(x).detach(), 2e-2)


@pytest.mark.usefixtures("quiet")
def test_half_precision_around_a_float32_norm() -> None:
    model = conv_net(torch.float32).bfloat16()
    model[1].float()
    x = X.bfloat16()
    f = model(x).detach()
    lin = moved(linearize(model), 0.1)
    full = moved(linearize(model.float()), 0.1)
    y = lin(x)
    assert y.dtype == f.dtype == torch.bfloat16
    assert_close(y, full(X.float()).detach(), 3e-2)


class Break(nn.Module):
    """Where torch.compile has to stop and begin anew."""

    def forward(self, x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return torch.tanh(x)


@pytest.mark.usefixtures("quiet")
@pytest.mark.filterwarnings("ignore")  # torch has much to say while it traces
@pytest.mark.parametrize("kind", [nn.Tanh, Break])
def test_compile(kind: type[nn.Module]) -> None:
    x = torch.randn(4, 3).double()
    lin = moved(linearize(nn.Sequential(nn.Linear(3, 2, bias=False), kind(), nn.LayerNorm(2, bias=False)).double()))
    want, u = lin(x).detach(), torch.randn(4, 2).double()
    grads = gradient(lin, x, u)
    torch._dynamo.reset()
    fast = torch.compile(lin, backend="aot_eager")
    assert_close(fast(x), want)
    want = moved(lin)(x).detach()
    y = fast(x)
    assert_close(y, want)
    lin.zero_grad()
    y.backward(u)
    assert_close(torch.cat([p.grad.flatten() for p in lin.parameters()]), grads)


def test_of_a_compiled_model_it_takes_the_module() -> None:
    model = conv_net()
    lin = linearize(torch.compile(model, backend="aot_eager"))
    assert list(lin.displacement()) == list(dict(model.named_parameters()))
    assert_close(lin(X), oracle.outputs(model, X))


def test_inference_mode() -> None:
    lin = moved(linearize(conv_net()))
    with torch.inference_mode():
        y = lin(X.clone())
    assert_close(y, lin(X).detach(), 0)
    with torch.inference_mode(), pytest.raises(RuntimeError, match="inference_mode"):
        linearize(conv_net())


@pytest.mark.usefixtures("quiet")
def test_functional_transforms_after_a_first_call() -> None:
    model = conv_net()
    lin = moved(linearize(model))
    lin(X)
    params = {name: p.detach() for name, p in lin.named_parameters()}

    def f(params: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(lin, params, (x[None],))[0]

    J = torch.func.vmap(torch.func.jacrev(f), (None, 0))(params, X)
    assert_close(torch.cat([j.flatten(2) for j in J.values()], 2), oracle.jacobian(model, X))


def test_products_inside_functional_transforms() -> None:
    """Samples and ensembles of weights by vmap, and a derivative along the weights by jvp."""
    model = conv_net()
    lin = moved(linearize(model))
    expected = lin(X).detach()
    theta = {name: p.detach() for name, p in lin.named_parameters()}
    step = {name: torch.randn_like(p) for name, p in theta.items()}
    along = torch.einsum("ncp,p->nc", oracle.jacobian(model, X), torch.cat([t.flatten() for t in step.values()]))

    def f(params: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(lin, params, (x,))

    assert_close(torch.func.vmap(lambda x: f(theta, x[None])[0])(X), expected)
    ensemble = {name: torch.stack([p, p + step[name]]) for name, p in theta.items()}
    assert_close(torch.func.vmap(f, (0, None))(ensemble, X), torch.stack([expected, expected + along]))
    assert_close(torch.func.jvp(lambda p: f(p, X), (theta,), (step,))[1], along)


@pytest.mark.usefixtures("quiet")
def test_functional_transforms_need_forward_mode_and_a_first_call() -> None:
    new, bag = linearize(conv_net()), linearize(nn.EmbeddingBag(5, 2, padding_idx=0))
    index = torch.tensor([[1], [2]])
    bag(index)
    for lin, x in ((new, X), (bag, index)):
        params = {name: p.detach() for name, p in lin.named_parameters()}
        with pytest.raises(RuntimeError, match=r"inside torch\.func only in forward mode"):
            torch.func.jacrev(lambda p, lin=lin, x=x: torch.func.functional_call(lin, p, (x,)))(params)


# ---------------------------------------------------------------------------------------------- what is said, and when


def switches() -> tuple[bool, ...]:
    return (
        torch.backends.mha.get_fastpath_enabled(),
        torch.backends.mkldnn.enabled,
        torch.backends.cudnn.enabled,
        torch.backends.cuda.flash_sdp_enabled(),
    )


@pytest.mark.parametrize(("name", "kind"), [("attention", "MultiheadAttention 'attention'"), ("lstm", "LSTM 'cell'")])
def test_fused_layers_are_said_once_and_only_off_inside(name: str, kind: str) -> None:
    model, x, _ = ZOO[name].build(torch.float32)
    before, inside = switches(), []
    model.head.register_forward_hook(lambda *_: inside.append(switches()))
    with pytest.warns(tt.TangentWarning, match=f"{kind} runs without its fused kernels") as said:
        lin = linearize(model)
    lin(x)
    lin(x)
    assert len(said) == 1
    assert switches() == before
    assert inside[-1][3] is False
    assert inside[-1][:2] == ((False, True) if name == "attention" else (True, False))
    with pytest.raises((RuntimeError, AssertionError), match=r"(?i)expect"):
        lin(x[..., :-1])
    assert switches() == before


@pytest.mark.parametrize("name", SLOW)
def test_a_slow_way_is_said_once(name: str) -> None:
    model, x, output = ZOO[name].build()
    lin = linearize(model, output=output)
    how = "one reverse pass for each entry" if name == "embedding-bag" else "two reverse passes"
    with pytest.warns(tt.TangentWarning, match=rf"takes {how}.*\(exact, but slower\)") as said:
        lin(x)
    lin(x)
    assert len(said) == 1


@pytest.mark.usefixtures("quiet")
def test_padding_that_the_first_batch_lacks() -> None:
    model = nn.Sequential(nn.Embedding(5, 3, padding_idx=0), nn.Flatten(), nn.Linear(6, 2)).double()
    lin = moved(linearize(model))
    lin(torch.tensor([[1, 2], [3, 4]]))
    x = torch.tensor([[0, 1], [2, 0]])
    assert_close(lin(x), oracle.outputs(model, x) + oracle.jacobian(model, x) @ flat(lin))


def test_what_cannot_be_linearized_is_named() -> None:
    with pytest.raises(TypeError, match=r"should be an nn\.Module, got a Tensor\."):
        bare(unwrapped)(X)
    with pytest.raises(ValueError, match=r"linearized already"):
        linearize(linearize(conv_net()))
    with pytest.raises(ValueError, match="Linear has no trainable parameters"):
        linearize(nn.Linear(2, 2).requires_grad_(False))
    with pytest.raises(ValueError, match=r"pattern '7\.\*' matches no trainable parameter"):
        linearize(conv_net(), params="7.*")
    with pytest.raises(ValueError, match="BatchNorm1d '0' keeps no running statistics"):
        linearize(nn.Sequential(nn.BatchNorm1d(2, track_running_stats=False)))
    with pytest.raises(ValueError, match=r"NaN or infinity \(first at sample 2"):
        linearize(conv_net())(X.index_fill(0, torch.tensor(2), torch.nan))
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        linearize(nn.Linear(3, 2))(torch.randn(4, 5))

    def noisy(self: Wired, x: Tensor) -> Tensor:
        return self.lin(x * torch.rand(()))

    with pytest.raises(ValueError, match=r"contradict each other.*random numbers"):
        linearize(Wired(noisy, lin=nn.Linear(3, 2)))(torch.randn(4, 3))
    with pytest.raises(ValueError, match=r"a part called 'theta0'.*Rename it"):
        linearize(Wired(noisy, theta0=nn.Linear(3, 2)))


# ------------------------------------------------------------------------------------------------------ on a GPU


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")  # torch's, in the backward thread's first product
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("half", [None, torch.float16])
@pytest.mark.parametrize(
    "name", ["lenet", "residual-gelu", "vision-transformer", "attention", "lstm", "gru", "embedding"]
)
def test_on_a_gpu(name: str, half: torch.dtype | None) -> None:
    """cuDNN's convolutions and recurrent layers, flash attention, autocast: moved there after a first call here."""
    model, x, _ = ZOO[name].build()
    J, f0 = oracle.jacobian(model, x), oracle.outputs(model, x)
    lin = moved(linearize(model), 0.1)
    lin(x)
    lin.float().cuda()
    x = x.to("cuda", torch.float32) if x.is_floating_point() else x.cuda()
    with torch.autocast("cuda", half, enabled=half is not None):
        y = lin(x)
    assert_close(y.cpu(), f0 + J @ flat(lin).double().cpu(), 1e-5 if half is None else 1e-2)
    u = torch.randn(y.shape).to(y)
    y.backward(u)
    got = torch.cat([torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in lin.parameters()])
    want = torch.einsum("k,kp->p", u.double().cpu().flatten(), J.flatten(0, -2))
    assert_close(got.cpu(), want, 1e-5 if half is None else 2e-2)


class Held(nn.Module):
    """A weight that is used twice, the second time by other ways than as an attribute."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3, bias=False), nn.Linear(3, 2)
        weight = self.a.weight
        self.again: Any = {"list": [weight], "closure": lambda h: F.linear(h, weight), "hook": None}[how]
        if how == "hook":
            self.b.register_forward_hook(lambda module, args, y: y * weight.sum())

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.a(x))
        if isinstance(self.again, list):
            h = F.linear(h, self.again[0])
        return self.b(self.again(h) if callable(self.again) else h)


@pytest.mark.parametrize("make", [linearize, lambda model: tt.lazy(model, 10.0)])
@pytest.mark.parametrize("how", ["list", "closure", "hook"])
def test_parameters_that_a_copy_would_not_follow_are_refused(how: str, make: Callable) -> None:
    x = torch.randn(4, 3)
    with pytest.raises(ValueError, match=r"uses parameters \(of shape \(3, 3\)\) that it reaches in other ways"):
        make(Held(how))(x)
    model = Held(how).double()
    assert_close(tt.jacobian(model, x.double()).dense(), oracle.jacobian(model, x.double()))  # the engine takes them


class Head(nn.Module):
    """A network whose last part is linearized, or lazy."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.below, self.head = nn.Linear(5, 4).double(), head

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.below(x)))


ALPHA = 3.0
HEADS: dict[str, Callable[[nn.Module], nn.Module]] = {"linearize": linearize, "lazy": lambda m: tt.lazy(m, ALPHA)}


@pytest.mark.filterwarnings("ignore::torchtangent.notice.TangentWarning")
@pytest.mark.parametrize("kind", HEADS)
def test_it_may_be_the_head_of_a_network(kind: str) -> None:
    """f₀ + J(θ − θ₀), or f₀ + α(f − f₀), written down, is differentiated by what is below too."""
    torch.manual_seed(0)
    bare = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).double()
    start = {name: p.detach().clone() for name, p in bare.named_parameters()}
    net, x = Head(HEADS[kind](bare)), torch.randn(7, 5, dtype=torch.float64)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.3 * torch.randn_like(p))
    theta = dict(net.head.named_parameters())

    def written() -> Tensor:
        z = torch.tanh(x @ net.below.weight.T + net.below.bias)
        a, u = torch.tanh(z @ start["0.weight"].T + start["0.bias"]), {k: theta[k] - start[k] for k in start}
        f0 = a @ start["2.weight"].T + start["2.bias"]
        if kind == "lazy":
            b = torch.tanh(z @ theta["0.weight"].T + theta["0.bias"])
            return f0 + ALPHA * (b @ theta["2.weight"].T + theta["2.bias"] - f0)
        moved = (1 - a**2) * (z @ u["0.weight"].T + u["0.bias"])
        return f0 + moved @ start["2.weight"].T + a @ u["2.weight"].T + u["2.bias"]

    params = list(net.parameters())
    f, expected = net(x), written()
    assert_close(f, expected.detach())
    grads = [grad(entry, params, retain_graph=True) for entry in expected.flatten()]
    J = torch.stack([torch.cat([t.flatten() for t in g]) for g in grads])
    u = torch.randn_like(f)
    assert_close(torch.cat([t.flatten() for t in grad(f, params, u)]), u.flatten() @ J)
    assert_close(tt.ntk(net, x), (J @ J.T).view(7, 2, 7, 2).transpose(1, 2))


@pytest.mark.filterwarnings("ignore::torchtangent.notice.TangentWarning")
@pytest.mark.parametrize("make", HEADS.values(), ids=HEADS)
def test_inputs_may_be_made_of_parameters(make: Callable[[nn.Module], nn.Module]) -> None:
    """But in the network itself those that a copy would not follow are still refused."""
    model, p = nn.Linear(3, 1).double(), nn.Parameter(torch.randn(5, 3, dtype=torch.float64))
    assert_close(grad(make(model)(p + 0).sum(), p)[0], model.weight.detach().expand(5, 3))
    squashed, scale = nn.Sequential(model, nn.Tanh()), ALPHA if make is HEADS["lazy"] else 1.0
    found, expected = (tt.anisotropy.directions(net, 3).values for net in (make(squashed), squashed))
    assert_close(found, scale * expected)
    with pytest.raises(ValueError, match=r"uses parameters \(of shape \(3, 3\)\) that it reaches in other ways"):
        make(Held("closure").double())(p + 0)


class _Gate(nn.Module):
    """Forward mode does not know of `no_grad`."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4, bias=False), nn.Linear(4, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            gate = torch.sigmoid(self.a(x))
        return self.b(torch.tanh(self.a(x)) * gate)


@pytest.mark.filterwarnings("ignore:The linearization takes", "ignore:J @ v takes")
def test_a_first_batch_that_shows_nothing_decides_nothing() -> None:
    torch.manual_seed(0)
    model, x = _Gate().double(), torch.randn(5, 4, dtype=torch.float64)
    lin = tt.linearize(model)
    lin(torch.zeros(2, 4, dtype=torch.float64))
    with torch.no_grad():
        for p in lin.parameters():
            p.add_(1.0)
        expected = model(x) + tt.jacobian(model, x) @ lin.displacement()
    torch.testing.assert_close(lin(x), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["_names", "_bias", "_frozen", "_ways", "_attention", "_model", "_alpha"])
def test_parts_may_have_private_names(name: str) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    model.add_module(name, nn.Linear(3, 2))
    x = torch.randn(4, 3)
    for made in (tt.linearize(model), tt.lazy(model, 2.0)):
        torch.testing.assert_close(made(x), model(x))
        assert f"{name}.weight" in dict(made.named_parameters())


def test_each_kind_of_call_settles_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parameter without a part never shows its gradient: the trials end all the same, with autocast and without."""
    module = sys.modules[Linearized.__module__]
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    model.idle = nn.Parameter(torch.zeros(2))
    lin, x, made = linearize(model), torch.randn(5, 3), []
    original = module.choose
    monkeypatch.setattr(module, "choose", lambda *args: made.append(1) or original(*args))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(6):
            lin(x)
    first = len(made)
    for _ in range(12):
        lin(x)
    assert len(made) <= 2 * first
    assert first < 6


@pytest.mark.filterwarnings("ignore:`torch.jit.script")
def test_a_scripted_model_is_refused_in_words() -> None:
    for make in (tt.linearize, lambda model: tt.lazy(model, alpha=2.0)):
        with pytest.raises(TypeError, match="scripted or traced"):
            make(torch.jit.script(nn.Linear(2, 1)))


def test_parts_with_the_names_of_methods_are_explained() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.displacement = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.displacement(x)

    with pytest.raises(ValueError, match=r"a part called 'displacement', as Linearized has itself"):
        tt.linearize(Named())
