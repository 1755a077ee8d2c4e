"""KFAC and EKFAC as optimizers: one step against the dense formula, many steps against themselves."""

from __future__ import annotations

import copy
import gc
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import dense_step
import pytest
import torch
import torch.nn.functional as F
import two_ranks
from cases import Conv1D
from oracle import flat
from torch import Tensor, nn

import torchtangent as tt
from torchtangent.optim import EKFAC, KFAC, Adaptive, decompose, ekfac
from torchtangent.optim.decompose import eigenbasis

METHODS: dict[str, Callable[..., Any]] = {
    "ekfac": partial(EKFAC, kl_clip=None),
    "average": partial(EKFAC, scalings="average", kl_clip=None),
    "kfac": partial(KFAC, kl_clip=None),
}
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(4, 3), (4,)),
    "linear without bias": (lambda: nn.Linear(4, 3, bias=False), (4,)),
    "linear on a sequence": (lambda: nn.Linear(4, 3), (5, 4)),
    "conv1d": (lambda: nn.Conv1d(2, 3, 3, padding=1), (2, 6)),
    "conv2d": (lambda: nn.Conv2d(2, 3, (3, 2), stride=2, padding=1), (2, 5, 4)),
    "conv2d without bias": (lambda: nn.Conv2d(3, 2, 2, bias=False), (3, 4, 4)),
    "conv2d in groups": (lambda: nn.Conv2d(4, 4, 3, groups=2, padding=1), (4, 3, 3)),
    "conv2d transposed": (lambda: nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1), (2, 2, 2)),
    "conv3d": (lambda: nn.Conv3d(2, 2, 2), (2, 3, 3, 3)),
}
N, EPS, LR = 7, 0.03, 0.5


def build(layer: str = "linear", dtype: torch.dtype = torch.float64) -> tuple[nn.Module, Tensor, Tensor]:
    """A small classifier around a layer, inputs and labels."""
    make, shape = LAYERS[layer]
    x = torch.randn(N, *shape, dtype=dtype)
    first = make().to(dtype)
    width = first(x).flatten(1).shape[1]
    model = nn.Sequential(first, nn.Tanh(), nn.Flatten(), nn.Linear(width, 3, dtype=dtype))
    return model, x, torch.randint(0, 3, (N,))


def train(model: nn.Module, opt: torch.optim.Optimizer, x: Tensor, y: Tensor, steps: int = 1, **loss: Any) -> None:
    for _ in range(steps):
        opt.zero_grad()
        F.cross_entropy(model(x), y, **loss).backward()
        opt.step()


def mlp(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).to(dtype)


def data(n: int = N, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 4, dtype=dtype), torch.randint(0, 3, (n,))


