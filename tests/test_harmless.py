"""After any public call, also one that fails half-way, the model and the world are as before."""

from __future__ import annotations

import copy
import inspect
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.utils import parametrizations

import torchtangent as tt

pytestmark = pytest.mark.usefixtures("quiet")


class Boom(Exception):
    """What goes wrong half-way."""


class FragileIdentity(torch.autograd.Function):
    """The identity, whose backward may fail."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, fuse: Fuse) -> Tensor:
        ctx.fuse = fuse
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        ctx.fuse.burn()
        return grad.clone(), None


class Fuse:
    """Counts down and then raises, every time."""

    def __init__(self, left: int | None) -> None:
        self.left = left

    def burn(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Boom


class Everything(nn.Module):
    """Layers with rules, a bare parameter, a parametrization, an LSTM, a counter, randomness, user hooks."""

    def __init__(self, forward_fuse: Fuse, backward_fuse: Fuse) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 3, 2)
        self.bn = nn.BatchNorm1d(3)
        self.frozen = nn.Linear(3, 3)
        self.frozen.requires_grad_(False)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.normed = parametrizations.spectral_norm(nn.Linear(3, 3))
        self.lstm = nn.LSTM(3, 2, batch_first=True)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(2, 3)
        self.register_buffer("calls", torch.zeros(()))
        self.fuses = (forward_fuse, backward_fuse)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu_(self.bn(self.conv(x))).transpose(1, 2)
        h = self.scale * self.normed(self.frozen(h)) + 0 * torch.rand(())
        h = self.head(self.dropout(self.lstm(h)[0][:, -1]))
        self.fuses[0].burn()
        self.calls += 1
        if self.fuses[1].left is not None:
            h = FragileIdentity.apply(h, self.fuses[1])
        return h


class Simple(nn.Module):
    """Only layers with rules, so that nothing is run by the fallback."""

    def __init__(self, forward_fuse: Fuse, backward_fuse: Fuse) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 4), nn.LayerNorm(4), nn.ReLU(inplace=True), nn.Linear(4, 3))
        self.fuses = (forward_fuse, backward_fuse)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x.flatten(1))
        self.fuses[0].burn()
        return h if self.fuses[1].left is None else FragileIdentity.apply(h, self.fuses[1])


MODELS = {"everything": Everything, "simple": Simple}


def seen(module: nn.Module, *args: Any) -> None:
    """A hook of the user's own."""


def make(name: str, forward: int | None = None, backward: int | None = None) -> nn.Module:
    """A model with gradients, hooks of the user's, and submodules in either mode."""
    model = MODELS[name](Fuse(forward), Fuse(backward)).double().eval()
    for p in model.parameters():
        if p.requires_grad:
            p.grad = torch.randn_like(p)
    last = [m for m in model.modules() if isinstance(m, nn.Linear)][-1]
    last.register_forward_hook(seen)
    last.register_full_backward_hook(seen)
    last.train()
    next(iter(model.parameters())).register_hook(lambda g: None)
    return model


class Data:
    """A loader of two batches that may fail before one of them."""

    def __init__(self, fuse: Fuse | None = None) -> None:
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(5, 2, 4, dtype=torch.float64, generator=generator)
        self.y = torch.tensor([0, 2, 1, 1, 0])
        self.fuse = fuse or Fuse(None)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for part in (slice(0, 3), slice(3, 5)):
            self.fuse.burn()
            yield self.x[part], self.y[part]


def size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def v(model: nn.Module) -> Tensor:
    return torch.ones(size(model), dtype=torch.float64)


losses = nn.CrossEntropyLoss(reduction="none")
Call = Callable[[nn.Module, Data, Any], object]
Picker = Callable[[Any], Tensor] | None

