"""Preconditioning from a recorded graph, with a stand-in for CUDA's: it computes anew from the places it reads."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from oracle import flat
from torch import Tensor, nn

import torchtangent as tt
from torchtangent.optim import directions, replay


@pytest.fixture(autouse=True)
def recordings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have everything recorded; how often each recording was replayed."""
    replays: list[int] = []

    def record(compute):
        solved, number = compute(), len(replays)
        replays.append(0)

        def again() -> None:
            replays[number] += 1
            for (parts, state), (new, after) in zip(solved, compute(), strict=True):
                for name, t in new.items():
                    parts[name].copy_(t)
                for name, t in after.items():
                    if state[name] is not t:
                        state[name].copy_(t)

        return solved, again

    monkeypatch.setattr(replay, "record", record)
    monkeypatch.setattr(replay, "_suit", lambda method, tasks: not method.fresh)
    monkeypatch.setattr(directions, "_batched", lambda tasks: [tasks] if tasks else [])
    return replays


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv2d(2, 3, 3), nn.GroupNorm(1, 3), nn.Tanh(), nn.Flatten(), nn.Linear(12, 4)
    return nn.Sequential(*layers).double()


def batch(i: int, n: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(i)
    x = torch.randn(n, 2, 4, 4, generator=generator, dtype=torch.float64)
    return x, torch.randint(4, (n,), generator=generator)


def trained(optimizer, sizes: list[int], change=None, **options) -> tuple[Tensor, tt.optim.KFAC]:
    """The parameters after steps on batches of these sizes, and the optimizer."""
    model = network()
    opt = optimizer(model, lr=0.1, damping=0.1, momentum=0.9, basis_every=5, **options)
    for i, n in enumerate(sizes):
        if change is not None:
            change(i, opt)
        x, y = batch(i, n)
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        opt.step()
    return flat(model), opt


OPTIMIZERS = {
    "KFAC": lambda model, **options: tt.optim.KFAC(model, **options),
    "KFAC, one damping": lambda model, **options: tt.optim.KFAC(model, damping_rule="single", **options),
    "EKFAC-ra": lambda model, **options: tt.optim.EKFAC(model, scalings="average", **options),
}
VARIANTS = {"": {}, "SUA": {"sua": True}, "decay": {"weight_decay": 0.1}, "clip": {"kl_clip": 1e-4}}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_replayed_steps_are_the_same_steps(kind: str, variant: str, recordings: list[int], monkeypatch) -> None:
    sizes = 12 * [6]
    found, _ = trained(OPTIMIZERS[kind], sizes, **VARIANTS[variant])
    assert recordings == [10]
    monkeypatch.setattr(replay, "_suit", lambda method, tasks: False)
    expected, _ = trained(OPTIMIZERS[kind], sizes, **VARIANTS[variant])
    assert torch.equal(found, expected)


def test_an_odd_batch_now_and_then_keeps_the_recording(recordings: list[int]) -> None:
    trained(OPTIMIZERS["EKFAC-ra"], 3 * [6, 6, 6, 6, 5])
    assert recordings == [10]


def test_another_damping_is_another_recording(recordings: list[int], monkeypatch) -> None:
    def change(i: int, opt) -> None:
        if i == 5:
            opt.param_groups[0]["damping"] = 0.5

    found, _ = trained(OPTIMIZERS["EKFAC-ra"], 13 * [6], change)
    assert recordings == [3, 4]  # steps 3 to 5; then four steps of patience
    monkeypatch.setattr(replay, "_suit", lambda method, tasks: False)
    expected, _ = trained(OPTIMIZERS["EKFAC-ra"], 13 * [6], change)
    assert torch.equal(found, expected)


def test_what_changes_at_every_step_is_not_recorded(recordings: list[int]) -> None:
    def change(i: int, opt) -> None:
        opt.param_groups[0]["damping"] = 0.1 + i

    trained(OPTIMIZERS["KFAC"], 10 * [6], change)
    assert recordings == []


def test_a_step_that_is_not_finite_leaves_everything_as_it_was(recordings: list[int]) -> None:
    model = network()
    opt = tt.optim.EKFAC(model, lr=0.1, damping=0.1, scalings="average", momentum=0.9, basis_every=50)

    def step(scale: float) -> None:
        x, y = batch(0)
        opt.zero_grad()
        (F.cross_entropy(model(x), y) * scale).backward()
        opt.step()

    for _ in range(6):
        step(1.0)
    before = [t.clone() for t in (*model.parameters(), *(t for state in opt.state.values() for t in state.values()))]
    with pytest.warns(UserWarning, match="skipped"):
        step(float("nan"))
    after = [*model.parameters(), *(t for state in opt.state.values() for t in state.values())]
    assert recordings == [5]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_a_recording_that_fails_is_told_and_done_without(monkeypatch) -> None:
    def fail(compute):
        raise RuntimeError("operation not permitted\nmore")

    monkeypatch.setattr(replay, "record", fail)
    with pytest.warns(UserWarning, match=r"cannot be a CUDA graph \(operation not permitted\)") as told:
        _, opt = trained(OPTIMIZERS["KFAC"], 30 * [6])
    assert opt.steps == 30
    assert len([w for w in told if "CUDA graph" in str(w.message)]) == 1


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("assigned", [True, False])
def test_gradients_written_through_data(kind: str, assigned: bool, monkeypatch) -> None:
    """Which raises no version."""

    def run() -> Tensor:
        model = network()
        opt = OPTIMIZERS[kind](model, lr=0.1, damping=0.1, basis_every=50)
        params = list(model.parameters())
        for p in params:
            p.grad = torch.zeros_like(p)
        for i in range(8):
            x, y = batch(i)
            for p, g in zip(params, torch.autograd.grad(F.cross_entropy(model(x), y), params), strict=True):
                if assigned:
                    p.grad.data = g
                else:
                    p.grad.data.copy_(g)
            opt.step()
        return torch.cat([p.detach().flatten() for p in params])

    found = run()
    monkeypatch.setattr(replay, "_suit", lambda method, tasks: False)
    assert torch.equal(found, run())


def test_precision_by_the_new_names(recordings: list[int]) -> None:
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        trained(OPTIMIZERS["KFAC"], 5 * [6])
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
    assert recordings == [3]