@pytest.mark.parametrize("rule", ["single", "factored", "root"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("layer", "sua"),
    [(name, False) for name in LAYERS]
    + [(name, True) for name in LAYERS if "conv" in name and "transposed" not in name],
)
def test_a_step_is_the_dense_formula(layer: str, sua: bool, method: str, rule: str) -> None:
    model, x, y = build(layer)
    before = copy.deepcopy(model)
    opt = METHODS[method](model, LR, EPS, damping_rule=rule, sua=sua)
    train(model, opt, x, y)
    for i in (0, 3):
        old, new = before[i], model[i]
        found = dense_step.records(before, old, x, y, F.cross_entropy)
        uncorrelated = sua and not isinstance(old, nn.Linear)
        taps = old.weight[0, 0].numel() if uncorrelated else 1
        A, B, J = dense_step.moments(old, found, sua=uncorrelated)
        for g in range(len(A)):
            wanted = -LR * dense_step.direction(method, rule, EPS, A[g], B[g], J[:, g], taps=taps)
            moved = [p - q for p, q in zip(new.parameters(), old.parameters(), strict=True)]
            torch.testing.assert_close(dense_step.per_sample(new, moved)[g], wanted, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("method", METHODS)
def test_float32_follows_the_model(method: str) -> None:
    moved = {}
    for dtype in (torch.float32, torch.float64):
        torch.manual_seed(1)
        model, x, y = mlp(torch.float32).to(dtype), *data(dtype=torch.float32)
        train(model, METHODS[method](model, 0.1, 0.1), x.to(dtype), y, steps=3)
        moved[dtype] = flat(model)
    assert moved[torch.float32].dtype == torch.float32
    torch.testing.assert_close(moved[torch.float32].double(), moved[torch.float64], rtol=1e-4, atol=1e-5)


def test_one_sample_is_full_matrix_preconditioning() -> None:
    """With one sample the basis holds the gradient itself: EKFAC is (ggᵀ + ε)⁻¹g."""
    model = nn.Linear(4, 3).double()
    x, y = torch.randn(1, 4).double(), torch.tensor([1])
    before = flat(model)
    opt = EKFAC(model, 1.0, EPS, basis_every=1, kl_clip=None)
    train(model, opt, x, y)
    g = torch.cat([model.weight.grad.flatten(), model.bias.grad])
    wanted = torch.linalg.solve(torch.outer(g, g) + EPS * torch.eye(len(g)).double(), g)
    torch.testing.assert_close(before - flat(model), wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_mean_and_sum_are_the_same_step(method: str) -> None:
    model, (x, y) = mlp(), data()
    other = copy.deepcopy(model)
    train(model, METHODS[method](model, 0.1, EPS), x, y, steps=3)
    train(other, METHODS[method](other, 0.1, EPS, loss="sum"), x, y, steps=3, reduction="sum")
    torch.testing.assert_close(flat(model), flat(other), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_accumulated_gradients_are_one_batch(method: str) -> None:
    model, (x, y) = mlp(), data(8)
    other = copy.deepcopy(model)
    train(model, METHODS[method](model, 0.1, EPS), x, y, steps=2)
    opt = METHODS[method](other, 0.1, EPS)
    for _ in range(2):
        opt.zero_grad()
        for part in (slice(0, 5), slice(5, 8)):
            (F.cross_entropy(other(x[part]), y[part], reduction="sum") / 8).backward()
        opt.step()
    torch.testing.assert_close(flat(model), flat(other), rtol=1e-9, atol=1e-11)


def test_the_basis_is_kept_between_decompositions() -> None:
    """EKFAC-ra by hand: the basis of step 0, s averaged over mean gradients, for three steps; then a new basis."""
    layer = nn.Linear(4, 3).double()
    x, y = data()
    opt = EKFAC(layer, 0.1, EPS, scalings="average", decay=0.6, basis_every=3, kl_clip=None)
    theta = torch.cat([layer.weight, layer.bias[:, None]], 1).detach().clone()
    a = torch.cat([x, torch.ones(N, 1)], 1).double()
    U_A = U_B = s = torch.zeros(0)
    for step in range(5):
        d = (torch.softmax(a @ theta.T, 1) - F.one_hot(y, 3)).double()
        if step % 3 == 0:
            S_A, U_A = torch.linalg.eigh(a.T @ a / N)
            S_B, U_B = torch.linalg.eigh(d.T @ d / N)
            s = torch.outer(S_B, S_A)
        g = U_B.T @ (d.T @ a / N) @ U_A
        s = 0.6 * s + 0.4 * N * g**2
        theta = theta - 0.1 * U_B @ (g / (s + EPS)) @ U_A.T
        train(layer, opt, x, y)
        torch.testing.assert_close(torch.cat([layer.weight, layer.bias[:, None]], 1), theta, rtol=1e-8, atol=1e-10)


def test_average_records_only_for_decompositions() -> None:
    model, (x, y) = mlp(), data()
    opt = EKFAC(model, 0.1, EPS, scalings="average", basis_every=2)
    kept = []
    for _ in range(4):
        F.cross_entropy(model(x), y).backward()
        kept.append(sum(len(batch.uses) for batch in opt.recorder.batches))
        opt.step()
        opt.zero_grad()
    assert kept == [2, 0, 2, 0]


class Mixed(nn.Module):
    """An embedding, norms, a recurrent layer and a lone parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 4)
        self.norm = nn.LayerNorm(4)
        self.rnn = nn.GRU(4, 4, batch_first=True)
        self.head = nn.Linear(4, 3)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, index: Tensor) -> Tensor:
        return self.head(self.rnn(self.norm(self.table(index)))[0].mean(1)) * self.scale


@pytest.mark.parametrize("rest", ["block", "diagonal"])
@pytest.mark.parametrize("method", ["ekfac", "kfac"])
def test_other_parameters_are_blocks_or_diagonal_and_said(method: str, rest: str) -> None:
    model = Mixed().double()
    x, y = torch.randint(0, 6, (N, 5)), torch.randint(0, 3, (N,))
    before = copy.deepcopy(model)
    with pytest.warns(tt.TangentWarning, match=r"rnn.bias_hh_l0 \(GRU\): 5 of 10 parameters get the diagonal"):
        opt = METHODS[method](model, LR, EPS, rest=rest)
    train(model, opt, x, y)
    grads = [
        torch.autograd.grad(F.cross_entropy(before(x[i : i + 1]), y[i : i + 1]), list(before.parameters()))
        for i in range(N)
    ]
    names = [name for name, _ in before.named_parameters()]
    J = torch.stack([torch.cat([g[names.index(f"norm.{part}")] for part in ("weight", "bias")]) for g in grads])
    block = torch.linalg.solve(J.T @ J / N + EPS * torch.eye(8).double(), J.mean(0)).split(4)
    said = dict(line.split(None, 1) for line in opt.explain().splitlines())
    for (name, p), q, *g in zip(before.named_parameters(), model.parameters(), *grads, strict=True):
        J = torch.stack(g)
        if name == "table.weight" or (name.startswith("norm") and rest == "diagonal"):
            assert said[name] == "diagonal"
            wanted = J.mean(0) / (J.square().mean(0) + EPS)
        elif name.startswith("norm"):
            assert said[name].startswith("exact block, 8 × 8")
            wanted = dict(zip(("norm.weight", "norm.bias"), block, strict=True))[name]
        elif not name.startswith("head"):
            assert said[name].startswith("diagonal from mean gradients (no rule for ")
            wanted = averaged(J.mean(0), N)
        else:
            assert said[name].startswith(opt.method.kind)
            continue
        torch.testing.assert_close(p - q, LR * wanted, rtol=1e-9, atol=1e-12)


def test_the_rest_can_stay_plain() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 3)).double()
    before = copy.deepcopy(model)
    opt = EKFAC(model, LR, EPS, rest="plain", kl_clip=None)
    x, y = data()
    train(model, opt, x, y)
    torch.testing.assert_close(before[1].weight - model[1].weight, LR * model[1].weight.grad)
    assert "1.weight  plain gradient (rest='plain')" in opt.explain()


def test_batch_norm_and_dropout_in_training_mode() -> None:
    """Norms take the batch's own statistics; d and a are those of the pass with its dropout."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(inplace=True), nn.Flatten(), nn.Dropout(0.3))
    model = model.append(nn.Linear(3 * 9, 3)).double().train()
    x, y = torch.randn(N, 1, 5, 5).double(), torch.randint(0, 3, (N,))
    before = copy.deepcopy(model)
    opt = EKFAC(model, LR, EPS, kl_clip=None)
    torch.manual_seed(5)
    train(model, opt, x, y)
    torch.manual_seed(5)
    h = before[0](x)
    normal = (h - h.mean((0, 2, 3), keepdim=True)) / (h.var((0, 2, 3), correction=0, keepdim=True) + 1e-5).sqrt()
    z = normal * before[1].weight.view(1, 3, 1, 1) + before[1].bias.view(1, 3, 1, 1)
    (d,) = torch.autograd.grad(F.cross_entropy(before[5](before[4](before[3](z.relu()))), y), z)
    J = N * torch.cat([(d * normal).sum((2, 3)), d.sum((2, 3))], 1).detach()
    wanted = torch.linalg.solve(J.T @ J / N + EPS * torch.eye(6).double(), J.mean(0))
    moved = torch.cat([before[1].weight - model[1].weight, before[1].bias - model[1].bias])
    torch.testing.assert_close(moved, LR * wanted, rtol=1e-8, atol=1e-10)
    assert int(model[1].num_batches_tracked) == 1
    assert model.training


def test_momentum_weight_decay_groups_and_schedulers() -> None:
    """θ by hand from the directions of an optimizer without any of them."""
    model, (x, y) = mlp(), data()
    start = copy.deepcopy(model)

    def direction(at: nn.Module, decay: float) -> list[Tensor]:
        probe = copy.deepcopy(at)
        train(probe, EKFAC(probe, 1.0, EPS, weight_decay=decay, kl_clip=None), x, y)
        return [p.detach() - q.detach() for p, q in zip(at.parameters(), probe.parameters(), strict=True)]

    for decoupled in (False, True):
        model, by_hand = copy.deepcopy(start), copy.deepcopy(start)
        groups = [{"params": list(model[0].parameters()), "lr": 0.1}, {"params": list(model[2].parameters())}]
        options = {"momentum": 0.8, "weight_decay": 0.02, "decoupled": decoupled, "basis_every": 1}
        opt = EKFAC(model, 0.2, EPS, params=groups, **options, kl_clip=None)
        schedule = torch.optim.lr_scheduler.StepLR(opt, step_size=1, gamma=0.5)
        buffers = [torch.zeros_like(p) for p in by_hand.parameters()]
        for step in range(3):
            u = direction(by_hand, 0.0 if decoupled else 0.02)
            for i, p in enumerate(by_hand.parameters()):
                lr = (0.1 if i < 2 else 0.2) * 0.5**step
                buffers[i] = 0.8 * buffers[i] + u[i]
                p.data = p.data * (1 - (lr * 0.02 if decoupled else 0)) - lr * buffers[i]
            train(model, opt, x, y)
            schedule.step()
        torch.testing.assert_close(flat(model), flat(by_hand), rtol=1e-8, atol=1e-10)


def test_coupled_decay_is_preconditioned() -> None:
    model, (x, y) = nn.Linear(4, 3).double(), data()
    before = copy.deepcopy(model)
    train(model, KFAC(model, 1.0, EPS, weight_decay=0.1, kl_clip=None), x, y)
    A, B, J = dense_step.moments(before, dense_step.records(before, before, x, y, F.cross_entropy))
    J = J + 0.1 * dense_step.per_sample(before, [p.detach() for p in before.parameters()])
    wanted = dense_step.direction("kfac", "factored", EPS, A[0], B[0], J[:, 0])
    moved = [p - q for p, q in zip(before.parameters(), model.parameters(), strict=True)]
    torch.testing.assert_close(dense_step.per_sample(model, moved)[0], wanted, rtol=1e-9, atol=1e-12)


def test_clipped_gradients_are_preconditioned_as_they_are() -> None:
    """Clipping shortens the step; the curvature is that of the loss."""
    model, (x, y) = mlp(), data()
    other, before = copy.deepcopy(model), flat(model)
    train(model, EKFAC(model, 0.1, EPS, kl_clip=None), x, y)
    opt = EKFAC(other, 0.1, EPS, kl_clip=None)
    F.cross_entropy(other(x), y).backward()
    norm = nn.utils.clip_grad_norm_(other.parameters(), 0.01)
    opt.step()
    torch.testing.assert_close(flat(other) - before, (flat(model) - before) * (0.01 / norm), rtol=1e-4, atol=1e-9)


def test_the_trust_region_bounds_the_step() -> None:
    model, (x, y) = mlp(), data()
    far, before = copy.deepcopy(model), flat(model)
    train(far, EKFAC(far, 0.5, EPS, kl_clip=None), x, y)
    full = before - flat(far)
    g = torch.cat([p.grad.flatten() for p in far.parameters()])
    size = float(0.5 * full @ g)  # η² uᵀ∇ with full = η u
    for clip in (size / 9, 10 * size):
        near = copy.deepcopy(model)
        train(near, EKFAC(near, 0.5, EPS, kl_clip=clip), x, y)
        torch.testing.assert_close(before - flat(near), full * min(1, (clip / size) ** 0.5), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("at", [1, 5, 10])
def test_a_resumed_run_is_the_same_run(method: str, at: int) -> None:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)).train()
    batches = [data(dtype=torch.float32) for _ in range(at + 50)]

    def make(model: nn.Module) -> Any:
        return METHODS[method](model, 0.05, 0.1, momentum=0.9, basis_every=5, weight_decay=1e-3)

    opt = make(model)
    for x, y in batches[:at]:
        train(model, opt, x, y)
    saved = copy.deepcopy((model.state_dict(), opt.state_dict()))
    for x, y in batches[at:]:
        train(model, opt, x, y)
    other = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)).train()
    again = make(other)
    other.load_state_dict(saved[0])
    again.load_state_dict(saved[1])
    for x, y in batches[at:]:
        train(other, again, x, y)
    assert torch.equal(flat(model), flat(other))
    assert again.steps == at + 50


def test_a_loaded_state_obeys_its_groups() -> None:
    """The rates are the saved ones, and schedulers go on changing them."""
    model, (x, y) = mlp(), data()
    saved = EKFAC(model, 0.05, 0.2).state_dict()
    moved = []
    for rate in (0.05, 0.025):
        net, other = copy.deepcopy(model), copy.deepcopy(model)
        opt = EKFAC(net, 1.0, 1.0)
        opt.load_state_dict(copy.deepcopy(saved))
        opt.param_groups[0]["lr"] = rate
        train(net, opt, x, y)
        train(other, EKFAC(other, rate, 0.2), x, y)
        assert torch.equal(flat(net), flat(other))
        moved.append(flat(net))
    assert not torch.equal(moved[0], moved[1])


@pytest.mark.parametrize("method", METHODS)
def test_a_step_that_is_not_finite_is_skipped(method: str) -> None:
    model, (x, y) = mlp(), data()
    opt = METHODS[method](model, 0.1, EPS, momentum=0.9, basis_every=1)
    train(model, opt, x, y)
    before, state = flat(model), copy.deepcopy(opt.state_dict())
    bad = x.clone()
    bad[2, 1] = float("nan")
    with pytest.warns(tt.TangentWarning, match=r"step skipped, the gradient of 0.weight .* \(skipped so far: 1\)"):
        train(model, opt, bad, y)
    assert torch.equal(flat(model), before)
    assert opt.skipped == 1
    for old, new in zip(state["state"].values(), opt.state_dict()["state"].values(), strict=True):
        assert all(torch.equal(old[key], new[key]) for key in old)

    def closure() -> Tensor:
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss * float("inf")

    opt.skipped = 9  # said at the 1st and at the 10th time
    with pytest.warns(tt.TangentWarning, match="the loss has NaN"):
        opt.step(closure)
    opt.step(closure)
    assert opt.skipped == 11
    assert torch.equal(flat(model), before)
    train(model, opt, x, y)
    assert not torch.equal(flat(model), before)


def test_moments_that_overflow_skip_the_step() -> None:
    """Finite gradients, but squares of inputs that are not."""
    model, y = nn.Linear(4, 3), torch.tensor([0, 1])
    x = torch.full((2, 4), 1e30)
    before = flat(model)
    with pytest.warns(tt.TangentWarning, match="step skipped, the curvature of weight has NaN"):
        train(model, EKFAC(model, 0.1, EPS), x, y)
    assert torch.equal(flat(model), before)


def test_a_decomposition_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model, (x, y) = mlp(), data()
    other = copy.deepcopy(model)
    train(other, EKFAC(other, 0.1, EPS), x, y)
    eigh, failures = torch.linalg.eigh, iter([True, True])

    def sometimes(M: Tensor) -> Any:
        if next(failures, False):
            raise torch.linalg.LinAlgError("the algorithm failed to converge")
        return eigh(M)

    monkeypatch.setattr(torch.linalg, "eigh", sometimes)
    opt = EKFAC(model, 0.1, EPS)
    with pytest.warns(tt.TangentWarning, match=r"cotangents of 0.weight failed .* Trying again with"):
        train(model, opt, x, y)
    torch.testing.assert_close(flat(model), flat(other), rtol=1e-6, atol=1e-8)


def test_a_decomposition_that_always_fails_moves_nothing(monkeypatch: pytest.MonkeyPatch, quiet: None) -> None:
    model, (x, y) = mlp(), data()
    before = flat(model)

    def never(M: Tensor) -> Any:
        raise torch.linalg.LinAlgError("the algorithm failed to converge")

    monkeypatch.setattr(torch.linalg, "eigh", never)
    with pytest.raises(torch.linalg.LinAlgError):
        train(model, EKFAC(model, 0.1, EPS), x, y)
    assert torch.equal(flat(model), before)


def hooks(model: nn.Module) -> int:
    modules = list(model.modules())
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in modules) + sum(
        len(p._backward_hooks or ()) for p in model.parameters()
    )


