"""Training loops around KFAC and EKFAC: scalers, compiled models, checkpoints, closures, whatever people do."""

from __future__ import annotations

import copy
import pickle
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from oracle import flat
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torchtangent as tt
from torchtangent.optim import EKFAC, KFAC, Adaptive, vector
from torchtangent.optim.matrix import MatrixLayer

N, EPS, LR = 7, 0.03, 0.1


def mlp(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).to(dtype)


def data(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    return torch.randn(N, 4, dtype=dtype), torch.randint(0, 3, (N,))


def train(call: Callable[[Tensor], Tensor], opt: torch.optim.Optimizer, x: Tensor, y: Tensor, steps: int = 3) -> None:
    for _ in range(steps):
        opt.zero_grad()
        F.cross_entropy(call(x), y).backward()
        opt.step()


def reference(model: nn.Module, x: Tensor, y: Tensor, steps: int = 3) -> Tensor:
    """Where plain EKFAC goes from here."""
    model = copy.deepcopy(model)
    train(model, EKFAC(model, LR, EPS), x, y, steps)
    return flat(model)


def scaled_steps(model: nn.Module, opt: EKFAC, scaler: Any, x: Tensor, y: Tensor, clip: float | None = None) -> None:
    for _ in range(3):
        opt.zero_grad()
        scaler.scale(F.cross_entropy(model(x), y)).backward()
        if clip is not None:
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        scaler.step(opt)
        scaler.update()


@pytest.mark.parametrize("known", [True, False])
def test_a_scaler_is_understood_without_being_told(known: bool) -> None:
    model, (x, y) = mlp(torch.float32), data(torch.float32)
    wanted = reference(model, x, y)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    opt = EKFAC(model, LR, EPS, scaler=scaler if known else None)
    scaled_steps(model, opt, scaler, x, y)
    torch.testing.assert_close(flat(model), wanted, rtol=1e-4, atol=1e-6)


def test_unscaled_gradients_need_their_scaler() -> None:
    model, (x, y) = mlp(torch.float32), data(torch.float32)
    wanted, before = reference(model, x, y), flat(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    opt = EKFAC(model, LR, EPS)
    with pytest.raises(RuntimeError, match=r"opt = EKFAC\(model, ..., scaler=scaler\)"):
        scaled_steps(model, opt, scaler, x, y, clip=100.0)
    assert torch.equal(flat(model), before)
    assert not {"grad_scale", "found_inf"} & opt.__dict__.keys()  # the next scale would be multiplied by this one
    opt.close()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaled_steps(model, EKFAC(model, LR, EPS, scaler=scaler), scaler, x, y, clip=100.0)
    torch.testing.assert_close(flat(model), wanted, rtol=1e-4, atol=1e-6)


def test_a_scaler_that_overflows_lowers_its_scale() -> None:
    """Counted, but not said: that is how a scaler finds its scale."""
    model, (x, y) = mlp(torch.float32), data(torch.float32)
    before = flat(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    opt = EKFAC(model, LR, EPS)
    scaler.scale(F.cross_entropy(model(x), y) * 1e3).backward()
    scaler.step(opt)
    scaler.update()
    assert (opt.skipped, scaler.get_scale()) == (1, 2.0**126)
    assert torch.equal(flat(model), before)


def test_autocast_around_the_step_changes_nothing() -> None:
    model, (x, y) = mlp(torch.float32), data(torch.float32)
    wanted = reference(model, x, y, steps=1)
    opt = EKFAC(model, LR, EPS)
    F.cross_entropy(model(x), y).backward()
    with torch.autocast("cpu", torch.bfloat16):
        opt.step()
    assert torch.equal(flat(model), wanted)


@pytest.mark.filterwarnings("ignore")  # torch's own, while it traces
@pytest.mark.parametrize("given", ["compiled", "inner"])
def test_a_compiled_model(given: str) -> None:
    model, (x, y) = mlp(), data()
    wanted = reference(model, x, y)
    compiled = torch.compile(model, backend="eager")
    try:
        train(compiled, EKFAC(compiled if given == "compiled" else model, LR, EPS), x, y)
    finally:
        torch._dynamo.reset()
    torch.testing.assert_close(flat(model), wanted)


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpoints(reentrant: bool) -> None:
    class Saving(nn.Module):
        def __init__(self, layers: nn.Sequential) -> None:
            super().__init__()
            self.layers = layers

        def forward(self, x: Tensor) -> Tensor:
            return self.layers[2](checkpoint(self.layers[:2], x, use_reentrant=reentrant))

    model, (x, y) = mlp(), data()
    wanted = reference(model, x, y)
    saving = Saving(model)
    train(saving, EKFAC(saving, LR, EPS), x.requires_grad_(), y)
    torch.testing.assert_close(flat(model), wanted)


def test_gradients_that_were_set_to_zero_do_not_count() -> None:
    model, (x, y) = mlp(), data()
    wanted = reference(model, x, y, steps=1)
    opt = EKFAC(model, LR, EPS)
    F.cross_entropy(model(x.square()), y).backward()
    model.zero_grad(set_to_none=False)
    F.cross_entropy(model(x), y).backward()
    opt.step()
    assert torch.equal(flat(model), wanted)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("make", [EKFAC, KFAC, lambda *args: EKFAC(*args, scalings="average")])
def test_equal_parts_of_a_batch_are_one_batch(make: Any, whole: bool) -> None:
    """Also in steps that record nothing, and where the loop calls a part of the model."""
    model, x, y = mlp(), torch.randn(8, 4).double(), torch.randint(0, 3, (8,))
    other = copy.deepcopy(model)
    train(model, make(model, LR, EPS), x, y)
    opt = make(other, LR, EPS)
    for _ in range(3):
        opt.zero_grad()
        for part in (slice(0, 4), slice(4, 8)):
            out = other(x[part]) if whole else other[2](other[:2](x[part]))
            (F.cross_entropy(out, y[part]) / 2).backward()
        opt.step()
    torch.testing.assert_close(flat(model), flat(other), rtol=1e-9, atol=1e-11)


def test_two_views_of_a_sample_are_one_gradient() -> None:
    """A siamese loss: the second moments are those of each pair's gradient."""
    model = nn.Linear(4, 3).double()
    x, z = torch.randn(2, N, 4).double()
    pairs = [(model(x[i]) * model(z[i])).sum() for i in range(N)]
    J = torch.stack([torch.cat([g.flatten() for g in torch.autograd.grad(p, list(model.parameters()))]) for p in pairs])
    J = torch.cat([J[:, :12].view(N, 3, 4), J[:, 12:].unsqueeze(2)], 2)
    opt = EKFAC(model, LR, EPS)
    (model(x) * model(z)).sum(1).mean().backward()
    with pytest.warns(
        tt.TangentWarning, match="2 calls of the model with 7 samples each, before one backward, are taken"
    ):
        opt.step()
    state = opt.state[model.weight]
    wanted = torch.einsum("op,noi,ij->npj", state["left"][0], J, state["right"][0]).square().mean(0)
    torch.testing.assert_close(state["values"][0], wanted, rtol=1e-9, atol=1e-13)


def test_nothing_is_kept_after_a_step() -> None:
    model, (x, y) = mlp(), data()
    opt = EKFAC(model, LR, EPS)
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    kept = [weakref.ref(use.d) for uses in opt.recorder.batches[0].uses.values() for use in uses]
    assert len(kept) == 2
    opt.step()
    assert [ref() for ref in kept] == [None, None]
    later = F.cross_entropy(model(x), y)
    opt.close()
    later.backward()
    assert opt.recorder.batches == []


def test_inputs_may_be_differentiated_in_between() -> None:
    """Adversarial training: a gradient of the inputs alone is no backward pass of the loss."""
    model, (x, y) = mlp(), data()
    near = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(F.cross_entropy(model(near), y), near)
    worse = (near + 0.1 * slope.sign()).detach()
    wanted = reference(model, worse, y, steps=1)
    opt = EKFAC(model, LR, EPS)
    torch.autograd.grad(F.cross_entropy(model(near), y), near)
    train(model, opt, worse, y, steps=1)
    torch.autograd.grad(F.cross_entropy(model(near), y), near)
    opt.zero_grad()
    torch.autograd.grad(F.cross_entropy(model(near), y), near)
    other = copy.deepcopy(model)
    F.cross_entropy(model(worse), y).backward()
    opt.recorder.settle()
    assert opt.recorder.samples == N
    assert torch.equal(flat(other), wanted)


def test_the_mode_is_that_of_the_pass() -> None:
    """model.eval() between backward and step does not change what BatchNorm did."""
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)).double()
    x, y = data()
    moved = []
    for between in (nn.Module.train, nn.Module.eval):
        model = copy.deepcopy(net).train()
        opt = EKFAC(model, LR, EPS)
        F.cross_entropy(model(x), y).backward()
        between(model)
        opt.step()
        moved.append(flat(model))
    assert torch.equal(*moved)


def test_optimizers_are_not_copied() -> None:
    opt = EKFAC(mlp(), LR, EPS)
    for copied in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="lives with the hooks on its model"):
            copied(opt)


