"""Models in wrappers: the network inside is what is differentiated, under its own names."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

import torchtangent as tt
from torchtangent.jacobians.modes import unwrapped


def compiled(model: nn.Module) -> nn.Module:
    return torch.compile(model, backend="eager")


def parallel(model: nn.Module) -> nn.Module:
    """On the CPU: where there is a GPU, DataParallel moves the model there."""
    return nn.DataParallel(model).cpu()


WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {"compiled": compiled, "parallel": parallel}
NESTED: dict[str, Callable[[nn.Module], nn.Module]] = {
    **WRAPPERS,
    "compiled in parallel": lambda model: parallel(compiled(model)),
    "parallel and compiled": lambda model: compiled(parallel(model)),
}


def net() -> nn.Module:
    layers = [nn.Conv2d(1, 3, 3), nn.Tanh(), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 2)]
    return nn.Sequential(*layers).double().eval()


def relu() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3), nn.ReLU(), nn.Linear(3, 2)).double()


@pytest.fixture
def data() -> tuple[Tensor, Tensor]:
    return torch.randn(6, 1, 4, 4, dtype=torch.float64), torch.arange(6) % 2


def probed(model: nn.Module, x: Tensor, y: Tensor) -> Any:
    probe = tt.TangentProbe(model, x, y)
    return {**probe.log(0), "seconds": 0}


def trajectory(model: nn.Module, x: Tensor, y: Tensor) -> Any:
    run = tt.complexity.Trajectory(model, x)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.1
    return run.step()


CALLS: dict[str, Callable[[nn.Module, Tensor, Tensor], Any]] = {
    "ntk": lambda m, x, y: tt.ntk(m, x, per_layer=True),
    "jacobian": lambda m, x, y: tt.jacobian(m, x).T @ torch.ones(6, 2).double(),
    "some parameters": lambda m, x, y: tt.ntk(m, x, params="0.*"),
    "fisher": lambda m, x, y: tt.fisher(m, (x, y), tt.KFAC).diag(),
    "sketch": lambda m, x, y: tt.sketch.nystrom(m, x, landmarks=3).matrix,
    "alignment": lambda m, x, y: tt.alignment.target(m, x, torch.ones(6, 2)),
    "ranking": lambda m, x, y: tuple(tt.alignment.rank_tasks(m, x, [y])),
    "anisotropy": lambda m, x, y: tt.anisotropy.directions(m, (1, 4, 4), 2, x=x, output=lambda f: f[:, 0]).values,
    "fisher_rao": lambda m, x, y: tt.complexity.fisher_rao(m, x, y),
    "trajectory": trajectory,
    "probe": probed,
}


def assert_same(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14, equal_nan=True)


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("call", CALLS)
def test_a_wrapper_makes_no_difference(call: str, wrapper: str, data: tuple[Tensor, Tensor]) -> None:
    model = net()
    wrapped = WRAPPERS[wrapper](copy.deepcopy(model))
    assert_same(CALLS[call](wrapped, *data), CALLS[call](model, *data))


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_measures_of_a_wrapped_network(wrapper: str, data: tuple[Tensor, Tensor]) -> None:
    model, init = relu(), relu()
    wrap = WRAPPERS[wrapper]
    expected = tt.complexity.measures(model, init, *data)
    for found in (wrap(model), wrap(init)), (wrap(model), init), (model, wrap(init)):
        assert tt.complexity.measures(*found, *data) == expected


@pytest.mark.parametrize("wrapper", NESTED)
def test_names_are_those_inside(wrapper: str, data: tuple[Tensor, Tensor]) -> None:
    model = net()
    wrapped = NESTED[wrapper](model)
    assert unwrapped(wrapped) is model
    names = [name for name, _ in model.named_parameters()]
    assert list(tt.jacobian(wrapped, data[0]).layers) == names
    assert not set(names) & {name for name, _ in wrapped.named_parameters()}
    with pytest.raises(ValueError, match=r"pattern 'module.\*' matches no .* trainable ones are: 0.weight, 0.bias"):
        tt.ntk(wrapped, data[0], params="module.*")


def test_a_network_that_is_not_wrapped_stays() -> None:
    model = nn.Sequential(nn.DataParallel(nn.Linear(2, 1)))  # a part of it may be
    assert unwrapped(model) is model
    named = nn.Module()
    named.module = nn.Linear(2, 1)  # the name alone says nothing
    assert unwrapped(named) is named


@pytest.fixture
def one_process(tmp_path: Path) -> Iterator[None]:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.skipif(not distributed.is_available(), reason="needs torch.distributed")
def test_distributed(one_process: None, data: tuple[Tensor, Tensor]) -> None:
    x, y = data
    model = net()
    wrapped = DistributedDataParallel(copy.deepcopy(model))
    assert_same(tt.ntk(wrapped, x, per_layer=True), tt.ntk(model, x, per_layer=True))
    probe = tt.TangentProbe(wrapped, x, y, steps=1)
    nn.functional.cross_entropy(wrapped(x), y).backward()  # training goes on through the wrapper
    gradients = [p.grad.clone() for p in wrapped.parameters()]
    assert_same({**probe.log(0), "seconds": 0}, probed(model, x, y))
    for p, gradient in zip(wrapped.parameters(), gradients, strict=True):
        assert torch.equal(p.grad, gradient)


@pytest.mark.filterwarnings("error:BatchNorm saw no batch yet")
def test_batch_norm_that_saw_nothing_is_said() -> None:
    model, x = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)), torch.randn(5, 3)
    with pytest.warns(tt.TangentWarning, match=r"BatchNorm saw no batch yet .* \(1\)"):
        tt.jacobian(model.eval(), x)
    model.train()(x)
    tt.jacobian(model.eval(), x)


class Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16).double()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.linear(x).tanh()


def test_parts_that_are_compiled_as_a_whole(data: tuple[Tensor, Tensor]) -> None:
    """Compiled code without breaks takes no hooks."""
    x = data[0].flatten(1)
    model, plain = (nn.Sequential(Step(), nn.Linear(16, 2).double()) for _ in range(2))
    plain.load_state_dict(model.state_dict())
    model[0].compile(backend="eager", fullgraph=True)
    model(x)
    v = torch.randn(sum(p.numel() for p in model.parameters()), dtype=torch.float64)
    assert_same(tt.jacobian(model, x).dense(), tt.jacobian(plain, x).dense())
    assert_same(tt.jacobian(model, x) @ v, tt.jacobian(plain, x) @ v)
    assert_same(tt.ntk(model, x), tt.ntk(plain, x))