def test_hooks_live_as_long_as_the_optimizer() -> None:
    model, (x, y) = mlp(), data()
    opt = EKFAC(model, 0.1, EPS)
    assert hooks(model) > 0
    twin = copy.deepcopy(model)
    F.cross_entropy(twin(x), y).backward()
    assert opt.recorder.batches == []  # a copy does not report to the optimizer of the original
    opt.close()
    assert hooks(model) == 0
    with pytest.raises(RuntimeError, match="This EKFAC was closed"):
        opt.step()
    for steps in (0, 1):
        opt = EKFAC(model, 0.1, EPS)
        train(model, opt, x, y, steps=steps)
        del opt
        gc.collect()
        assert hooks(model) == 0


def test_what_is_not_differentiated_is_not_kept() -> None:
    model, (x, y) = mlp(), data()
    opt = EKFAC(model, 0.1, EPS)
    other = copy.deepcopy(model)
    plain = EKFAC(other, 0.1, EPS)
    model(torch.randn(3, 4).double())  # with a graph that nobody uses
    loss = F.cross_entropy(model(x), y)
    with torch.no_grad():
        model(torch.randn(2, 4).double())
    opt.zero_grad()  # between forward and backward
    loss.backward()
    assert opt.recorder.samples == N
    opt.step()
    train(other, plain, x, y)
    assert torch.equal(flat(model), flat(other))