def test_states_of_other_methods_are_refused() -> None:
    model = mlp()
    with pytest.raises(ValueError, match="no state of EKFAC: it is one of KFAC"):
        EKFAC(model, LR, EPS).load_state_dict(KFAC(model, LR, EPS).state_dict())


def test_a_block_that_grows_is_decomposed_again() -> None:
    model, (x, y) = mlp(), data()
    opt = EKFAC(model, LR, EPS, params="*.weight", scalings="average", momentum=0.5)
    train(model, opt, x, y, steps=2)
    other = copy.deepcopy(model)
    fresh = EKFAC(other, LR, EPS, scalings="average", momentum=0.5)
    opt.add_param_group({"params": [model[0].bias, model[2].bias]})
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        if "momentum" in opt.state[p]:
            fresh.state[q]["momentum"] = opt.state[p]["momentum"].clone()
    train(model, opt, x, y, steps=2)
    train(other, fresh, x, y, steps=2)
    torch.testing.assert_close(flat(model), flat(other), rtol=1e-9, atol=1e-11)


class Late(nn.Module):
    """A layer that is first used in the second step, and not by its call alone."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.late, self.use = nn.Linear(4, 3), nn.Linear(3, 3), False

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.late(x) + F.linear(x.square(), self.late.weight) if self.use else x


def test_a_layer_is_checked_when_it_is_first_seen() -> None:
    model, (x, y) = Late().double(), data()
    opt = EKFAC(model, LR, EPS)
    train(model, opt, x, y, steps=1)
    model.use = True
    with pytest.warns(tt.TangentWarning, match=r"late.weight \(1 of 4 parameters\) have a part that no layer"):
        train(model, opt, x, y, steps=1)


def test_tied_embeddings_are_left_out_and_say_so() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.out = nn.Embedding(6, 4), nn.Linear(4, 6)
            self.out.weight = self.table.weight

        def forward(self, index: Tensor) -> Tensor:
            return self.out(torch.tanh(self.table(index)).mean(1))

    model = Tied().double()
    x, y = torch.randint(0, 6, (N, 5)), torch.randint(0, 6, (N,))
    before = copy.deepcopy(model)
    opt = EKFAC(model, LR, EPS, kl_clip=None)
    with pytest.warns(
        tt.TangentWarning,
        match="table.weight gets the diagonal.*tied between layers of diff",
    ):
        train(model, opt, x, y, steps=1)
    g = model.table.weight.grad
    torch.testing.assert_close(before.table.weight - model.table.weight, LR * g / (N * g.square() + EPS))
    assert "diagonal from mean gradients (tied between layers of different kinds)" in opt.explain()
    assert "out.bias      exact block, 6 × 6" in opt.explain()


@pytest.mark.parametrize("make", [EKFAC, KFAC])
def test_wide_norms_have_a_block_for_each_channel(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector, "LARGEST", 9)
    model = nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.PReLU(5), nn.Linear(5, 3)).double()
    before, (x, y) = copy.deepcopy(model), data()
    opt = make(model, LR, EPS, kl_clip=None)
    train(model, opt, x, y, steps=1)
    params = [*before[1].parameters(), *before[2].parameters()]
    grads = [torch.autograd.grad(F.cross_entropy(before(x[i : i + 1]), y[i : i + 1]), params) for i in range(N)]
    J = torch.stack([torch.stack(g, 1) for g in grads])  # (N, channel, [weight, bias, slope])
    for k in range(5):
        pair = J[:, k, :2]
        wanted = torch.linalg.solve(pair.T @ pair / N + EPS * torch.eye(2).double(), pair.mean(0))
        moved = torch.stack([before[1].weight - model[1].weight, before[1].bias - model[1].bias], 1)[k]
        torch.testing.assert_close(moved, LR * wanted, rtol=1e-8, atol=1e-11)
    slope = J[:, :, 2]
    wanted = torch.linalg.solve(slope.T @ slope / N + EPS * torch.eye(5).double(), slope.mean(0))
    torch.testing.assert_close(before[2].weight - model[2].weight, LR * wanted, rtol=1e-8, atol=1e-11)
    assert "1.weight  a block for each channel, 2 × 2" in opt.explain()
    assert "1.bias    a block for each channel, 2 × 2, with 1.weight" in opt.explain()
    assert "2.weight  exact block, 5 × 5" in opt.explain()


def test_the_trust_region_knows_weight_decay() -> None:
    """η² uᵀ(∇ + ωθ) is bounded, which is never negative, as uᵀ∇ may be."""
    model, (x, y) = mlp(), data()
    far, before = copy.deepcopy(model), flat(model)
    train(far, EKFAC(far, 0.5, EPS, weight_decay=3.0, kl_clip=None), x, y, steps=1)
    full = before - flat(far)
    g = torch.cat([p.grad.flatten() for p in far.parameters()]) + 3.0 * before
    size = float(0.5 * full @ g)
    assert float(0.5 * full @ (g - 3.0 * before)) < size / 2
    near = copy.deepcopy(model)
    train(near, EKFAC(near, 0.5, EPS, weight_decay=3.0, kl_clip=size / 4), x, y, steps=1)
    torch.testing.assert_close(before - flat(near), full / 2, rtol=1e-9, atol=1e-12)


def test_changed_gradients_are_rotated_themselves() -> None:
    """Small batches rotate the factors of a gradient, unless it was changed: here one entry, unseen by autograd."""
    wide = nn.Linear(12, 9).double()
    x, y = torch.randn(3, 12).double(), torch.randint(0, 9, (3,))
    for change in (0.0, 0.5):
        model = copy.deepcopy(wide)
        opt = EKFAC(model, 1.0, EPS, kl_clip=None)
        F.cross_entropy(model(x), y).backward()
        model.weight.grad.data[2, 3] += change
        opt.step()
        state = opt.state[model.weight]
        g = torch.cat([model.weight.grad, model.bias.grad[:, None]], 1)
        left, right = state["left"][0], state["right"][0]
        u = left @ ((left.T @ g @ right) / (state["values"][0] + EPS)) @ right.T
        moved = torch.cat([wide.weight - model.weight, (wide.bias - model.bias)[:, None]], 1)
        torch.testing.assert_close(moved, u, rtol=1e-9, atol=1e-12)


def test_factors_stand_for_gradients_that_are_their_multiple() -> None:
    layer, x = nn.Linear(12, 9), torch.randn(3, 12)
    opt = EKFAC(layer, 1.0, EPS)
    layer(x).square().sum().backward()
    jacobian = opt.partition.jacobians(opt.recorder.batches[0])["weight"]
    mean = {name: p.grad / 4 for name, p in layer.named_parameters()}
    block = opt.partition.layers[0]
    assert block._multiple(mean, jacobian) == pytest.approx(0.25)
    for change in mean.values():
        change.view(-1)[0] += 0.1
        assert block._multiple(mean, jacobian) is None
        change.view(-1)[0] -= 0.1


@pytest.mark.parametrize(("samples", "outputs"), [(1, 9), (3, 1), (3, 9)])
def test_every_change_of_a_gradient_is_seen(samples: int, outputs: int) -> None:
    """Also where it has rank one: then M r is a multiple of whatever else the factors' rows are times r."""
    layer, x = nn.Linear(1000, outputs), torch.randn(samples, 1000)
    opt = EKFAC(layer, 1.0, EPS)
    layer(x).square().sum().backward()
    jacobian, block = opt.partition.jacobians(opt.recorder.batches[0])["weight"], opt.partition.layers[0]
    mean = {name: p.grad for name, p in layer.named_parameters()}
    assert block._multiple(mean, jacobian) == pytest.approx(1.0)
    for i in range(1000):
        column = mean["weight"][:, i] * 1.0
        mean["weight"][:, i] = 0
        assert block._multiple(mean, jacobian) is None
        mean["weight"][:, i] = column
    assert block._multiple({**mean, "bias": torch.zeros(outputs)}, jacobian) is None