JACOBIAN: dict[str, Call] = {
    "jacobian": lambda m, data, pick: tt.jacobian(m, data.x, output=pick),
    "jacobian subset": lambda m, data, pick: tt.jacobian(m, data.x, params="*bias*", output=pick).dense(),
    "jacobian dense": lambda m, data, pick: tt.jacobian(m, data.x, output=pick).dense(),
    "jacobian layers": lambda m, data, pick: [
        layer.dense() for layer in tt.jacobian(m, data.x, output=pick).layers.values()
    ],
    "jacobian @": lambda m, data, pick: tt.jacobian(m, data.x, output=pick) @ v(m),
    "gradients": lambda m, data, pick: tt.gradients(m, (data.x, data.y), losses, output=pick).dense(),
    "gradients @": lambda m, data, pick: tt.gradients(m, (data.x, data.y), losses, output=pick) @ v(m),
    "jacobian.T @": lambda m, data, pick: tt.jacobian(m, data.x, output=pick).T @ torch.ones(5, 3).double(),
}
KERNEL: dict[str, Call] = {
    "ntk": lambda m, data, pick: tt.ntk(m, data.x, output=pick),
    "ntk sum": lambda m, data, pick: tt.ntk(m, data.x, data.x[:2], output=pick, reduce="sum", per_layer=True),
    "ntk half": lambda m, data, pick: tt.ntk(m, data.x, output=pick, reduce="diag", precision="float16"),
}
FISHER: dict[str, Call] = {
    f"fisher {name} {kind}": lambda m, data, pick, name=name, kind=kind: (
        tt.fisher(m, data, getattr(tt, name), kind=kind, output=pick) @ v(m)
    )
    for name in (["Dense", "Diagonal", "BlockDiagonal", "QuasiDiagonal", "KFAC", "EKFAC", "LowRank", "Implicit"])
    for kind in ("exact", "sampled", "empirical")
}
OTHERS: dict[str, Call] = {
    "fisher mix": lambda m, data, pick: tt.fisher(m, data, {"*": tt.KFAC}, output=pick),
    "hessian": lambda m, data, pick: tt.hessian(m, data, nn.functional.cross_entropy, output=pick) @ v(m),
    "gauss_newton EKFAC": lambda m, data, pick: tt.gauss_newton(
        m, data, nn.functional.cross_entropy, tt.EKFAC, output=pick
    ),
    "gauss_newton Implicit": lambda m, data, pick: (
        tt.gauss_newton(m, data, nn.functional.cross_entropy, tt.Implicit, output=pick) @ v(m)
    ),
}
TASKS: dict[str, Call] = {
    "alignment.target": lambda m, data, pick: tt.alignment.target(m, data.x, torch.ones(5, 3).double(), output=pick),
    "alignment.target many": lambda m, data, pick: tt.alignment.target(
        m, data.x, torch.ones(5, 3, 4).double(), output=pick
    ),
    "alignment.rank_tasks": lambda m, data, pick: tt.alignment.rank_tasks(m, data.x, {"y": data.y}, output=pick),
    "anisotropy.directions": lambda m, data, pick: tt.anisotropy.directions(
        m, (2, 4), k=2, x=data.x, output=lambda f: (f if pick is None else pick(f))[:, 0]
    ),
    "complexity.feature_norm": lambda m, data, pick: tt.complexity.feature_norm(m, data.x, output=pick),
    "complexity.fisher_rao": lambda m, data, pick: tt.complexity.fisher_rao(m, data.x, data.y, output=pick),
    "TangentProbe": lambda m, data, pick: tt.TangentProbe(m, data.x, data.y, output=pick).log(0),
    "Trajectory": lambda m, data, pick: tt.complexity.Trajectory(m, data.x, output=pick).step(),
}
CALLS = JACOBIAN | KERNEL | FISHER | OTHERS | TASKS
LOADER_CALLS = FISHER | OTHERS
WITHOUT_MODEL = {"flatten", "load", "load_kernel"}
CLASSES = {"TangentProbe", "Trajectory"}
NOT_HERE = {
    "linearize",  # it makes a copy before anything else
    "lazy",  # it is the model that it is given, to be trained
    "complexity.measures",  # it takes networks of a few kinds of layers only, and works on a copy
}


def tensor_state(t: Tensor | None) -> tuple | None:
    """A tensor's identity, place, value, flag and hooks."""
    if t is None:
        return None
    hooks = tuple((t._backward_hooks or {}).values()) if t.is_leaf else ()
    post = tuple((getattr(t, "_post_accumulate_grad_hooks", None) or {}).values())
    return id(t), t.data_ptr(), t.detach().flatten().tolist(), t.requires_grad, t.dtype, hooks, post


