"""What of all backward passes is the gradient's: only that may count as its curvature."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchtangent as tt
from torchtangent.optim import EKFAC, KFAC

N, LR, EPS = 16, 0.1, 0.05
METHODS: dict[str, Callable[..., torch.optim.Optimizer]] = {"kfac": KFAC, "ekfac": EKFAC}


@pytest.fixture(params=METHODS)
def method(request: pytest.FixtureRequest) -> Callable[..., torch.optim.Optimizer]:
    return METHODS[request.param]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def data(n: int = N, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 4, generator=generator).double(), torch.randint(0, 3, (n,), generator=generator)


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def moved(method: Callable[..., torch.optim.Optimizer], *loops: Callable[[nn.Module, torch.optim.Optimizer], None]):
    """The parameters after two steps of each loop, from the same start."""
    found = []
    for loop in loops:
        model = network()
        opt = method(model, LR, EPS, kl_clip=None, basis_every=2)
        for _ in range(2):
            opt.zero_grad()
            loop(model, opt)
            opt.step()
        found.append(flat(model))
    return found


def plain(model: nn.Module, _: torch.optim.Optimizer) -> None:
    x, y = data()
    F.cross_entropy(model(x), y).backward()


def test_gradients_that_are_only_looked_at(method) -> None:
    """`torch.autograd.grad` before the backward pass, of parts of the loss, in its graph and in another."""
    x, y = data()

    def looking(model: nn.Module, _: torch.optim.Optimizer) -> None:
        f, params = model(x), list(model.parameters())
        torch.autograd.grad(f.square().mean(), params, retain_graph=True)
        torch.autograd.grad(F.cross_entropy(model(x[:5]), y[:5]), params)
        F.cross_entropy(f, y).backward()

    def after(model: nn.Module, _: torch.optim.Optimizer) -> None:
        F.cross_entropy(model(x), y).backward()
        near = x.clone().requires_grad_()
        torch.autograd.grad(F.cross_entropy(model(near), y), near)

    wanted, *found = moved(method, plain, looking, after)
    for each in found:
        torch.testing.assert_close(each, wanted, rtol=1e-9, atol=1e-12)


def test_gradients_that_are_set_by_hand(method) -> None:
    """Then all passes count that came to parameters."""
    x, y = data()

    def by_hand(model: nn.Module, _: torch.optim.Optimizer) -> None:
        params, half = list(model.parameters()), N // 2
        for part in (slice(half), slice(half, None)):
            grads = torch.autograd.grad(F.cross_entropy(model(x[part]), y[part]) / 2, params)
            for p, g in zip(params, grads, strict=True):
                p.grad = g if p.grad is None else p.grad + g

    def halves(model: nn.Module, _: torch.optim.Optimizer) -> None:
        for part in (slice(N // 2), slice(N // 2, None)):
            (F.cross_entropy(model(x[part]), y[part]) / 2).backward()

    torch.testing.assert_close(*moved(method, halves, by_hand), rtol=1e-9, atol=1e-12)


def test_two_passes_through_one_graph_are_the_sum_of_both(method) -> None:
    x, y = data()

    def twice(model: nn.Module, _: torch.optim.Optimizer) -> None:
        f = model(x)
        F.cross_entropy(f, y).backward(retain_graph=True)
        f.square().mean().backward()

    def once(model: nn.Module, _: torch.optim.Optimizer) -> None:
        f = model(x)
        (F.cross_entropy(f, y) + f.square().mean()).backward()

    torch.testing.assert_close(*moved(method, once, twice), rtol=1e-9, atol=1e-12)


def test_a_graph_may_be_used_again_after_zero_grad(method) -> None:
    x, y = data()

    def logged(model: nn.Module, opt: torch.optim.Optimizer) -> None:
        f = model(x)
        F.cross_entropy(f, y).backward(retain_graph=True)
        opt.zero_grad()
        F.cross_entropy(f, y).backward()

    torch.testing.assert_close(*moved(method, plain, logged), rtol=1e-9, atol=1e-12)


def test_but_not_after_a_step() -> None:
    model, (x, y) = nn.Linear(4, 3).double(), data()
    opt = KFAC(model, LR, EPS, basis_every=1)
    loss = F.cross_entropy(model(x), y)
    loss.backward(retain_graph=True)
    opt.step()
    loss.backward()
    with pytest.raises(RuntimeError, match="that belonged to an earlier step, which has let go of its inputs"):
        opt.step()


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_that_someone_else_cleared(method, to_none: bool) -> None:
    """Also between the forward and the backward pass."""
    x, y = data()

    def logged(model: nn.Module, _: torch.optim.Optimizer) -> None:
        F.cross_entropy(model(x[:7]), y[:7]).backward()
        f = model(x)
        model.zero_grad(set_to_none=to_none)
        F.cross_entropy(f, y).backward()

    torch.testing.assert_close(*moved(method, plain, logged), rtol=1e-9, atol=1e-12)


def test_samples_without_a_gradient_count(method) -> None:
    """A gradient of exactly zero is not one that was cleared, whichever micro-batch has it."""
    x, y = data()

    def order(*factors: float) -> Callable[[nn.Module, torch.optim.Optimizer], None]:
        def loop(model: nn.Module, _: torch.optim.Optimizer) -> None:
            for factor in factors:
                (factor * F.cross_entropy(model(x), y)).backward()

        return loop

    torch.testing.assert_close(*moved(method, order(0.0, 1.0), order(1.0, 0.0)), rtol=1e-9, atol=1e-12)


def test_empty_micro_batches_are_nothing(method) -> None:
    x, y = data()

    def empty(model: nn.Module, _: torch.optim.Optimizer) -> None:
        F.cross_entropy(model(x[:0]), y[:0], reduction="sum").backward()
        F.cross_entropy(model(x), y).backward()

    torch.testing.assert_close(*moved(method, plain, empty), rtol=1e-9, atol=1e-12)


def test_inputs_that_were_written_over_are_refused() -> None:
    model, (x, y) = network(), data()
    opt = EKFAC(model, LR, EPS)
    before = flat(model)
    F.cross_entropy(model(x), y).backward()
    x.copy_(data(seed=2)[0])
    with pytest.raises(RuntimeError, match=r"was written over between the forward pass and step\(\)"):
        opt.step()
    assert torch.equal(flat(model), before)


class Wrapped(nn.Module):
    """Takes its batch in a dict of lists, or after something that is no batch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, *inputs: object) -> Tensor:
        x = inputs[-1]
        return self.inner(x["images"][0] if isinstance(x, dict) else x)