def test_gradients_that_the_model_throws_away_do_not_count() -> None:
    model, (x, y) = mlp(), data()
    other = copy.deepcopy(model)
    opt = EKFAC(model, 0.1, EPS)
    F.cross_entropy(model(x.square()), y).backward()
    model.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()
    train(other, EKFAC(other, 0.1, EPS), x, y)
    assert torch.equal(flat(model), flat(other))


class Tied(nn.Module):
    """One linear layer used twice, and a weight shared by two modules."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(self.twice(torch.tanh(self.twice(x))))))[:, :3]


def test_a_layer_used_twice_has_the_second_moments_of_its_whole_gradient() -> None:
    model, (x, y) = Tied().double(), data()
    before = copy.deepcopy(model)
    opt = EKFAC(model, LR, EPS)
    train(model, opt, x, y)
    grads = [
        torch.autograd.grad(F.cross_entropy(before(x[i : i + 1]), y[i : i + 1]), list(before.parameters()))
        for i in range(N)
    ]
    J = {name: torch.stack([g[i] for g in grads]) for i, (name, _) in enumerate(before.named_parameters())}
    for weight, joined in (
        ("twice.weight", torch.cat([J["twice.weight"], J["twice.bias"].unsqueeze(2)], 2)),
        ("first.weight", J["first.weight"]),
    ):
        state = opt.state[dict(model.named_parameters())[weight]]
        s = torch.einsum("op,noi,ij->npj", state["left"][0], joined, state["right"][0]).square().mean(0)
        torch.testing.assert_close(state["values"][0], s, rtol=1e-9, atol=1e-14)
    assert "first.bias    exact block, 4 × 4" in opt.explain()


class Bypass(nn.Module):
    """A layer whose weight is also, or only, used without calling it."""

    def __init__(self, call: bool) -> None:
        super().__init__()
        self.layer, self.call = nn.Linear(4, 3), call

    def forward(self, x: Tensor) -> Tensor:
        return (self.layer(x) if self.call else 0) + F.linear(x.square(), self.layer.weight, self.layer.bias)


def test_a_weight_that_is_also_used_elsewhere_has_the_block_of_its_layer() -> None:
    """The whole gradient, preconditioned by what the layer saw."""
    model, (x, y) = Bypass(True).double(), data()
    before = copy.deepcopy(model)
    opt = EKFAC(model, LR, EPS, kl_clip=None)
    with pytest.warns(
        tt.TangentWarning, match=r"layer.bias, layer.weight \(2 of 2 parameters\) have a part that no layer"
    ):
        train(model, opt, x, y)
    f = before(x).detach().requires_grad_()
    (d,) = torch.autograd.grad(F.cross_entropy(f, y, reduction="sum"), f)
    a = torch.cat([x, torch.ones(N, 1)], 1)
    (_, U), (_, V) = torch.linalg.eigh(d.T @ d / N), torch.linalg.eigh(a.T @ a / N)
    s = ((d @ U).square().T @ (a @ V).square()) / N
    g = torch.cat([model.layer.weight.grad, model.layer.bias.grad[:, None]], 1)
    wanted = LR * U @ ((U.T @ g @ V) / (s + EPS)) @ V.T
    torch.testing.assert_close(before.layer.weight - model.layer.weight, wanted[:, :-1], rtol=1e-8, atol=1e-11)
    assert "EKFAC, 3 × 5, of a gradient that has more than the recorded part" in opt.explain()


def test_a_model_of_which_no_layer_was_seen_is_an_error() -> None:
    model, (x, y) = Bypass(False).double(), data()
    before = flat(model)
    with pytest.raises(RuntimeError, match="saw no backward pass"):
        train(model, EKFAC(model, LR, EPS), x, y)
    assert torch.equal(flat(model), before)


@pytest.mark.parametrize("method", METHODS)
def test_a_linear_layer_with_inputs_first_takes_the_same_steps(method: str) -> None:
    """As those of Hugging Face's GPT-2."""
    plain, (x, y) = mlp(), data()
    turned = nn.Sequential(Conv1D(5, 4), nn.Tanh(), Conv1D(3, 5)).double()
    turned.load_state_dict({k: v.T if v.dim() == 2 else v for k, v in plain.state_dict().items()})
    for model in (plain, turned):
        train(model, METHODS[method](model, LR, EPS), x, y, steps=4)
    for p, q in zip(plain.parameters(), turned.parameters(), strict=True):
        torch.testing.assert_close(q.T if q.dim() == 2 else q, p)


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_layer_that_is_no_longer_called_keeps_its_block(forgotten: bool) -> None:
    """An expert that no sample chose, with a penalty in the loss or with the gradient of an earlier step."""
    experts, (x, y) = nn.ModuleList(nn.Linear(4, 3) for _ in range(2)).double(), data()
    opt = EKFAC(experts, LR, EPS)
    for expert in experts:
        opt.zero_grad()
        F.cross_entropy(expert(x), y).backward()
        opt.step()
    if not forgotten:
        opt.zero_grad()
    F.cross_entropy(experts[0](x), y).backward()
    if not forgotten:
        experts[1].weight.square().sum().backward()
    with pytest.raises(RuntimeError, match=r"1.weight has a gradient, but its layer '1' was not called in this step"):
        opt.step()
    opt.zero_grad()
    F.cross_entropy(experts[0](x), y).backward()
    opt.step()
    assert opt.explain().count("EKFAC, 3 × 5") == 2