@pytest.mark.parametrize(("kl_clip", "kept"), [(1e9, 0.1), (None, 1.0)])
def test_momentum_does_not_grow_with_the_rate(kl_clip: float | None, kept: float) -> None:
    """Where steps are bounded: what was bounded at a tenth of the rate would go ten times as far."""
    model, (x, y) = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double(), data()
    opt = KFAC(model, 0.01, EPS, momentum=0.9, basis_every=1, kl_clip=kl_clip)
    train(model, opt, x, y, steps=2)
    before, m = flat(model), torch.cat([opt.state[p]["momentum"].flatten() for p in model.parameters()])
    alone = copy.deepcopy(model)
    train(alone, KFAC(alone, 1.0, EPS, basis_every=1, kl_clip=None), x, y, steps=1)
    u = before - flat(alone)
    opt.param_groups[0]["lr"] = 0.1
    train(model, opt, x, y, steps=1)
    torch.testing.assert_close(flat(model), before - 0.1 * (0.9 * kept * m + u), rtol=1e-9, atol=1e-11)
    assert opt.state_dict()["progress"]["rates"] == [0.1]


def test_changes_of_small_features_are_seen() -> None:
    """What is far below the size of the whole gradient may be large for its own column."""
    layer, x = nn.Linear(60, 50), torch.randn(8, 60)
    x[:, 7] *= 1e-6
    opt = EKFAC(layer, 1.0, EPS)
    layer(x).square().sum().backward()
    jacobian, block = opt.partition.jacobians(opt.recorder.batches[0])["weight"], opt.partition.layers[0]
    for scale in (1.0, 0.5):
        mean = {name: p.grad * scale for name, p in layer.named_parameters()}
        assert block._multiple(mean, jacobian) == pytest.approx(scale)
        mean["weight"][:, 7] = 0
        assert block._multiple(mean, jacobian) is None