def snapshot(model: nn.Module) -> dict[str, Any]:
    """All that a call may not change, of the model and of the process."""
    state: dict[str, Any] = {}
    for name, module in model.named_modules():
        state[f"type of {name}"] = type(module)
        state[f"mode of {name}"] = module.training
        state[f"attributes of {name}"] = sorted(vars(module))
        for key, value in vars(module).items():
            if "hook" in key and isinstance(value, dict):
                state[f"{key} of {name}"] = list(value.values())
            elif key in ("_parameters", "_buffers", "_modules"):
                state[f"{key} of {name}"] = [(k, id(t)) for k, t in value.items()]
    for name, p in model.named_parameters():
        state[f"parameter {name}"] = tensor_state(p)
        state[f"gradient of {name}"] = tensor_state(p.grad)
    for name, buffer in model.named_buffers():
        state[f"buffer {name}"] = tensor_state(buffer)
    for key, value in vars(torch_module).items():
        if key.startswith("_global_") and isinstance(value, dict):
            state[key] = list(value.values())
    state["torch rng"] = torch.get_rng_state().tolist()
    state["grad mode"] = torch.is_grad_enabled()
    state["inference mode"] = torch.is_inference_mode_enabled()
    state["default dtype"] = torch.get_default_dtype()
    state["threads"] = torch.get_num_threads()
    state["deterministic"] = torch.are_deterministic_algorithms_enabled()
    state["anomaly"] = torch.is_anomaly_enabled()
    state["warning filters"] = list(warnings.filters)
    return state | switches()


def switches() -> dict[str, Any]:
    """What torch does in the whole process."""
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    return {
        "mkldnn": torch.backends.mkldnn.enabled,
        "cudnn": cudnn.enabled,
        "attention": torch.backends.mha.get_fastpath_enabled(),
        "sdp": (cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled()),
        "cudnn sdp": cuda.cudnn_sdp_enabled(),
        "tf32": (cuda.matmul.fp32_precision, cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision),
    }


def assert_unchanged(before: dict[str, Any], model: nn.Module) -> None:
    after = snapshot(model)
    changed = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    assert not changed


def test_the_registry_is_complete() -> None:
    """Every public function is called here, so that none can skip these checks."""
    functions = {name for name in tt.__all__ if inspect.isfunction(getattr(tt, name))} - WITHOUT_MODEL
    for room in ("alignment", "anisotropy", "complexity"):
        public = {name: getattr(getattr(tt, room), name) for name in getattr(tt, room).__all__}
        taking = [n for n, f in public.items() if inspect.isfunction(f) and "model" in inspect.signature(f).parameters]
        functions |= {f"{room}.{name}" for name in taking}
    assert functions - NOT_HERE == {name.split()[0].removesuffix(".T") for name in CALLS} - CLASSES
    representations = {
        name
        for name in tt.__all__
        if inspect.isclass(getattr(tt, name)) and tt.Dense.__mro__[1] in getattr(tt, name).__mro__[1:]
    }
    assert representations == {name.split()[1] for name in FISHER}


def test_the_snapshot_sees_changes() -> None:
    """A snapshot that misses a change would make every test here pass."""

    def each_change() -> Iterator[Callable[[nn.Module], object]]:
        yield lambda m: m.head.register_forward_hook(seen)
        yield lambda m: m.head.register_forward_pre_hook(seen)
        yield lambda m: m.scale.register_hook(lambda g: g)
        yield lambda m: m.frozen.requires_grad_(True)
        yield lambda m: m.scale.requires_grad_(False)
        yield lambda m: m.train()
        yield lambda m: m.bn.running_mean.add_(1)
        yield lambda m: setattr(m.scale, "grad", None)
        yield lambda m: m.head.weight.grad.add_(1)
        yield lambda m: m.head.weight.data.mul_(2)
        yield lambda m: setattr(m.head, "weight", nn.Parameter(m.head.weight.detach().clone()))
        yield lambda m: setattr(m.head, "forward", m.head.forward)
        yield lambda m: torch.rand(())

    for change in each_change():
        model = make("everything")
        before = snapshot(model)
        assert_unchanged(before, model)
        change(model)
        with pytest.raises(AssertionError):
            assert_unchanged(before, model)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("call", CALLS)