class Bare(nn.Module):
    """The same function as `Bypass(False)`, without a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.square(), self.weight, self.bias)


def test_a_weight_whose_layer_is_not_called_is_one_without_a_rule() -> None:
    """As Mamba's convolution, whose weight goes into a function. Other layers keep their blocks."""
    (x, y), first = data(), nn.Linear(4, 4).double()
    bare = nn.Sequential(first, Bare()).double()
    bypass = nn.Sequential(copy.deepcopy(first), Bypass(False)).double()
    bypass[1].layer.load_state_dict(bare[1].state_dict())
    opt = EKFAC(bypass, LR, EPS)
    said = r"1.layer.bias, 1.layer.weight get the diagonal .* its layer was not called"
    with pytest.warns(tt.TangentWarning, match=said):
        train(bypass, opt, x, y)
    with pytest.warns(tt.TangentWarning, match="no rule"):
        like = EKFAC(bare, LR, EPS)
    train(bare, like, x, y)
    train(bypass, opt, x, y, steps=3)
    train(bare, like, x, y, steps=3)
    torch.testing.assert_close(flat(bypass), flat(bare))
    assert "EKFAC, 4 × 5" in opt.explain()


@pytest.mark.parametrize("method", METHODS)
def test_momentum_leaves_gradients_alone_and_lies_like_its_parameter(method: str) -> None:
    """Strides that differ cost one launch for each parameter on a GPU."""
    model = nn.Sequential(nn.Conv2d(1, 4, 3, groups=1), nn.Conv2d(4, 6, 3, groups=2), nn.BatchNorm2d(6), nn.Flatten())
    model = model.append(nn.Linear(6, 600)).append(nn.LayerNorm(600)).append(nn.Bilinear(1, 1, 3)).double()
    y = torch.randint(0, 3, (N,))
    with pytest.warns(tt.TangentWarning, match=r"no rule for 6.weight \(Bilinear\)"):
        opt = METHODS[method](model, LR, EPS, momentum=0.9, sua=True)
    for _ in range(3):
        opt.zero_grad(set_to_none=False)
        z = model[:6](torch.randn(N, 1, 5, 5).double()).mean(1, keepdim=True)
        F.cross_entropy(model[6](z, z), y).backward()
        before = [p.grad.clone() for p in model.parameters()]
        opt.step()
        assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), before, strict=True))
    lies = {name: opt.state[p]["momentum"].stride() for name, p in model.named_parameters()}
    assert lies == {name: p.stride() for name, p in model.named_parameters()}


def averaged(g: Tensor, n: int) -> Tensor:
    """The first step of a parameter of which no sample's gradient is known."""
    return g / (n * g.square() + EPS)