AVERAGE = partial(EKFAC, scalings="average")


def wide_steps(
    make: Callable[..., Any], bias: bool, change: float, resumed: int | None = None
) -> tuple[nn.Module, list[int]]:
    """Seven steps with few samples, and how many layers each recorded; gradients changed, or the run resumed."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(30, 20, bias=bias), nn.Tanh(), nn.Linear(20, 9, bias=bias)).double()
    x, y = torch.randn(7, 3, 30).double(), torch.randint(0, 9, (7, 3))
    opt = make(model, LR, EPS, basis_every=7)
    recorded = []
    for i in range(7):
        if i == resumed:
            state, opt = copy.deepcopy(opt.state_dict()), make(model, LR, EPS, basis_every=7)
            opt.load_state_dict(state)
        opt.zero_grad()
        F.cross_entropy(model(x[i]), y[i]).backward()
        recorded.append(sum(len(batch.uses) for batch in opt.recorder.batches))
        for p in model.parameters():
            p.grad.data.view(-1)[0] += change
        opt.step()
    return model, recorded


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "make", [KFAC, partial(KFAC, damping_rule="single"), AVERAGE], ids=["kfac", "single", "average"]
)
def test_few_samples_are_multiplied_by_their_factors(
    make: Callable[..., Any], bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradient of three samples has rank three: its factors are less work, and the step is the same."""
    used = []
    found = MatrixLayer._factors

    def watched(*args: Any) -> Any:
        used.append((result := found(*args)) is not None)
        return result

    monkeypatch.setattr(MatrixLayer, "_factors", watched)
    thin, recorded = wide_steps(make, bias, 0.0)
    assert recorded == 7 * [2]
    assert used == 14 * [True]
    used.clear()
    changed, _ = wide_steps(make, bias, 0.1)
    assert used == 14 * [False]
    for at in (2, 3, 4):
        assert torch.equal(flat(wide_steps(make, bias, 0.0, resumed=at)[0]), flat(thin))
    monkeypatch.setattr(MatrixLayer, "thin", lambda *_: False)
    for change, model in ((0.0, thin), (0.1, changed)):
        direct, recorded = wide_steps(make, bias, change)
        assert recorded == [2, 0, 0, 0, 0, 0, 0]
        torch.testing.assert_close(flat(model), flat(direct), rtol=1e-10, atol=1e-12)