def test_after_a_call(call: str, name: str) -> None:
    model, data = make(name), Data()
    before, x = snapshot(model), data.x.clone()
    CALLS[call](model, data, None)
    assert_unchanged(before, model)
    assert torch.equal(data.x, x)
    assert data.x.grad is None


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("call", ["jacobian dense", "fisher Diagonal exact", "fisher Implicit exact", "hessian"])
def test_grad_mode_is_kept(call: str, grad: bool) -> None:
    model = make("everything")
    with torch.set_grad_enabled(grad):
        before = snapshot(model)
        CALLS[call](model, Data(), None)
        assert_unchanged(before, model)


def survives(model: nn.Module, call: str, pick: Picker = None) -> bool:
    """Whether a call comes to its end; either way it leaves nothing behind."""
    before = snapshot(model)
    try:
        CALLS[call](model, Data(), pick)
    except Boom:
        return False
    finally:
        assert_unchanged(before, model)
    return True


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("call", CALLS)
def test_after_a_forward_that_fails(call: str, name: str) -> None:
    """The model runs k times and then only fails: the call says so and leaves nothing behind."""
    assert not survives(make(name, forward=0), call), "a model that cannot run gave a result"
    for k in (1, 2):
        survives(make(name, forward=k), call)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("call", CALLS)
def test_after_a_backward_that_fails(call: str, name: str) -> None:
    alive = survives(make(name, backward=0), call)
    assert not alive or call == "jacobian", "a model that has no backward pass gave a result"
    for k in (1, 2):
        survives(make(name, backward=k), call)


@pytest.mark.parametrize("call", LOADER_CALLS)
def test_after_a_loader_that_fails(call: str) -> None:
    """The second batch never comes."""
    model = make("everything")
    before = snapshot(model)
    with pytest.raises(Boom):
        LOADER_CALLS[call](model, Data(Fuse(1)), None)
    assert_unchanged(before, model)


@pytest.mark.parametrize("call", CALLS)
def test_after_an_output_picker_that_fails(call: str) -> None:
    for k in (0, 1, 2):
        model, fuse = make("simple"), Fuse(k)

        def pick(y: Tensor, fuse: Fuse = fuse) -> Tensor:
            fuse.burn()
            return y

        assert not survives(model, call, pick) or k > 0


def test_after_a_refusal() -> None:
    """A call that is refused (BatchNorm in training mode) leaves the running statistics alone."""
    model = make("everything").train()
    before = snapshot(model)
    for name, call in CALLS.items():
        if name not in CLASSES:  # these measure while it trains
            with pytest.raises(ValueError, match="training mode"):
                call(model, Data(), None)
            assert_unchanged(before, model)


def test_the_model_can_be_copied_and_trained_afterwards() -> None:
    model, data = make("everything"), Data()
    tt.fisher(model, data, tt.EKFAC)
    twin = copy.deepcopy(model)
    for net in (model, twin):
        net.zero_grad()
        nn.functional.cross_entropy(net(data.x), data.y).backward()
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        if p.requires_grad:
            assert p.grad.norm() > 0
            assert torch.equal(p.grad, q.grad)


class LastStep(nn.Module):
    """The last step of an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0][:, -1]


def test_after_calls_in_many_threads() -> None:
    """Whoever leaves first leaves the others' switches alone, and the last one out turns all of them back."""
    x, failed = torch.randn(3, 2, 4), []

    def work(i: int) -> None:
        mlp = nn.Sequential(nn.Flatten(), nn.Linear(8, 3), nn.Tanh(), nn.Linear(3, 2))
        lstm, line = LastStep(), tt.linearize(mlp)
        try:
            for _ in range(10):
                tt.jacobian(mlp, x).dense()
                tt.jacobian(lstm, x).dense()
                line(x)
        except Exception as error:
            failed.append(error)

    before, interval = switches(), sys.getswitchinterval()
    with warnings.catch_warnings():  # their filters are for one thread
        sys.setswitchinterval(1e-5)
        try:
            threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            sys.setswitchinterval(interval)
    assert not failed
    assert switches() == before