@pytest.mark.parametrize("pack", [lambda x: ({"images": [x]},), lambda x: (torch.ones(1), x)])
def test_samples_are_found_in_any_argument(method, pack: Callable[[Tensor], tuple]) -> None:
    found = []
    for wrapped in (False, True):
        x, y = data()
        model: nn.Module = Wrapped() if wrapped else network()
        opt = method(model, LR, EPS, kl_clip=None)
        if wrapped:
            model(*pack(x[:5]))  # never differentiated
        F.cross_entropy(model(*pack(x)) if wrapped else model(x), y).backward()
        opt.step()
        found.append(flat(model))
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-12)


class Graph(nn.Module):
    """One layer of a graph network: takes a sparse matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3).double()

    def forward(self, x: Tensor, neighbours: Tensor) -> Tensor:
        return neighbours @ self.layer(x)


def test_sparse_arguments_and_exports(method) -> None:
    model, (x, y) = Graph(), data()
    opt = method(model, LR, EPS)
    before = flat(model)
    F.cross_entropy(model(x, torch.eye(N).double().to_sparse()), y).backward()
    opt.step()
    assert not torch.equal(flat(model), before)
    torch.export.export(model, (x, torch.eye(N).double()))


def test_graphs_that_live_on_hold_no_inputs(method) -> None:
    model, (x, y) = network(), data()
    opt, kept = method(model, LR, EPS), []
    for _ in range(3):
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        kept.append(loss)
    assert not _hidden()
    F.cross_entropy(model(x), y).backward()
    assert bool(_hidden()) == (method is EKFAC)  # KFAC has no use for them until it renews its inverses
    assert kept


def _hidden() -> list[Tensor]:
    """All that has the shape of the hidden layer's output."""
    return [t for t in gc.get_objects() if type(t) is Tensor and t.shape == (N, 6)]


@pytest.mark.filterwarnings("ignore:b.bias, b.weight")
def test_a_layer_may_be_demoted_frozen_and_back(method) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4).double(), nn.Linear(4, 3).double()

        def forward(self, x: Tensor) -> Tensor:
            return self.b(torch.cat([self.a(x), x[:1]]))[: len(x)]

    model, (x, y) = Odd(), data()
    opt = method(model, LR, EPS)
    for trained in (True, False, True):
        model.b.requires_grad_(trained)
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        opt.step()
    assert opt.steps == 3


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_promises_are_kept_in_the_unit_of_the_loss(reduction: str) -> None:
    model, (x, y) = network(), data()
    opt = EKFAC(model, 0.01, EPS, loss=reduction, kl_clip=None)
    loss = F.cross_entropy(model(x), y, reduction=reduction)
    loss.backward()
    opt.step()
    after = F.cross_entropy(model(x), y, reduction=reduction)
    assert opt.adapt(loss.item(), after.item()) == pytest.approx(1, abs=0.1)


def test_pixels_of_sampled_classes_come_last() -> None:
    model = nn.Conv2d(2, 3, 1)
    opt = EKFAC(model, LR, EPS, curvature="sampled", likelihood="categorical")
    x, y = torch.randn(4, 2, 5, 5), torch.randint(0, 3, (4, 5, 5))

    def closure() -> tuple[Tensor, Tensor]:
        f = model(x)
        return F.cross_entropy(f, y), f

    with pytest.raises(ValueError, match="classes come last here"):
        opt.step(closure)


def test_one_block_has_one_damping() -> None:
    model = nn.Linear(4, 3)
    with pytest.warns(tt.TangentWarning, match="weight, bias are one block, with one damping: that of weight"):
        EKFAC(model, LR, EPS, params=[{"params": [model.weight]}, {"params": [model.bias], "damping": 3.0}])


def test_layers_may_be_added_later() -> None:
    model, (x, y) = network(), data()
    opt = EKFAC(model, LR, EPS)
    model.append(nn.Linear(3, 3).double())
    opt.add_param_group({"params": model[3].parameters()})
    before = copy.deepcopy(model)
    F.cross_entropy(model(x), y).backward()
    opt.step()
    assert not torch.equal(before[3].weight, model[3].weight)
