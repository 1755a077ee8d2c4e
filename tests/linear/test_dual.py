"""Training in function space against torch.optim.SGD on the linear model in parameter space, with the same batches."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchtangent as tt
from torchtangent import progress
from torchtangent.linear import dual, trajectory
from torchtangent.operators import LowRankOperator

N, M, TARGETS = 24, 9, 3

LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "bce": F.binary_cross_entropy_with_logits,
    "cross-entropy": F.cross_entropy,
    "mse": F.mse_loss,
    "hinge": lambda f, y: torch.relu(1 - y * f).mean(),
}
RULES: dict[str, dict[str, Any]] = {
    "plain": {"lr": 0.1},
    "momentum": {"lr": 0.05, "momentum": 0.9},
    "nesterov": {"lr": 0.05, "momentum": 0.8, "nesterov": True},
    "decay": {"lr": 0.1, "weight_decay": 0.05},
    "momentum and decay": {"lr": 0.05, "momentum": 0.7, "weight_decay": 0.1},
    "all": {"lr": 0.08, "momentum": 0.9, "nesterov": True, "weight_decay": 0.02, "schedule": "linear"},
}


@dataclass
class Problem:
    """A linear model f₀ + J(θ − θ₀) with its test samples and targets."""

    model: nn.Module
    x: Tensor
    theta0: Tensor
    J: Tensor  # (N + M, C, P), by autograd
    f0: Tensor  # (N + M, C)
    y: Tensor  # as the user gives them, for N + M samples

    @cached_property
    def kernel(self) -> dict[str, Tensor]:
        """(N + M, N + M, C, C), in parts."""
        K = torch.einsum("ncp,mep->nmce", self.J, self.J)
        return {"K": K[:N, :N], "K_test": K[N:, :N]}

    @property
    def J0(self) -> Tensor:  # noqa: N802
        return self.J @ self.theta0

    def train(self, **options: Any) -> dual.SGD:
        return dual.SGD(self.kernel["K"], self.y[:N], f0=self.f0[:N], J0=self.J0[:N], **options)

    @property
    def test(self) -> dict[str, Tensor]:
        K_test = self.kernel["K_test"]
        return {"K_test": K_test, "y_test": self.y[N:], "f0_test": self.f0[N:], "J0_test": self.J0[N:]}


def labels(loss: str, outputs: int) -> Tensor:
    if loss == "cross-entropy":
        return torch.randint(outputs, (N + M, TARGETS))
    shape = (N + M, outputs, TARGETS) if outputs > 1 else (N + M, TARGETS)
    noise = torch.randn(shape, dtype=torch.float64)
    return {"bce": (noise > 0).double(), "hinge": noise.sign(), "mse": noise}[loss]


@cache
def problem(loss: str = "bce", outputs: int = 1) -> Problem:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, outputs)).double()
    x = torch.randn(N + M, 5, dtype=torch.float64)
    theta0 = oracle.flat(model)
    return Problem(model, x, theta0, oracle.jacobian(model, x), model(x).detach(), labels(loss, outputs))


@cache
def batches(steps: int) -> list[Tensor]:
    """Four uneven batches an epoch; the samples of every other epoch are drawn with replacement."""
    generator = torch.Generator().manual_seed(3)
    found: list[Tensor] = []
    for epoch in range(steps // 4):
        order = torch.randperm(N, generator=generator)
        if epoch % 2:
            order = torch.randint(N, (N,), generator=generator)
        found += order.split(7)
    return found


@cache
def by_parameters(loss: str, outputs: int, count: int, *rules: str) -> dict[str, tuple[Tensor, Tensor]]:
    """For each rule θ (P, targets) by torch.optim.SGD, and the losses after each fifth of the steps.

    All rules in one optimizer, as groups of parameters, to save time.
    """
    p, steps = problem(loss, outputs), batches(count)
    thetas = {rule: nn.Parameter(p.theta0[:, None].repeat(1, TARGETS)) for rule in rules}
    constant, linear = (lambda t: 1.0), (lambda t: 1 - t / len(steps))
    factors = [linear if "schedule" in RULES[rule] else constant for rule in rules]
    groups = [{"params": [thetas[rule]], **RULES[rule]} for rule in rules]
    optimizer = torch.optim.SGD([{k: v for k, v in group.items() if k != "schedule"} for group in groups])
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factors)
    y = p.y if loss == "cross-entropy" or outputs > 1 else p.y[:, None]
    all_y = torch.cat([y] * len(rules), -1)

    def f(index: Tensor | slice) -> Tensor:
        return p.f0[index, :, None] + p.J[index] @ (torch.cat([*thetas.values()], 1) - p.theta0[:, None])

    curves = []
    for t, batch in enumerate(steps, 1):
        optimizer.zero_grad()
        (all_y.shape[-1] * LOSSES[loss](f(batch), all_y[batch])).backward()  # the sum of the targets' means
        optimizer.step()
        schedule.step()
        if t % (len(steps) // 5) == 0:
            for index in (slice(N), slice(N, None)):
                g, z = f(index).detach(), all_y[index]
                curves += [LOSSES[loss](g[..., k], z[..., k]) for k in range(all_y.shape[-1])]
    found = torch.stack(curves).view(5, 2, len(rules), TARGETS)
    return {rule: (theta.detach(), found[:, :, i]) for i, (rule, theta) in enumerate(thetas.items())}


def close(found: Tensor, expected: Tensor, tol: float = 1e-8) -> bool:
    """Whether they agree in shape and, relative to the size of what is expected, in value."""
    return found.shape == expected.shape and float((found - expected).norm()) <= tol * float(expected.norm())


# Every loss with all options at once, and every option once, for many steps; the other combinations for fewer.
LONG = {("bce", 1): ("all",), ("hinge", 1): ("all", "momentum"), ("mse", 3): ("all", "nesterov")}
LONG |= {("cross-entropy", 3): ("all", "decay"), ("mse", 1): ()}
SHORT = {case: tuple(rule for rule in RULES if rule not in rules) for case, rules in LONG.items()}
SHORT["mse", 1] = ("all",)
RUNS = {1000: LONG, 200: SHORT}


@pytest.mark.parametrize(
    ("count", "loss", "outputs", "rule"),
    [(count, *case, rule) for count, cases in RUNS.items() for case, rules in cases.items() for rule in rules],
)
def test_follows_sgd_in_parameter_space(count: int, loss: str, outputs: int, rule: str) -> None:
    p = problem(loss, outputs)
    theta, curves = by_parameters(loss, outputs, count, *RUNS[count][loss, outputs])[rule]
    fit = p.train(loss=loss, **RULES[rule]).run(batches=batches(count), epochs=5, **p.test)
    change = theta - p.theta0[:, None]
    assert change.norm() > 0.1  # something was learned

    f = p.f0[..., None] + p.J @ change
    f = f if outputs > 1 else f[:, 0]
    assert fit.c.shape == f[:N].shape
    assert close(fit.predict(p.kernel["K"], f0=p.f0[:N], J0=p.J0[:N]), f[:N])
    assert close(fit.predict(p.kernel["K_test"], f0=p.f0[N:], J0=p.J0[N:]), f[N:])
    assert close(fit.distance(float(p.theta0.norm())), change.norm(dim=0))
    assert close(fit.train_loss, curves[:, 0])
    assert fit.test_loss is not None
    assert close(fit.test_loss, curves[:, 1])
    J = tt.jacobian(p.model, p.x[:N])
    for k in range(TARGETS):
        assert close(torch.cat([t.flatten() for t in fit.to_parameters(J, target=k).values()]), theta[:, k])


@pytest.mark.parametrize("loss", ["bce", "hinge", "cross-entropy"])
def test_accuracies(loss: str) -> None:
    outputs = 3 if loss == "cross-entropy" else 1
    p = problem(loss, outputs)
    fit = p.train(loss=loss, lr=0.2).run(epochs=7, batch_size=5, **p.test)
    for index, K, found in (
        (slice(N), "K", fit.train_accuracy),
        (slice(N, None), "K_test", fit.test_accuracy),
    ):
        f, y = fit.predict(p.kernel[K], f0=p.f0[index], J0=p.J0[index]), p.y[index]
        right = f.argmax(1) == y if outputs > 1 else (f > 0) == (y > 0)
        assert 0 < right.double().mean() < 1
        assert found is not None
        assert found.shape == (7, TARGETS)
        assert close(found[-1], right.double().mean(0))
    assert problem("mse").train(loss="mse", lr=0.1).run().train_accuracy is None


def test_targets_at_once_are_targets_one_by_one() -> None:
    p, rule = problem("cross-entropy", 3), {"loss": "cross-entropy", **RULES["all"]}
    at_once = p.train(**rule).run(epochs=9, batch_size=5, **p.test)
    assert at_once.test_loss is not None
    for k in range(TARGETS):
        alone = dual.SGD(p.kernel["K"], p.y[:N, k], f0=p.f0[:N], J0=p.J0[:N], **rule)
        fit = alone.run(epochs=9, batch_size=5, **{**p.test, "y_test": p.y[N:, k]})
        assert close(fit.c, at_once.c[..., k], 1e-12)
        assert close(fit.train_loss, at_once.train_loss[:, k], 1e-12)
        assert fit.test_loss is not None
        assert close(fit.test_loss, at_once.test_loss[:, k], 1e-12)
        assert close(fit.distance(2.0), at_once.distance(2.0)[k], 1e-12)
        J = tt.jacobian(p.model, p.x[:N])
        assert all(
            torch.allclose(u, v, rtol=1e-12)
            for u, v in zip(fit.to_parameters(J).values(), at_once.to_parameters(J, target=k).values(), strict=True)
        )


def kernels(p: Problem, folder: Path) -> dict[str, Any]:
    """The same kernel, in all the ways that it may be given."""
    K = p.kernel["K"]
    flat = tt.flatten(K)
    np.save(folder / "kernel.npy", K.numpy())
    features = tt.sketch.Features(p.J[:N].flatten(0, 1), error=0.0, trace_error=0.0, extend=lambda x: x)
    return {
        "tensor": K,
        "matrix": flat,
        "array": flat.numpy(),
        "file": np.load(folder / "kernel.npy", mmap_mode="r"),
        "operator": tt.sketch.operator(p.model, p.x[:N]),
        "low rank": LowRankOperator(p.J[:N].flatten(0, 1).T),
        "features": features,
    }


@pytest.mark.parametrize("outputs", [1, 3])
def test_every_kind_of_kernel(outputs: int, tmp_path: Path) -> None:
    p = problem("mse", outputs)
    expected = p.train(loss="mse", **RULES["nesterov"]).run(epochs=3, batch_size=5)
    for name, K in kernels(p, tmp_path).items():
        fit = dual.SGD(K, p.y[:N], f0=p.f0[:N], loss="mse", **RULES["nesterov"]).run(epochs=3, batch_size=5)
        assert close(fit.c, expected.c, 1e-11), name
        assert close(fit.predict(K, f0=p.f0[:N]), expected.predict(p.kernel["K"], f0=p.f0[:N]), 1e-11), name


@pytest.mark.parametrize("rows", [1, 10, 40])
@pytest.mark.parametrize("outputs", [1, 3])
def test_the_number_of_rows_at_a_time_does_not_matter(outputs: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    p = problem("mse", outputs)
    sgd = p.train(loss="mse", **RULES["all"])
    expected = sgd.run(batches=batches(20))
    monkeypatch.setattr(trajectory, "_ROWS", rows)
    assert close(sgd.run(batches=batches(20)).c, expected.c, 1e-12)


def test_batches_are_drawn_by_the_seed() -> None:
    """Each epoch all samples in a new order, the same for every kernel."""
    sgd = problem().train(lr=0.1)
    generator = torch.Generator().manual_seed(5)
    order = [b for _ in range(3) for b in torch.randperm(N, generator=generator).split(7)]
    assert torch.equal(sgd.run(epochs=3, batch_size=7, seed=5).c, sgd.run(epochs=3, batches=order).c)
    whole = [b for b in order if len(b) == 7]
    assert torch.equal(sgd.run(epochs=3, batch_size=7, seed=5, drop_last=True).c, sgd.run(epochs=3, batches=whole).c)
    assert not torch.equal(sgd.run(epochs=3, batch_size=7, seed=6).c, sgd.run(epochs=3, batches=order).c)


@pytest.mark.parametrize(
    ("name", "factor"),
    [("linear", lambda t: 1 - t / 20), ("cosine", lambda t: np.cos(np.pi * t / 40) ** 2), ("constant", lambda t: 1)],
)
def test_schedules_by_name(name: str, factor: Callable[[int], float]) -> None:
    p = problem()
    found, expected = (p.train(lr=0.3, schedule=s).run(epochs=5, batch_size=7) for s in (name, factor))
    assert close(found.c, expected.c, 1e-12)


def test_without_f0_the_outputs_start_at_zero() -> None:
    p = problem()
    K = p.kernel["K"]
    fit = dual.SGD(K, p.y[:N], lr=0.1, momentum=0.9).run(epochs=4)
    zero = dual.SGD(K, p.y[:N], f0=torch.zeros(N), lr=0.1, momentum=0.9).run(epochs=4)
    assert torch.equal(fit.c, zero.c)
    assert torch.equal(fit.predict(K), zero.predict(K, f0=torch.zeros(N)))
    assert fit.a == 0
    assert fit.test_loss is fit.test_accuracy is None


def test_float32() -> None:
    p = problem("mse")
    exact = p.train(loss="mse", **RULES["all"]).run(batches=batches(1000), epochs=5)
    K = p.kernel["K"].float()
    rough = dual.SGD(K, p.y[:N], f0=p.f0[:N], J0=p.J0[:N], loss="mse", **RULES["all"]).run(
        batches=batches(1000), epochs=5
    )
    assert rough.c.dtype == rough.train_loss.dtype == torch.float32
    assert close(rough.train_loss.double(), exact.train_loss, 1e-5)
    f, g = rough.predict(K, f0=p.f0[:N], J0=p.J0[:N]), exact.predict(p.kernel["K"], f0=p.f0[:N], J0=p.J0[:N])
    # The terms of K c cancel to a hundredth: it is they that float32 rounds.
    terms = p.kernel["K"].abs()[:, :, 0, 0] @ exact.c.abs().view(N, -1)
    assert float((f.double() - g).norm()) <= torch.finfo(torch.float32).eps * float(terms.norm())


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_many_steps_in_float32(momentum: float) -> None:
    """c is as exact as if it were rounded once: its sum over thousands of steps does not drift."""
    torch.manual_seed(0)
    x, y = torch.randn(64, 5), torch.randn(64)
    K = tt.ntk(nn.Sequential(nn.Linear(5, 100), nn.Tanh(), nn.Linear(100, 1)), x, reduce="trace")
    order = [batch for _ in range(1000) for batch in torch.randperm(64).split(8)]
    fit = dual.SGD(K, y, loss="mse", lr=0.02, momentum=momentum).run(epochs=1000, batches=order, K_test=K)
    exact, c, q = K.double().numpy(), np.zeros(64), np.zeros(64)
    for batch in (b.numpy() for b in order):
        h = np.zeros(64)
        h[batch] = 2 * (exact[batch] @ c - y.double().numpy()[batch]) / 8
        q = momentum * q + h
        c = c - 0.02 * q
    rounded = float(np.linalg.norm(np.abs(exact) @ np.abs(c))) * torch.finfo(torch.float32).eps / 4
    assert fit.c.dtype == torch.float32
    for found in (fit.predict(K), fit.predict(K.double()), fit.test_outputs):
        assert found is not None
        assert np.linalg.norm(found.double().numpy() - exact @ c) <= rounded


@pytest.mark.parametrize("batch_size", [7, N])
def test_autocast_is_left_alone(batch_size: int) -> None:
    p = problem("mse")
    K, K_test, y = p.kernel["K"][..., 0, 0].float(), p.kernel["K_test"][..., 0, 0].float(), p.y[:N]

    def run() -> dual.Fit:
        sgd = dual.SGD(K, y, loss="mse", lr=0.05, momentum=0.9)
        return sgd.run(epochs=9, batch_size=batch_size, K_test=K_test, y_test=p.y[N:])

    expected = run()
    with torch.autocast("cpu", torch.bfloat16):
        fit = run()
        predicted = fit.predict(K)
    assert torch.equal(predicted, expected.predict(K))
    for name in ("c", "train_loss", "test_loss", "test_outputs", "quadratic"):
        assert torch.equal(getattr(fit, name), getattr(expected, name)), name


def test_theta0_elsewhere_and_labels_of_any_dtype() -> None:
    """θ₀ may be given, also as a dict, where the model has moved on; labels may be integers or booleans."""
    p = problem()
    fit = dual.SGD(p.kernel["K"], p.y[:N, 0] > 0, lr=0.1).run()
    other = dual.SGD(p.kernel["K"], p.y[:N, 0].int(), lr=0.1).run()
    assert torch.equal(fit.c, other.c)
    J = tt.jacobian(p.model, p.x[:N])
    named = {n: torch.zeros_like(q) for n, q in p.model.named_parameters()}
    change = J.T @ fit.c[:, None]
    assert torch.equal(torch.cat([v.flatten() for v in fit.to_parameters(J, named).values()]), change)
    assert close(fit.distance(), change.norm(), 1e-12)


def test_constant_numbers_are_learned() -> None:
    """Of a regression: from f₀ there is something to learn."""
    p = problem("mse")
    K, f0, c = p.kernel["K"][..., 0, 0], p.f0[:N, 0], torch.zeros(N, dtype=torch.float64)
    for _ in range(7):
        c = c - 0.1 * 2 / N * (f0 + K @ c - 1)
    fit = dual.SGD(K, torch.ones(N), f0=f0, loss="mse", lr=0.1).run(epochs=7, batch_size=N)
    assert close(fit.c, c, 1e-12)


def test_outputs_at_the_start_may_be_arrays_and_of_each_target() -> None:
    p = problem()
    K, y, f0 = p.kernel["K"], p.y[:N], p.f0[:N]
    expected = dual.SGD(K, y, f0=f0, lr=0.1, momentum=0.9).run(epochs=4, batch_size=7, **p.test | {"J0_test": None})
    for given, there in ((f0.numpy(), p.f0[N:].numpy()), (f0.expand(-1, TARGETS), p.f0[N:].expand(-1, TARGETS))):
        test = p.test | {"f0_test": there, "J0_test": None}
        fit = dual.SGD(K, y, f0=given, lr=0.1, momentum=0.9).run(epochs=4, batch_size=7, **test)
        assert torch.equal(fit.c, expected.c)
        assert fit.test_loss is not None
        assert expected.test_loss is not None
        assert torch.equal(fit.test_loss, expected.test_loss)
    own = torch.stack([f0[:, 0], 0 * f0[:, 0], 2 * f0[:, 0]], 1)
    fit = dual.SGD(K, y, f0=own, lr=0.1).run(epochs=4, batch_size=7)
    for k in range(TARGETS):
        alone = dual.SGD(K, y[:, k], f0=own[:, k], lr=0.1).run(epochs=4, batch_size=7)
        assert close(fit.c[:, k], alone.c, 1e-12)


@pytest.mark.parametrize("loss", ["bce", "hinge", "mse"])
def test_targets_may_lie_in_memory_in_any_order(loss: str) -> None:
    p = problem(loss, 3)
    y = p.y[:N].permute(2, 1, 0).contiguous().permute(2, 1, 0)
    assert not y.is_contiguous()
    found, expected = (dual.SGD(p.kernel["K"], z, loss=loss, lr=0.1).run(batch_size=7) for z in (y, p.y[:N]))
    assert torch.equal(found.c, expected.c)


@pytest.mark.parametrize(("loss", "outputs"), [("bce", 1), ("cross-entropy", 3)])
def test_test_samples_without_labels(loss: str, outputs: int) -> None:
    """Their outputs in the end, and no curves."""
    p = problem(loss, outputs)
    sgd = p.train(loss=loss, **RULES["all"])
    fit = sgd.run(epochs=2, batch_size=7, **p.test | {"y_test": None})
    assert fit.test_loss is fit.test_accuracy is None
    assert fit.test_outputs is not None
    assert fit.test_outputs.shape == ((M, TARGETS) if outputs == 1 else (M, outputs, TARGETS))
    assert torch.equal(fit.test_outputs, fit.predict(p.kernel["K_test"], f0=p.f0[N:], J0=p.J0[N:]))
    labelled = sgd.run(epochs=2, batch_size=7, **p.test)
    assert labelled.test_outputs is not None
    assert torch.equal(labelled.test_outputs, fit.test_outputs)
    assert sgd.run().test_outputs is None


def test_progress(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    sgd = problem().train(lr=0.1)
    sgd.run(epochs=3, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]
    monkeypatch.setattr(progress, "_PATIENCE", -1.0)
    for show in (False, None):  # None: on a terminal only
        sgd.run(epochs=3, progress=show)
    assert capsys.readouterr().err == ""
    sgd.run(epochs=3, progress=True)
    assert "training 100.0%" in (shown := capsys.readouterr().err)
    assert "epochs/s" in shown


def test_divergence_is_said() -> None:
    p = problem("mse")
    K, y = p.kernel["K"][..., 0, 0].float(), torch.zeros(N, 2)
    bound = N / float(torch.linalg.eigvalsh(K)[-1])
    y[:, 1] = p.y[:N, 0]
    y[0, 0] = 1e-30  # so small that it takes longer
    whole = [torch.arange(N)] * 400
    with pytest.raises(FloatingPointError, match=r"epoch \d+, after step \d+, the loss of 1 of 2 targets \(first: 1\)"):
        dual.SGD(K, y, loss="mse", lr=2 * bound).run(epochs=20, batches=whole[:200])
    with pytest.raises(FloatingPointError, match=f"Lower lr, which is .* below {bound:.2g}"):
        dual.SGD(K, y, loss="mse", lr=1.1 * bound).run(epochs=20, batches=whole)
    dual.SGD(K, y, loss="mse", lr=0.9 * bound).run(epochs=20, batches=whole)


def test_the_kernel_is_looked_at_everywhere() -> None:
    """At the start in rows from all over it; a number elsewhere that is not finite comes out in the first epoch."""
    J, y = torch.randn(200, 300, dtype=torch.float64), torch.arange(200) % 2
    K = J @ J.T
    K[100:, :100] = 0
    with pytest.raises(ValueError, match="K is not symmetric"):
        dual.SGD(K, y, lr=1e-4)
    K = J @ J.T
    K[199, 199] = torch.nan
    with pytest.raises(ValueError, match="K has NaN"):
        dual.SGD(K, y, lr=1e-4)
    K = J @ J.T
    K[1, 1] = torch.nan
    with pytest.raises(ValueError, match="K has NaN"):
        dual.SGD(K, y, lr=1e-4).run()


BAD: dict[str, tuple[str, dict[str, Any]]] = {
    "loss='mae' is not known": ("bce", {"loss": "mae"}),
    r"loss='bce' takes labels 0 and 1; y has -1\.0 \(sample \d+, target \d\).*\(y \+ 1\) / 2": (
        "hinge",
        {"loss": "bce"},
    ),
    r"loss='hinge' takes labels -1 and 1; y has 0\.0.*2 \* y - 1": ("bce", {"loss": "hinge"}),
    "needs a kernel with at least two outputs": ("bce", {"loss": "cross-entropy"}),
    "lr must be a finite number": ("bce", {"lr": -1.0}),
    "momentum must be a finite number": ("bce", {"momentum": float("nan")}),
    "nesterov=True needs momentum": ("bce", {"nesterov": True}),
    "weight_decay draws θ to zero": ("bce", {"weight_decay": 0.1, "J0": None}),
    "schedule='step' is not known": ("bce", {"schedule": "step"}),
    r"f0 must have shape \(24,\), or \(24, 3\) with a value for each target; got \(33, 1\)": (
        "bce",
        {"f0": torch.ones(33, 1)},
    ),
    r"J0 must have shape \(24,\).* got \(24, 2\)": ("bce", {"J0": torch.ones(24, 2)}),
    "f0 has NaN or infinity, first in sample 5": (
        "bce",
        {"f0": torch.ones(24).index_fill(0, torch.tensor(5), torch.nan)},
    ),
    "J0 has NaN or infinity, first in sample 0": ("bce", {"J0": torch.full((24,), torch.inf)}),
    "y has NaN or infinity, first in sample 0": ("mse", {"loss": "mse", "y": torch.full((N,), torch.nan)}),
    "y should be numbers": ("bce", {"y": ["cat", "dog"] * 12}),
    r"loss='bce' takes labels 0 and 1; y has 2\.0 \(sample 1\)\.$": ("bce", {"y": torch.arange(N) % 10 + 1}),
    r"loss='hinge' takes labels -1 and 1; y has 2\.0 \(sample 1\)\.$": (
        "bce",
        {"loss": "hinge", "y": torch.arange(N) % 10 + 1},
    ),
    "y is constant": ("bce", {"y": torch.ones(N)}),
    "Target 1 of y is constant: every": ("bce", {"y": torch.stack([torch.arange(N) % 2, torch.ones(N)], 1)}),
    r"Target 0 of y \(and 2 more\) is constant": ("hinge", {"loss": "hinge", "y": torch.ones(N, 3)}),
    r"needs y of shape \(24,\), or \(24, K\) for K targets at once; got \(24, 2, 2\)": (
        "bce",
        {"y": torch.ones(N, 2, 2)},
    ),
    r"needs y of shape \(24,\).*got \(23,\)": ("bce", {"y": torch.ones(23)}),
    r"needs y of shape \(24,\).*got \(\)": ("bce", {"y": torch.tensor(1.0)}),
    r"K must be a square matrix .* got shape \(24, 25\)": ("bce", {"K": torch.ones(24, 25)}),
    "K is not symmetric": ("bce", {"K": torch.rand(24, 24)}),
}


@pytest.mark.parametrize("message", BAD)
def test_errors(message: str) -> None:
    loss, options = BAD[message]
    p = problem(loss)
    given = {"K": p.kernel["K"][..., 0, 0], "y": p.y[:N], "f0": p.f0[:N], "J0": p.J0[:N], "lr": 0.1, **options}
    with pytest.raises(ValueError, match=message):
        dual.SGD(given.pop("K"), given.pop("y"), **given)


def test_errors_of_classes() -> None:
    p = problem("cross-entropy", 3)
    K = p.kernel["K"]
    for y, message in {
        r"integer classes.*dtype torch.float32.*y\.argmax": torch.ones(N, 3),
        r"integer classes from 0 to 2, as K has 3 outputs; y has 3 \(sample 0\)\.$": torch.full((N,), 3),
        r"y has 3 \(sample 2\)\. Classes that are counted from 1 become these by y - 1\.$": torch.arange(N) % 3 + 1,
        r"y has -1 \(sample 1\)\. Labels -1 and 1 become these by \(y \+ 1\) // 2\.$": 1 - 2 * (torch.arange(N) % 2),
        r"y has -2 \(sample 0, target 1\)\.$": torch.tensor([0, -2]).expand(N, 2),
        "y is constant": torch.ones(N).long(),
        r"y is one-hot.*pass classes: y\.argmax\(1\)": F.one_hot(p.y[:N, 0]),
    }.items():
        with pytest.raises(ValueError, match=y):
            dual.SGD(K, message, loss="cross-entropy", lr=0.1)
    with pytest.raises(ValueError, match=r"needs y of shape \(24, 3\), or \(24, 3, K\)"):
        dual.SGD(K, torch.ones(N), loss="mse", lr=0.1)
    with pytest.raises(ValueError, match=r"got \(24,\)\. Classes are passed one-hot.*or with loss='cross-entropy'\."):
        dual.SGD(K, p.y[:N, 0], lr=0.1)
    test = {"K_test": p.kernel["K_test"], "y_test": F.one_hot(p.y[N:, 0], 3)}
    with pytest.raises(ValueError, match=r"y_test is one-hot.*pass classes: y_test\.argmax\(1\)"):
        dual.SGD(K, p.y[:N], loss="cross-entropy", lr=0.1).run(**test)


def test_sets_of_classes_that_look_almost_one_hot() -> None:
    """As many sets as outputs, of classes 0 and 1: only where each row has a single 1 they would be one-hot."""
    p = problem("cross-entropy", 3)
    hot = F.one_hot(torch.arange(N) % 3)
    for y in (1 - hot, torch.cat([hot[:-1], 0 * hot[:1]]), hot[:, :2], hot.float()):
        if y.is_floating_point():
            assert dual.SGD(p.kernel["K"], y, lr=0.1).run().c.shape == (N, 3)  # for each output a label
        else:
            assert dual.SGD(p.kernel["K"], y, loss="cross-entropy", lr=0.1).run().c.shape == (N, 3, y.shape[1])


RUN: dict[str, dict[str, Any]] = {
    "epochs must be a whole number of at least 1, got 0": {"epochs": 0},
    r"epochs must be a whole number of at least 1, got 2\.5": {"epochs": 2.5},
    "batch_size must be a whole number of at least 1, got 0": {"batch_size": 0},
    r"batch_size must be a whole number of at least 1, got 4\.0": {"batch_size": 4.0},
    "batch_size must be a whole number of at least 1, got None": {"batch_size": None},
    "drop_last leaves no batch": {"drop_last": True},
    r"2 batches cannot be divided into epochs=3": {"epochs": 3, "batches": [torch.arange(2)] * 2},
    r"batches\[1\] must be indices of the 24 samples, got 0 to 24": {"batches": [torch.arange(2), torch.arange(25)]},
    r"batches\[0\] must be a list of samples": {"batches": [torch.ones(2)]},
    "y_test, f0_test and J0_test belong to K_test": {"K_test": None},
    "so f0_test, the network's outputs on the other samples, is needed": {"f0_test": None},
    "so J0_test, Jθ₀ on the other samples, is needed": {"J0_test": None},
    r"f0_test must have shape \(9,\), or \(9, 3\) with a value for each target": {"f0_test": torch.ones(2, 1)},
    r"K_test must be the kernel of other samples.*24 columns": {"K_test": torch.ones(9, 23)},
    r"needs y_test of shape \(9,\)": {"y_test": torch.ones(8)},
    r"takes labels 0 and 1; y_test has 2\.0": {"y_test": torch.full((9, 3), 2.0)},
    "y has 3 targets, y_test 1": {"y_test": torch.ones(9, 1)},
}


@pytest.mark.parametrize("message", RUN)
def test_errors_of_run(message: str) -> None:
    p = problem()
    with pytest.raises(ValueError, match=message):
        p.train(lr=0.1, weight_decay=0.1).run(**{**p.test, **RUN[message]})


def test_errors_of_a_fit() -> None:
    p = problem()
    fit = p.train(lr=0.1, weight_decay=0.1).run()
    with pytest.raises(ValueError, match="distance depends on ‖θ₀‖"):
        fit.distance()
    with pytest.raises(ValueError, match="There are 3 targets"):
        fit.to_parameters(tt.jacobian(p.model, p.x[:N]))
    with pytest.raises(ValueError, match=r"The Jacobian has outputs \(33, 1\), but c has 24"):
        fit.to_parameters(tt.jacobian(p.model, p.x), target=0)
    with pytest.raises(ValueError, match="so f0, the network's outputs"):
        fit.predict(p.kernel["K_test"])
    unbiased = dual.SGD(p.kernel["K"], p.y[:N], lr=0.1).run()
    with pytest.raises(ValueError, match="f0 is given, but training had none"):
        unbiased.predict(p.kernel["K_test"], f0=p.f0[N:])
    J = tt.jacobian(p.model, p.x[:N])
    for target in (3, -1):
        with pytest.raises(ValueError, match=f"There is no target={target}; the last one is target=2"):
            fit.to_parameters(J, target=target)
    alone = dual.SGD(p.kernel["K"], p.y[:N, 0], lr=0.1).run()
    with pytest.raises(ValueError, match="There is no target=1; the last one is target=0"):
        alone.to_parameters(J, target=1)
    assert alone.to_parameters(J, target=0).keys() == alone.to_parameters(J).keys()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_a_jacobian_that_is_not_that_of_the_kernel_is_refused(dtype: torch.dtype) -> None:
    p = problem("mse", 3)
    fit = dual.SGD(p.kernel["K"].to(dtype), p.y[:N], loss="mse", lr=0.1).run(epochs=300)
    J = tt.jacobian(p.model, p.x[:N])
    fit.to_parameters(J, target=1)
    moved = copy.deepcopy(p.model)
    with torch.no_grad():
        moved[0].weight.mul_(1.05)
    others = {
        "other samples": tt.jacobian(p.model, p.x[-N:]),
        "another order": tt.jacobian(p.model, p.x[:N].flip(0)),
        "fewer parameters": tt.jacobian(p.model, p.x[:N], params="*weight"),
        "one bias less": tt.jacobian(p.model, p.x[:N], params=lambda name, q: name != "0.bias"),
        "other weights": tt.jacobian(moved, p.x[:N]),
    }
    for other in others.values():
        found = (other.T @ fit.c[..., 1].to(p.x)).square().sum()
        with pytest.raises(ValueError, match=r"K was not the kernel of this Jacobian: .*same params=") as error:
            fit.to_parameters(other, target=1)
        assert f"‖Jᵀc‖² is {float(found):.4g}, but cᵀKc was {float(fit.quadratic[1]):.4g}" in str(error.value)


def test_a_jacobian_may_be_as_rough_as_its_kernel() -> None:
    """Of a float32 model, after many steps, and of a kernel that was held in 16 bits."""
    p = problem("mse", 3)
    model, x = copy.deepcopy(p.model).float(), p.x[:N].float()
    for K in (tt.ntk(model, x), tt.ntk(model, x, precision="float16")):
        fit = dual.SGD(K, p.y[:N], loss="mse", lr=0.1, momentum=0.9).run(epochs=1000)
        parameters = fit.to_parameters(tt.jacobian(model, x), target=0)
        assert all(t.dtype == torch.float32 for t in parameters.values())


def test_a_fit_in_one_line() -> None:
    p = problem()
    fit = p.train(lr=0.1).run(epochs=7, **p.test)
    found = {
        name: f"{name} {float(getattr(fit, name)[-1].mean()):.4g}"
        for name in ("train_loss", "train_accuracy", "test_loss", "test_accuracy")
    }
    ends = ", ".join(found.values())
    assert repr(fit) == f"Fit(c of shape (24, 3); after 7 epochs {ends}, the mean of 3 targets)"
    alone = dual.SGD(p.kernel["K"], p.y[:N, 0], loss="mse", lr=0.01).run()
    assert repr(alone) == f"Fit(c of shape (24,); after 1 epoch train_loss {float(alone.train_loss):.4g})"


def test_a_distance_has_no_graph() -> None:
    p = problem()
    fit = p.train(lr=0.1, weight_decay=0.1).run()
    norm = torch.cat([q.flatten() for q in p.model.parameters()]).norm()
    assert norm.requires_grad
    assert not fit.distance(norm).requires_grad
    assert torch.equal(fit.distance(norm), fit.distance(float(norm.detach())))


def test_the_public_names() -> None:
    assert set(dual.__all__) == set(dir(dual)) == {"Fit", "SGD"}


def test_classes_of_positions_are_refused() -> None:
    model, x, y = nn.Linear(3, 4).double(), torch.randn(5, 3, 3).double(), torch.randint(4, (5, 3))
    with pytest.raises(ValueError, match="f0 has outputs for each of 3 positions"):
        dual.SGD(tt.ntk(model, x), y, loss="cross-entropy", lr=0.1, f0=model(x).detach())


def test_it_is_printed_in_a_line() -> None:
    sgd = dual.SGD(torch.eye(4), torch.tensor([1.0, 0.0, 1.0, 0.0]), loss="bce", lr=0.5)
    assert repr(sgd) == "SGD(loss='bce', lr=0.5, 4 samples, 1 outputs)"
