"""What of all backward passes is the gradient's: only that may count as its curvature."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from oracle import flat
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torchtangent as tt
from torchtangent.optim import EKFAC, KFAC, Adaptive

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


def test_what_a_block_kept_is_gone_when_it_is_demoted() -> None:
    """A depthwise convolution's second moments in its eigenbasis have the shape of its weight, as a diagonal has."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.odd = nn.Conv1d(3, 3, 3, groups=3, bias=False), False

        def forward(self, x: Tensor) -> Tensor:
            h = self.conv(torch.cat([x, x[:1]]) if self.odd else x)
            return h[: len(x)].sum(2)

    model, x, y = Net().double(), torch.randn(5, 3, 6, dtype=torch.float64), torch.randint(3, (5,))
    opt = EKFAC(model, LR, EPS, kl_clip=None)

    def train() -> None:
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        opt.step()

    train()
    assert "left" in opt.state[model.conv.weight]
    model.odd = True
    with pytest.warns(tt.TangentWarning, match="its layer: it saw 6 rows for 5 samples"):
        train()
    state = opt.state[model.conv.weight]
    assert set(state) == {"values"}
    gradient = model.conv.weight.grad
    torch.testing.assert_close(state["values"], 5 * gradient.square())


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_promises_are_kept_in_the_unit_of_the_loss(reduction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, (x, y) = network(), data()
    opt = EKFAC(model, 0.01, Adaptive(EPS, every=1), loss=reduction, kl_clip=None)
    seen: list[float] = []

    def change(self: Adaptive, ratio: float, *, clipped: bool) -> float:
        seen.append(ratio)
        return 1.0

    def closure() -> float:
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y, reduction=reduction)
        if torch.is_grad_enabled():
            loss.backward()
        return loss.item()

    monkeypatch.setattr(Adaptive, "change", change)
    opt.step(closure)
    assert seen == [pytest.approx(1, abs=0.1)]


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


class Checkpointed(nn.Module):
    """All but the first layer is computed again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = network()

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.layers[1:], self.layers[0](x), use_reentrant=True)


def by_parts(model: Checkpointed, x: Tensor) -> Tensor:
    return model.layers[2](model.layers[1](model.layers[0](x)))


LOOPS: dict[str, Callable[[Checkpointed, Tensor, Tensor], Tensor]] = {
    "a call of fewer samples in between": lambda model, x, y: _then(F.cross_entropy(model(x), y), model(x[:8])),
    "two calls, one backward": lambda model, x, y: sum(
        F.cross_entropy(model(x[part]), y[part], reduction="sum") / N for part in (slice(0, 12), slice(12, N))
    ),
    "parts": lambda model, x, y: F.cross_entropy(by_parts(model, x), y),
    "parts after a call": lambda model, x, y: _then(F.cross_entropy(_after(model(x[:8]), model, x), y)),
    "parts after a part": lambda model, x, y: _then(F.cross_entropy(_after(model.layers[0](x[:4]), model, x), y)),
}


def _then(loss: Tensor, *_: Tensor) -> Tensor:
    return loss


def _after(_: Tensor, model: Checkpointed, x: Tensor) -> Tensor:
    return by_parts(model, x)


@pytest.mark.parametrize("loop", LOOPS)
def test_layers_belong_to_their_batch(method, loop: str) -> None:
    """Also those that a checkpoint computes again, or that are called without the model, beside other calls."""
    x, y = data()
    found = []
    for compute in (LOOPS[loop], lambda model, x, y: F.cross_entropy(model.layers(x), y)):
        model = Checkpointed()
        opt = method(model, LR, EPS, kl_clip=None, basis_every=2)
        for _ in range(2):
            opt.zero_grad()
            compute(model, x, y).backward()
            opt.step()
        found.append(flat(model))
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-12)


class Tokens(Checkpointed):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(0, 1)).unflatten(0, x.shape[:2]).sum(1)


def test_a_checkpoint_of_either_of_two_calls_is_said(method) -> None:
    """12 rows may be 4 samples, or 6."""
    model, (x, y) = Tokens(), data(24)
    opt = method(model, LR, EPS)
    calls = x[:12].view(4, 3, 4), x[12:].view(6, 2, 4)
    sum(F.cross_entropy(model(x), y[: len(x)]) for x in calls).backward()
    with pytest.warns(tt.TangentWarning, match="may belong to either of several calls"):
        opt.step()


def test_parts_of_several_sizes_are_said() -> None:
    model, (x, y) = network(), data()
    opt = EKFAC(model, LR, EPS)
    sum(F.cross_entropy(model[2](model[1](model[0](x[:n]))), y[:n]) for n in (4, 12)).backward()
    with pytest.warns(tt.TangentWarning, match=r"Parts of the model, with (4 and 12|12 and 4) rows, were called"):
        opt.step()


class Normalized(nn.Module):
    """Takes more than its samples."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        return self.inner((x - mean) / std)