class Masked(nn.Module):
    """A second layer that sees some of the samples."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(30, 20), nn.Linear(20, 9)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        return self.second(self.first(x).tanh()[seen])


def test_layers_that_need_not_be_recorded_are_left_out_where_no_rule_describes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between two decompositions factors save work; that three rows of four samples have none is nothing to say."""
    found = []
    for thin in (MatrixLayer.thin, lambda *_: False):
        monkeypatch.setattr(MatrixLayer, "thin", thin)
        torch.manual_seed(3)
        model, x = Masked().double(), torch.randn(4, 30).double()
        opt = KFAC(model, LR, EPS, basis_every=9)
        for rows in (4, 3, 4):
            opt.zero_grad()
            F.cross_entropy(model(x, torch.arange(rows)), torch.arange(rows)).backward()
            opt.step()
        assert "KFAC, 9 × 21" in opt.explain()
        found.append(flat(model))
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("make", [EKFAC, KFAC, AVERAGE], ids=["batch", "kfac", "average"])
def test_transposed_convolutions_to_one_location(make: Callable[..., Any]) -> None:
    """Their weight is stored as the transpose of the matrix that a linear layer has."""
    torch.manual_seed(3)
    conv, linear = nn.ConvTranspose2d(30, 20, 1).double(), nn.Linear(30, 20).double()
    linear.weight.data, linear.bias.data = conv.weight.data[:, :, 0, 0].T.contiguous(), conv.bias.data.clone()
    x, y = torch.randn(3, 30).double(), torch.randint(0, 9, (3,))
    for model, shape in ((conv, (3, 30, 1, 1)), (linear, (3, 30))):
        opt = make(model, LR, EPS)
        F.cross_entropy(model(x.view(shape)).flatten(1), y).backward()
        opt.step()
    torch.testing.assert_close(conv.weight[:, :, 0, 0].T, linear.weight, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(conv.bias, linear.bias, rtol=1e-9, atol=1e-12)


def test_a_state_need_not_say_where_samples_save_work() -> None:
    """Those of earlier versions do not."""
    model, (x, y) = mlp(), data()
    opt = KFAC(model, LR, EPS, basis_every=5)
    train(model, opt, x, y, steps=1)
    state = opt.state_dict()
    del state["progress"]["thin"]
    opt.load_state_dict(state)
    assert not opt.recorder.welcome
    train(model, opt, x, y, steps=1)
    assert opt.steps == 2


def test_samples_are_not_recorded_where_the_gradient_is_of_others() -> None:
    model, x = nn.Linear(30, 20).double(), torch.randn(3, 30).double()
    opt = KFAC(model, LR, EPS, curvature="sampled", likelihood="categorical")
    y = torch.tensor([0, 1, 2])
    for wanted in (1, 0):
        kept = len(opt.recorder.wanted | opt.recorder.welcome)
        assert kept == wanted
        opt.step(lambda: (F.cross_entropy(out := model(x), y), out))


def quadratic(opt: Any, model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        opt.zero_grad()
        loss = (model(x) - y).square().sum() / (2 * len(x))
        loss.backward()
        return loss

    return closure


def test_damping_adapts_in_the_loop() -> None:
    """A loss that is what the model of it promises shrinks the damping, one that is not lets it grow."""
    x, y = torch.randn(N, 4).double(), torch.randn(N, 1).double()
    for lr, ratio in ((1e-3, "good"), (2e3, "bad")):
        model = nn.Linear(4, 1).double()
        opt = EKFAC(model, lr, Adaptive(0.5, factor=0.9, every=2), kl_clip=None)
        closure = quadratic(opt, model, x, y)
        dampings = []
        for _ in range(4):
            opt.step(closure)
            dampings.append(opt.param_groups[0]["damping"])
        assert opt.recorder.batches == []
        change = 0.9**2 if ratio == "good" else 0.9**-2
        assert dampings == pytest.approx([0.5, 0.5 * change, 0.5 * change, 0.5 * change**2])


def test_the_second_look_leaves_the_gradients() -> None:
    model, x, y = nn.Linear(4, 1).double(), torch.randn(N, 4).double(), torch.randn(N, 1).double()
    opt = EKFAC(model, LR, Adaptive(0.5, every=1))
    closure = quadratic(opt, model, x, y)
    closure()
    wanted = model.weight.grad.clone()
    opt.step(closure)
    assert torch.equal(model.weight.grad, wanted)


def test_the_second_look_leaves_gradients_of_other_optimizers() -> None:
    model, x, y = mlp(), *data()
    opt = EKFAC(model, LR, Adaptive(0.5, every=1), params="0.*")
    other = torch.optim.SGD(model[2].parameters(), LR)

    def closure() -> Tensor:
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    other.zero_grad()
    closure()
    wanted = model[2].weight.grad.clone()
    other.zero_grad()
    opt.step(closure)
    assert torch.equal(model[2].weight.grad, wanted)


def test_adaptive_damping_is_checked() -> None:
    with pytest.raises(ValueError, match=r"factor=1\.0 should be between 0 and 1"):
        Adaptive(0.1, factor=1.0)
    with pytest.raises(ValueError, match="every=0, the number of steps"):
        Adaptive(0.1, every=0)
    for start in (0.0, -0.1, float("inf")):
        with pytest.raises(ValueError, match=rf"start={start} should be positive, and finite"):
            Adaptive(start)
    model, (x, y) = mlp(), data()
    with pytest.raises(ValueError, match=r"call step\(closure\)"):
        train(model, EKFAC(model, LR, Adaptive(0.1)), x, y)


def test_adaptive_damping_with_sampled_curvature() -> None:
    model, (x, y) = mlp(), data()
    opt = EKFAC(model, LR, Adaptive(EPS, every=1), curvature="sampled", likelihood="categorical", kl_clip=None)

    def closure() -> tuple[Tensor, Tensor]:
        opt.zero_grad()
        out = model(x)
        return F.cross_entropy(out, y), out

    opt.step(closure)
    assert opt.param_groups[0]["damping"] == pytest.approx(EPS * 0.95)
    assert model[0].weight.grad is not None


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("make", [EKFAC, KFAC])
@pytest.mark.parametrize(("lr", "damping"), [(0.1, 1e-3), (0.1, 1e-2), (1.0, 1e-2)])
def test_by_default_no_rate_makes_the_loss_explode(make: Any, lr: float, damping: float, momentum: float) -> None:
    """Without the trust region most of these end with a loss of 10 to 10⁵."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 30), nn.ReLU(), nn.Linear(30, 5))
    x = torch.randn(200, 20)
    y = (x @ torch.randn(20, 5)).argmax(1)
    first = F.cross_entropy(model(x), y).item()
    opt = make(model, lr, damping, momentum=momentum, basis_every=10)
    for _ in range(5):
        for batch in torch.randperm(200).split(20):
            opt.zero_grad()
            F.cross_entropy(model(x[batch]), y[batch]).backward()
            opt.step()
    assert F.cross_entropy(model(x), y).item() < first


def test_the_trust_region_knows_momentum() -> None:
    """m = u + μu + … grows to u / (1 − μ), and that is what is bounded; steps that were shortened are counted."""
    model, (x, y) = mlp(), data()
    moved, before = {}, flat(model)
    for momentum in (0.0, 0.75):
        near = copy.deepcopy(model)
        opt = EKFAC(near, 0.5, EPS, momentum=momentum, kl_clip=1e-6)
        train(near, opt, x, y, steps=1)
        moved[momentum] = before - flat(near)
        assert opt.clipped == 1
        again = EKFAC(near, 0.5, EPS, momentum=momentum, kl_clip=1e-6)
        again.load_state_dict(opt.state_dict())
        assert again.clipped == 1
    torch.testing.assert_close(moved[0.75], moved[0.0] / 4, rtol=1e-9, atol=1e-14)
    opt = EKFAC(model, 1e-6, EPS)
    train(model, opt, x, y, steps=1)
    assert opt.clipped == 0


def test_steps_without_gradients_are_said_once() -> None:
    model, (x, y) = mlp(), data()
    opt, other = EKFAC(model, LR, EPS), copy.deepcopy(model)
    F.cross_entropy(other(x), y).backward()
    with pytest.warns(tt.TangentWarning, match="step\\(\\) found no gradients"):
        opt.step()
    opt.step()
    assert opt.steps == 0


def test_what_the_trust_region_did_is_explained() -> None:
    model, (x, y) = mlp(), data()
    opt = EKFAC(model, 10.0, EPS)
    train(model, opt, x, y, steps=3)
    said = "kl_clip=0.001 shortened 3 of 3 steps, so that their length is set by it and not by lr"
    assert opt.explain().splitlines()[-1] == said


@pytest.mark.parametrize("kind", [KFAC, EKFAC])
def test_shared_layers_that_see_samples_in_another_order(kind: Any) -> None:
    """Their gradients cannot be added sample by sample."""

    class Reversed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shared, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            turn = torch.arange(len(x)).flip(0)
            return self.head(torch.tanh(self.shared(x)) + torch.tanh(self.shared(2 * x[turn] + 1)[turn]))

    model, x, y = Reversed(), torch.randn(6, 4), torch.randint(3, (6,))
    opt = kind(model, lr=0.1, damping=0.1)
    F.cross_entropy(model(x), y).backward()
    with pytest.warns(tt.TangentWarning, match="used several times, with samples in an order that is not known"):
        opt.step()


@pytest.mark.parametrize("kind", [KFAC, EKFAC])
def test_parameters_frozen_before_the_step_stay(kind: Any) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    opt = kind(model, lr=0.1, damping=0.1)
    model(torch.randn(5, 3)).square().sum(1).mean().backward()
    before = copy.deepcopy(model.state_dict())
    model[0].weight.requires_grad_(False)
    opt.step()
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {"0.bias", "1.weight", "1.bias"}


def test_a_state_that_is_loaded_between_backward_and_step() -> None:
    model = nn.Linear(4, 3)
    opt = EKFAC(model, lr=0.1, damping=0.1)
    opt.load_state_dict(opt.state_dict())
    F.cross_entropy(model(torch.randn(6, 4)), torch.randint(3, (6,))).backward()
    with pytest.warns(tt.TangentWarning, match=r"loaded between a backward pass and step\(\)"):
        opt.load_state_dict(opt.state_dict())