@pytest.mark.parametrize("method", METHODS)
def test_mean_gradients_are_averaged_where_samples_are_not_known(method: str) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.scale = nn.Linear(4, 3), nn.Parameter(torch.randn(3))

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) * self.scale

    model, (x, y) = Scaled().double(), data()
    with pytest.warns(tt.TangentWarning, match=r"scale \(Scaled\): 1 of 3 parameters get the diagonal"):
        opt = METHODS[method](model, 0.1, EPS)
    squares = None
    for _ in range(4):
        before = model.scale.detach().clone()
        train(model, opt, x, y)
        g = model.scale.grad
        squares = N * g.square() if squares is None else 0.95 * squares + 0.05 * N * g.square()
        torch.testing.assert_close(model.scale, before - 0.1 * g / (squares + EPS), rtol=1e-10, atol=1e-12)


def test_a_model_without_rules_is_descended_all_the_same() -> None:
    model, (x, y) = nn.Bilinear(4, 4, 3).double(), data()
    before = flat(model)
    with pytest.warns(
        tt.TangentWarning, match=r"no rule for weight \(Bilinear\), bias \(Bilinear\): 2 of 2 parameters"
    ):
        opt = EKFAC(model, LR, EPS, kl_clip=None)
    F.cross_entropy(model(x, x), y).backward()
    opt.step()
    g = torch.cat([p.grad.flatten() for p in model.parameters()])
    torch.testing.assert_close(flat(model), before - LR * averaged(g, N))


def test_rows_that_are_no_samples_are_left_out() -> None:
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x[:5])

    model, (x, y) = Flat().double(), data()
    before = flat(model)
    opt = EKFAC(model, LR, EPS, kl_clip=None)
    for _ in range(2):
        F.cross_entropy(model(x), y[:5]).backward()
    with pytest.warns(tt.TangentWarning, match="it saw 5 rows for 7 samples"):
        opt.step()
    g = torch.cat([p.grad.flatten() for p in model.parameters()])
    torch.testing.assert_close(flat(model), before - LR * averaged(g, 2 * N))


def test_unused_layers_do_not_move() -> None:
    model, (x, y) = mlp().append(nn.Linear(3, 3).double()), data()
    before = model[3].weight.detach().clone()
    opt = EKFAC(model, 0.1, EPS, weight_decay=0.1)
    for _ in range(2):
        opt.zero_grad()
        F.cross_entropy(model[:3](x), y).backward()
        opt.step()
    assert torch.equal(model[3].weight, before)


@pytest.mark.parametrize("method", METHODS)
def test_sampled_curvature_is_the_models_own(method: str) -> None:
    """The gradient is the loss's, the curvature does not know the labels."""
    model, (x, y) = mlp(), data()
    other = copy.deepcopy(model)
    kept = []
    for net, labels in ((model, y), (other, (y + 1) % 3)):
        opt = METHODS[method](net, 0.1, EPS, curvature="sampled", likelihood="categorical")

        def closure(net: nn.Module = net, labels: Tensor = labels, opt: Any = opt) -> tuple[Tensor, Tensor]:
            opt.zero_grad()
            out = net(x)
            return F.cross_entropy(out, labels), out

        wanted = torch.autograd.grad(F.cross_entropy(net(x), labels), net[0].weight)[0]
        loss = opt.step(closure)
        assert loss.shape == ()
        torch.testing.assert_close(net[0].weight.grad, wanted)
        kept.append({k: v for k, v in opt.state[net[0].weight].items() if k in ("left", "right")})
    assert all(torch.equal(kept[0][key], kept[1][key]) for key in kept[0])
    assert not torch.equal(flat(model), flat(other))


def test_sampled_curvature_is_unbiased() -> None:
    """The mean over seeds of E[ddᵀ] is the Fisher of the logits, diag(p) − ppᵀ, averaged over samples."""
    layer, (x, y) = nn.Linear(4, 3).double(), data()
    p = torch.softmax(layer(x), 1).detach()
    wanted = (torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)).mean(0)
    total = torch.zeros(3, 3).double()
    for seed in range(400):
        net = copy.deepcopy(layer)
        opt = EKFAC(net, 0.1, EPS, curvature="sampled", likelihood="categorical", seed=seed)

        def closure(net: nn.Module = net) -> tuple[Tensor, Tensor]:
            out = net(x)
            return F.cross_entropy(out, y), out

        opt.step(closure)
        state = opt.state[net.weight]
        total += state["left"][0] @ torch.diag(state["rows"][0]) @ state["left"][0].T / 400
        opt.close()
    torch.testing.assert_close(total, wanted, rtol=0, atol=0.03)


def test_closures_are_checked() -> None:
    model, (x, y) = mlp(), data()
    opt = EKFAC(model, 0.1, EPS, curvature="sampled", likelihood="categorical")
    with pytest.raises(ValueError, match="returns \\(loss, outputs\\) without calling backward"):
        opt.step()
    with pytest.raises(ValueError, match="should return \\(loss, outputs\\), two tensors"):
        opt.step(lambda: F.cross_entropy(model(x), y))
    with pytest.raises(ValueError, match="have no graph"):
        opt.step(lambda: (F.cross_entropy(model(x), y), model(x).detach()))

    def eager() -> tuple[Tensor, Tensor]:
        out = model(x)
        loss = F.cross_entropy(out, y)
        loss.backward()
        return loss, out

    with pytest.raises(RuntimeError, match="must not call backward"):
        opt.step(eager)