def test_the_first_argument_has_the_samples(method) -> None:
    x, y = data()
    found = []
    for wrapped in (True, False):
        model: nn.Module = Normalized() if wrapped else network()
        opt = method(model, LR, EPS, kl_clip=None)
        F.cross_entropy(model(x, torch.zeros(4), torch.ones(4)) if wrapped else model(x), y).backward()
        opt.step()
        found.append(flat(model))
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("frozen", [slice(0, 1), slice(0, 3)])
def test_what_is_unfrozen_before_the_forward_pass_moves(method, frozen: slice) -> None:
    """A discriminator is frozen while its generator trains."""
    x, y = data()
    found = []
    for freezes in (True, False):
        model = network()
        opt = method(model, LR, EPS, kl_clip=None, basis_every=2)
        for _ in range(4):
            model[frozen].requires_grad_(not freezes)
            opt.zero_grad()
            if freezes:
                model(x.square().requires_grad_()).sum().backward()
                if frozen.stop == 1:
                    opt.zero_grad()  # what was not frozen has a gradient now
                model[frozen].requires_grad_(True)
            F.cross_entropy(model(x), y).backward()
            opt.step()
        assert opt.steps == 4
        found.append(flat(model))
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-12)


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.heads = nn.Linear(4, 5).double(), nn.ModuleList(nn.Linear(5, 3).double() for _ in range(2))

    def forward(self, x: Tensor, which: int) -> Tensor:
        return self.heads[which](torch.tanh(self.body(x)))


def test_a_layer_that_was_left_out_is_decomposed_when_it_is_next_seen(method) -> None:
    """Also by a run that was resumed before that."""
    x, y = data()
    torch.manual_seed(0)
    model = Heads()
    opt = method(model, LR, EPS, basis_every=4)
    changes = [0, 0]
    for i in range(24):
        before = [opt.state[head.weight].get("left") for head in model.heads]
        opt.zero_grad()
        F.cross_entropy(model(x, i % 2), y).backward()
        opt.step()
        for j, head in enumerate(model.heads):
            changes[j] += opt.state[head.weight].get("left") is not before[j]
        if i == 12:  # head 1 is due
            saved = opt.state_dict()
            opt.close()
            opt = method(model, LR, EPS, basis_every=4)
            opt.load_state_dict(saved)
    assert changes == [6, 6]


def test_what_is_unfrozen_too_late_is_told(method) -> None:
    model, (x, y) = network(), data()
    model[0].requires_grad_(False)
    opt = method(model, LR, EPS, params=model.parameters())
    before = model[0].weight.clone()
    F.cross_entropy(model(x), y).backward()
    model[0].requires_grad_(True)
    F.cross_entropy(model(x), y).backward()
    with pytest.warns(tt.TangentWarning, match=r"Not moved before the next step, .*: 0\.weight, 0\.bias"):
        opt.step()
    assert torch.equal(before, model[0].weight)
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()
    assert not torch.equal(before, model[0].weight)


class Rows(nn.Module):
    """A layer that sees the tokens of all samples as rows: sample by sample, token by token, or from the middle on."""

    def __init__(self, order: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.head, self.order = nn.Linear(4, 5).double(), nn.Linear(5, 3).double(), order

    def forward(self, x: Tensor) -> Tensor:
        n, tokens = x.shape[:2]
        if self.order == "tokens first":
            h = self.layer(x.transpose(0, 1).reshape(tokens * n, -1)).view(tokens, n, -1).transpose(0, 1)
        elif self.order == "turned":
            h = self.layer(x.roll(1, 0).reshape(n * tokens, -1)).view(n, tokens, -1).roll(-1, 0)
        else:
            h = self.layer(x.reshape(n * tokens, -1)).view(n, tokens, -1)
        return self.head(torch.tanh(h).sum(1))


@pytest.mark.parametrize("tokens", [3, 8])
def test_rows_in_another_order_are_told_by_the_graph(method, tokens: int) -> None:
    x, y = torch.randn(4, tokens, 4).double(), torch.randint(0, 3, (4,))
    found = []
    for order in ("tokens first", "samples first"):
        model = Rows(order)
        opt = method(model, LR, EPS, kl_clip=None, basis_every=1)
        for _ in range(3):
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()
        assert "mean gradients" not in opt.explain()
        found.append(flat(model))
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-12)


def test_rows_that_may_be_anyones_are_said(method) -> None:
    model, x, y = Rows("turned"), torch.randn(4, 3, 4).double(), torch.randint(0, 3, (4,))
    opt = method(model, LR, EPS)
    F.cross_entropy(model(x), y).backward()
    with pytest.warns(tt.TangentWarning, match="of 12 rows for 4 samples it is not known which are whose"):
        opt.step()


class Positions(nn.Module):
    """A layer for positions, which are the same for all samples."""

    def __init__(self) -> None:
        super().__init__()
        self.places, self.head = nn.Linear(2, 4).double(), nn.Linear(4, 3).double()
        self.register_buffer("grid", torch.randn(8, 2).double())

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(x + self.places(self.grid)).sum(1))


def test_rows_for_all_samples_are_no_samples(method) -> None:
    """Although there are twice as many."""
    model, x, y = Positions(), torch.randn(4, 8, 4).double(), torch.randint(0, 3, (4,))
    opt = method(model, LR, EPS)
    F.cross_entropy(model(x), y).backward()
    with pytest.warns(tt.TangentWarning, match=r"places.* of 8 rows for 4 samples it is not known which are whose"):
        opt.step()


def test_parts_after_a_call_that_failed(method) -> None:
    model, (x, y) = network(), data()
    opt = method(model, LR, EPS)
    with pytest.raises(RuntimeError):
        model(x[:5, :3])
    F.cross_entropy(model[2](model[1](model[0](x[:6]))), y[:6]).backward()
    opt.step()
    assert "mean gradients" not in opt.explain()