@pytest.mark.parametrize("shared", [True, False])
def test_numbers_in_many_threads(shared: bool) -> None:
    """torch has forward mode in one thread at a time, and would give wrong numbers in several."""
    torch.manual_seed(0)
    x, v = torch.randn(5, 6).double(), torch.randn(83).double()
    models = [nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double() for _ in range(3)]
    models = [models[0]] * 3 if shared else models
    products = {
        "J": [tt.jacobian(model, x).dense() @ v for model in models],
        "F": [tt.fisher(model, (x, None), tt.Dense).dense() @ v for model in models],
        "K": [tt.ntk(model, x) for model in models],
    }
    failed: list[Any] = []

    def work(i: int) -> None:
        try:
            for _ in range(10):
                found = {
                    "J": tt.jacobian(models[i], x) @ v,
                    "F": tt.fisher(models[i], (x, None), tt.Implicit) @ v,
                    "K": tt.ntk(models[i], x),
                }
                failed.extend(name for name, t in found.items() if not torch.allclose(t, products[name][i]))
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


class Interrupted(nn.Module):
    """Lets another thread work while the model is called, as long as that does not wait for the call to end."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.threads = threading.get_ident(), list[threading.Thread]()
        self.work: Callable[[], None] | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.work is not None and threading.get_ident() == self.own:
            self.threads.append(threading.Thread(target=self.work))
            self.threads[-1].start()
            self.threads[-1].join(0.05)
        return x

    def __deepcopy__(self, memo: Any) -> nn.Module:
        return nn.Identity()


COPIES: dict[str, Callable[[nn.Module, Tensor], object]] = {
    "linearize": lambda model, x: tt.linearize(model),
    "lazy": lambda model, x: tt.lazy(model, 2.0),
    "measures": lambda model, x: tt.complexity.measures(model, START, x, torch.tensor([0, 1, 2, 0])),
    "trajectory": lambda model, x: tt.complexity.Trajectory(model, x),
}
START = {"0.weight": torch.ones(3, 2)}


@pytest.mark.parametrize("name", COPIES)
def test_copies_while_another_thread_has_replaced_the_parameters(name: str) -> None:
    model, x = nn.Sequential(nn.Linear(2, 3, bias=False), Interrupted()).eval(), torch.randn(4, 2)
    errors: list[Exception] = []

    def work() -> None:
        try:
            COPIES[name](model, x)
        except Exception as error:
            errors.append(error)

    F = tt.fisher(model, (x, None), tt.Implicit, likelihood="gaussian")
    model[1].work = work
    for _ in range(5):
        F @ torch.ones(6)
    for thread in model[1].threads:
        thread.join()
    assert not errors


class Centred(nn.Module):
    """Writes to its inputs, as `x -= mean` does."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.writes = nn.Linear(4, 2), True

    def forward(self, x: Tensor) -> Tensor:
        if not self.writes:
            x = x.clone()
        x -= 1.0
        return self.lin(x)


@pytest.mark.parametrize(
    "call",
    [
        lambda model, x: tt.jacobian(model, x).dense(),
        lambda model, x: tt.jacobian(model, x) @ torch.ones(10, dtype=torch.float64),
        lambda model, x: tt.ntk(model, x, reduce="trace"),
        lambda model, x: tt.fisher(model, (x, None), tt.Dense).dense(),
        lambda model, x: tt.fisher(model, (x, None), tt.Implicit) @ torch.ones(10, dtype=torch.float64),
        lambda model, x: tt.hessian(model, (x, x[:, :2]), nn.functional.mse_loss) @ torch.ones(10, dtype=torch.float64),
        lambda model, x: tt.sketch.nystrom(model, x, 3).matrix,
        lambda model, x: tt.linearize(model)(x.clone()),
    ],
)
def test_a_model_that_writes_to_its_inputs(call: Callable[[nn.Module, Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    model, x = Centred().double(), torch.randn(6, 4, dtype=torch.float64)
    before = x.clone()
    found = call(model, x)
    assert x.equal(before)
    model.writes = False
    torch.testing.assert_close(found, call(model, x))