def test_a_gradient_scaler_changes_nothing() -> None:
    model, (x, y) = mlp(torch.float32), data(dtype=torch.float32)
    other = copy.deepcopy(model)
    train(model, EKFAC(model, 0.1, EPS), x, y, steps=3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    opt = EKFAC(other, 0.1, EPS, scaler=scaler)
    for _ in range(3):
        opt.zero_grad()
        scaler.scale(F.cross_entropy(other(x), y)).backward()
        scaler.step(opt)
        scaler.update()
    torch.testing.assert_close(flat(model), flat(other), rtol=1e-4, atol=1e-5)


def test_autocast() -> None:
    """Under bfloat16 the factors are summed in float32, and the step is nearly the same."""
    model, (x, y) = mlp(torch.float32), data(64, dtype=torch.float32)
    other, before = copy.deepcopy(model), flat(model)
    train(model, EKFAC(model, 0.1, 0.1), x, y)
    opt = EKFAC(other, 0.1, 0.1)
    with torch.autocast("cpu", torch.bfloat16):
        loss = F.cross_entropy(other(x), y)
    loss.backward()
    opt.step()
    assert opt.state[other[0].weight]["left"].dtype == torch.float32
    difference = torch.linalg.vector_norm(flat(other) - flat(model)) / torch.linalg.vector_norm(flat(model) - before)
    assert 0 < difference < 0.1


@pytest.mark.parametrize("method", METHODS)
def test_half_precision_parameters(method: str) -> None:
    """Second moments stay in float32, also through a checkpoint."""
    model, (x, y) = mlp(torch.bfloat16), data(32, dtype=torch.bfloat16)
    opt = METHODS[method](model, 0.1, 0.1, momentum=0.5)
    train(model, opt, x, y, steps=2)
    assert opt.state[model[0].weight]["left"].dtype == torch.float32
    other = copy.deepcopy(model)
    again = METHODS[method](other, 0.1, 0.1, momentum=0.5)
    again.load_state_dict(copy.deepcopy(opt.state_dict()))
    train(model, opt, x, y, steps=3)
    train(other, again, x, y, steps=3)
    assert flat(model).dtype == torch.bfloat16
    assert torch.equal(flat(model), flat(other))


def test_damping_adapts_to_the_quadratic_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model, (x, y) = mlp(), data()
    opt = EKFAC(model, 0.2, Adaptive(EPS, every=1), kl_clip=None)
    seen = ratios(monkeypatch)
    before, theta = F.cross_entropy(model(x), y).item(), flat(model)
    step(model, opt, x, y)
    delta = flat(model) - theta
    g = torch.cat([p.grad.flatten() for p in model.parameters()])
    promised = float(-(g @ delta) * (1 - 0.2 / 2))
    after = F.cross_entropy(model(x), y).item()
    assert seen == [pytest.approx((before - after) / promised, rel=1e-9)]


def test_the_factor_on_adaptive_damping() -> None:
    for ratio, factor in ((0.8, 0.95), (0.5, 1.0), (0.1, 1 / 0.95), (float("nan"), 1 / 0.95)):
        assert Adaptive(EPS, every=1).change(ratio) == factor
        assert Adaptive(EPS, every=3).change(ratio) == pytest.approx(factor**3)
        assert Adaptive(EPS, every=1).change(ratio, clipped=True) == max(1.0, factor)


def test_adaptive_damping_does_not_fall_while_steps_are_shortened() -> None:
    """They hold whatever the damping is, so that it would shrink without end."""
    model, (x, y) = mlp(), data()
    opt = EKFAC(model, 0.5, Adaptive(EPS, every=1), kl_clip=1e-9)
    for _ in range(5):
        step(model, opt, x, y)
    assert opt.clipped == 5
    assert opt.param_groups[0]["damping"] == EPS
    with pytest.raises(ValueError, match="momentum adds that of earlier steps"):
        step(model, EKFAC(model, 0.5, Adaptive(EPS), momentum=0.9), x, y)


def ratios(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What adaptive damping looks at, step by step."""
    seen: list[float] = []

    def change(self: Adaptive, ratio: float, *, clipped: bool) -> float:
        seen.append(ratio)
        return 1.0

    monkeypatch.setattr(Adaptive, "change", change)
    return seen


def step(model: nn.Module, opt: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    """One step with a closure."""

    def closure() -> float:
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        if torch.is_grad_enabled():
            loss.backward()
        return loss.item()

    opt.step(closure)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("reload", [False, True])
def test_states_follow_a_model_to_another_dtype(method: str, reload: bool) -> None:
    """model.double() in mid-run, or a checkpoint of a float32 run for a float64 model."""
    (x, y), wide = data(32), mlp()
    model = copy.deepcopy(wide).float()
    opt, reference = METHODS[method](model, 0.1, 0.1, momentum=0.5), METHODS[method](wide, 0.1, 0.1, momentum=0.5)
    train(model, opt, x.float(), y, steps=3)
    train(wide, reference, x, y, steps=6)
    if reload:
        saved, model = opt.state_dict(), copy.deepcopy(model)
        opt = METHODS[method](model.double(), 0.1, 0.1, momentum=0.5)
        opt.load_state_dict(saved)
    train(model.double(), opt, x, y, steps=3)
    assert {t.dtype for state in opt.state.values() for t in state.values()} == {torch.float64}
    torch.testing.assert_close(flat(model), flat(wide), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_gradients_that_are_almost_zero(method: str) -> None:
    """The ratio of the two factors' sizes leaves the range of float32."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    opt = METHODS[method](model, 0.1, 0.1)
    for _ in range(3):
        opt.zero_grad()
        (1e-21 * model(torch.randn(8, 3)).square().mean()).backward()
        opt.step()
    assert opt.steps == 3
    assert all(torch.isfinite(t).all() for state in opt.state.values() for t in state.values())


def test_groups_by_pattern_or_predicate() -> None:
    model = mlp()
    opt = EKFAC(model, 0.1, EPS, params=[{"params": "0.*", "lr": 0.01}])
    opt.add_param_group({"params": lambda name, p: not name.startswith("0."), "damping": 1.0})
    by_name = {id(p): name for name, p in model.named_parameters()}
    found = [sorted(by_name[id(p)] for p in group["params"]) for group in opt.param_groups]
    assert found[0] == ["0.bias", "0.weight"]
    assert found[0] + found[1] == sorted(by_name.values())
    assert [group["lr"] for group in opt.param_groups] == [0.01, 0.1]


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="needs gloo")
def test_two_ranks_are_one_process_on_the_joint_batch(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(two_ranks.work, (str(tmp_path),), nprocs=2)
    for method in ("batch", "average", "kfac"):
        for reduction in ("mean", "sum"):
            alone = two_ranks.network()
            wanted = two_ranks.run(alone, alone, method, reduction, slice(None))
            found = [torch.load(tmp_path / f"{method}-{reduction}-{rank}.pt") for rank in (0, 1)]
            assert torch.equal(found[0], found[1])
            torch.testing.assert_close(found[0], wanted, rtol=1e-9, atol=1e-11)


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="needs gloo")
def test_ranks_stay_together(tmp_path: Path) -> None:
    """One damping for all, though losses differ; a layer that some ranks do not use is an error, no endless wait."""
    torch.multiprocessing.spawn(two_ranks.adapt, (str(tmp_path),), nprocs=2)
    assert torch.equal(*(torch.load(tmp_path / f"adapted-{rank}.pt") for rank in (0, 1)))
    assert all(torch.load(tmp_path / f"expert-{rank}.pt") for rank in (0, 1))


def test_training_lowers_the_loss() -> None:
    for method in METHODS.values():
        torch.manual_seed(0)
        model, (x, y) = mlp(torch.float32), data(32, dtype=torch.float32)
        first = F.cross_entropy(model(x), y).item()
        train(model, method(model, 0.3, 0.1, basis_every=5), x, y, steps=60)
        assert F.cross_entropy(model(x), y).item() < 0.6 * first


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": 0.0}, "lr=0.0: it should be positive"),
        ({"damping": -1.0}, "damping=-1.0: it should be positive"),
        ({"momentum": 1.0}, r"momentum=1.0: it should be in \[0, 1\)"),
        ({"weight_decay": -0.1}, "weight_decay=-0.1: it should be finite and not negative"),
        ({"basis_every": 0}, "basis_every=0"),
        ({"kl_clip": 0.0}, "kl_clip=0.0"),
        ({"decay": 1.0}, "decay=1.0"),
        ({"scalings": "none"}, "scalings='none' is not known. Choose one of 'batch', 'average'"),
        ({"damping_rule": "pi"}, "damping_rule='pi' is not known"),
        ({"rest": "exact"}, "rest='exact' is not known"),
        ({"loss": "max"}, "loss='max' is not known"),
        ({"curvature": "exact"}, "curvature='exact' is not known"),
        ({"curvature": "sampled"}, "curvature='sampled' draws labels from a likelihood=. Choose one of 'categorical'"),
        ({"likelihood": "gaussian"}, "likelihood='gaussian' is for curvature='sampled', here it is 'empirical'"),
        ({"likelihood": "poisson"}, "likelihood='poisson' is not known"),
        ({"damping": float("inf")}, "damping=inf: it should be positive, and finite"),
        ({"basis_every": 2.5}, "basis_every=2.5: the number of steps between decompositions is a whole number"),
        ({"params": []}, "params is empty: there is nothing to optimize"),
        ({"params": [{"params": iter(())}]}, "params is empty: there is nothing to optimize"),
        ({"params": "nothing.*"}, "matches no trainable parameter"),
        ({"params": [nn.Parameter(torch.zeros(2))]}, r"Parameter 0 of the group, of shape \(2,\), is not in the model"),
    ],
)
def test_bad_input(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EKFAC(mlp(), **{"lr": 0.1, "damping": 0.1, **options})


def test_a_foreign_state_is_refused() -> None:
    model = mlp()
    with pytest.raises(ValueError, match="no state of KFAC"):
        KFAC(model, 0.1, 0.1).load_state_dict(torch.optim.SGD(model.parameters(), 0.1).state_dict())


def test_parameters_can_be_chosen_and_added() -> None:
    model, (x, y) = mlp(), data()
    before = copy.deepcopy(model)
    opt = EKFAC(model, 0.1, EPS, params="2.*")
    train(model, opt, x, y)
    assert torch.equal(model[0].weight, before[0].weight)
    assert not torch.equal(model[2].weight, before[2].weight)
    with pytest.raises(ValueError, match="not in the model"):
        opt.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    opt.add_param_group({"params": list(model[0].parameters()), "damping": 1.0})
    train(model, opt, x, y)
    assert not torch.equal(model[0].weight, before[0].weight)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [line.split()[0] for line in opt.explain().splitlines()][:4] == list(dict(model.named_parameters()))


# --------------------------------------------------------------------------- few samples and wide layers


@pytest.mark.parametrize("shape", [(1, 3, 9), (1, 1, 4), (2, 5, 12)])
def test_eigenvectors_of_a_few_rows(shape: tuple[int, int, int]) -> None:
    rows = torch.randn(shape).double()
    rows[:, -1] = rows[:, 0]  # of lower rank than there are rows
    values, vectors = eigenbasis(rows, "test")
    n = shape[2]
    assert bool((values >= 0).all())
    torch.testing.assert_close(vectors.mT @ vectors, torch.eye(n).double().expand(len(rows), n, n))
    torch.testing.assert_close(vectors * values.unsqueeze(1) @ vectors.mT, rows.mT @ rows)


@pytest.mark.parametrize("scalings", ["batch", "average"])
def test_wide_layers_are_decomposed_through_their_samples(scalings: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same steps, to rounding, as through the second moments themselves: all gradients are in their span."""
    wide = nn.Sequential(nn.Linear(40, 30), nn.Tanh(), nn.LayerNorm(30), nn.Linear(30, 25, bias=False)).double()
    x, y = torch.randn(6, 40).double(), torch.randint(25, (6,))
    found, shapes = [], []

    def spied(M: Tensor, what: str) -> Any:
        shapes.append(tuple(M.shape))
        return eigenbasis(M, what)

    monkeypatch.setattr(decompose, "eigenbasis", spied)
    for by_rows in (True, False):
        monkeypatch.setattr(ekfac.Scalings, "by_rows", by_rows)
        model = copy.deepcopy(wide)
        train(model, EKFAC(model, 0.1, EPS, scalings=scalings, basis_every=1), x, y, steps=3)
        found.append(flat(model))
    torch.testing.assert_close(*found, rtol=1e-8, atol=1e-10)
    assert {(1, 6, 30), (1, 6, 41), (1, 6, 60)} <= set(shapes[: len(shapes) // 2])
    assert all(rows == n for _, rows, n in shapes[len(shapes) // 2 :])
