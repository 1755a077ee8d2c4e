"""The probe: every number against dense Jacobians, and training that does not notice it."""

from __future__ import annotations

import copy
import json
import math
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import torchtangent as tt
from torchtangent.complexity import Trajectory, fixed
from torchtangent.probe import MEASURES, State, TangentProbe, measure
from torchtangent.probe import probe as probe_module
from torchtangent.probe.overlap import check_apart
from torchtangent.probe.schedule import schedule

KERNEL = ["spectrum", "effective_rank", "trace_ratio", "cka", "kernel_alignment", "complexity"]


def mlp(outputs: int = 3) -> nn.Sequential:
    layers = [nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, outputs)]
    return nn.Sequential(*layers).double()


def conv() -> nn.Sequential:
    layers = [nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 2, 2), nn.ReLU(inplace=True), nn.Flatten()]
    return nn.Sequential(*layers, nn.Dropout(0.5), nn.Linear(8, 2)).double()


def data(n: int, shape: tuple[int, ...] = (4,), classes: int = 3) -> tuple[Tensor, Tensor]:
    return torch.randn(n, *shape, dtype=torch.float64), torch.arange(n) % classes


def small(**options: Any) -> TangentProbe:
    """A probe of a small network that logs at every step."""
    torch.manual_seed(0)
    return TangentProbe(mlp(), *data(5), **{"steps": 1, **options})


def train(model: nn.Module, x: Tensor, y: Tensor, steps: int, each: Callable[[int], Any]) -> None:
    """Some steps of SGD; `each` is called before every one and after the last."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    for step in range(steps + 1):
        each(step)
        f = model(x)
        loss = F.mse_loss(f[:, 0], y.double()) if f.shape[1] == 1 else F.cross_entropy(f, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


# ------------------------------------------------------------------------------------- every number


class Dense:
    """What the formulas need of a network, from dense Jacobians and a forward pass layer by layer."""

    def __init__(self, model: nn.Sequential, x: Tensor) -> None:
        model = copy.deepcopy(model).eval()
        J = oracle.jacobian(model, x)
        self.J = J.flatten(0, 1)  # (N·C, P)
        self.K = self.J @ self.J.T
        self.theta = oracle.flat(model)
        self.columns = {
            name: torch.cat([oracle.positions(model)[p].flatten() for p in names])
            for name, names in oracle.modules(model).items()
        }
        self.on, h = [], x
        for layer in model:
            self.R = h.detach()  # in the end, what goes into the last layer
            h = layer(h.clone())
            if isinstance(layer, nn.ReLU):
                self.on.append((h > 0).flatten())


def alike(A: Tensor, B: Tensor) -> float:
    return float((A * B).sum() / (A.norm() * B.norm()))


def of_a_set(now: Dense, start: Dense, y: Tensor) -> dict[str, float]:
    """All numbers of a probe set, from the formulas."""
    N = len(y)
    C = len(now.K) // N
    H = torch.kron(torch.eye(N, dtype=torch.float64) - 1 / N, torch.eye(C, dtype=torch.float64))
    Y = H @ (F.one_hot(y, C).double() if C > 1 else y.double()).flatten()
    lam = np.sort(np.linalg.eigvalsh((H @ now.K @ H).numpy()))[::-1]
    mu = lam[lam > 1e-12 * lam[0]] / lam.sum()
    found = {"spectrum/max": lam[0], "spectrum/mean": np.mean(lam)}
    found |= {f"spectrum/{k}": lam[k - 1] for k in (2, 5, 10, 20, 50, 100) if k <= N * C}
    found["effective_rank"] = math.exp(-np.sum(mu * np.log(mu)))
    found |= {f"trace_ratio/{k}": lam[:k].sum() / lam.sum() for k in (1, 10, 40, 80, 160) if k <= N * C}
    for layer, columns in {"": torch.arange(now.J.shape[1]), **now.columns}.items():
        K = now.J[:, columns] @ now.J[:, columns].T
        found[f"cka/{layer}".rstrip("/")] = float(Y @ K @ Y / ((H @ K @ H).norm() * Y @ Y))
    found["kernel_alignment"] = alike(now.K, start.K)
    found["representation_alignment"] = alike(now.R @ now.R.T, start.R @ start.R.T)
    found["representation_alignment/features"] = alike(now.R.T @ now.R, start.R.T @ start.R)
    found["sign_similarity"] = float((torch.cat(now.on) == torch.cat(start.on)).double().mean())
    return found


MODELS = {
    "mlp": (mlp, (4,), 3),
    "one output": (lambda: mlp(1), (4,), 2),
    "convolution, BatchNorm, dropout": (conv, (1, 5, 5), 2),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_number_is_the_formula(name: str) -> None:
    make, shape, classes = MODELS[name]
    model = make()
    (x, y), (x_test, y_test) = data(7, shape, classes), data(5, shape, classes)
    probe = TangentProbe(model, x, y, x_test=x_test, y_test=y_test, steps=[0, 1, 4])
    copies: list[nn.Module] = []

    def each(step: int) -> None:
        if probe.log(step):
            copies.append(copy.deepcopy(model))

    train(model, *data(20, shape, classes), 4, each)
    assert [record["step"] for record in probe.records] == [0, 1, 4]
    states = [(Dense(copied, x), Dense(copied, x_test)) for copied in copies]
    total = 0.0
    for i, (record, (now, now_test)) in enumerate(zip(probe.records, states, strict=True)):
        expected = of_a_set(now, states[0][0], y)
        expected |= {f"test/{key}": v for key, v in of_a_set(now_test, states[0][1], y_test).items()}
        theta, theta0 = now.theta, states[0][0].theta
        expected["distance/l2"] = float((theta - theta0).norm())
        expected["distance/cosine"] = 1 - float(theta @ theta0 / (theta.norm() * theta0.norm()))
        last = states[max(i - 1, 0)][0]
        step = float((theta - last.theta).norm() * (last.K.trace() / len(x)).sqrt())
        total += step
        expected |= {"complexity": total, "complexity/increment": step}
        expected["complexity/feature_norm"] = float((now.K.trace() / len(x)).sqrt())
        assert record.keys() - expected.keys() == {"step", "seconds", "finite"}
        assert record["finite"] is True
        assert record["seconds"] > 0
        for key, value in expected.items():
            assert record[key] == pytest.approx(value, rel=1e-10, abs=1e-13), key
    assert probe.records[-1]["sign_similarity"] < 1  # or the comparison would see nothing
    assert probe.records[-1]["kernel_alignment"] < 0.999
    assert not probe.notes


def test_complexity_is_that_of_the_trajectory() -> None:
    model, (x, y) = mlp(), data(6)
    probe, run = TangentProbe(model, x, y, steps=1, measures="complexity"), Trajectory(model, x)
    train(model, *data(20), 4, lambda step: (probe.log(step), run.step()))
    assert probe.series("complexity/increment")[1] == pytest.approx(run.increments, rel=1e-12)
    assert probe.series("complexity")[1][-1] == pytest.approx(run.complexity, rel=1e-12)


def test_float32() -> None:
    model = mlp().float()
    x, y = data(7)
    with torch.autocast("cpu", dtype=torch.bfloat16):  # is for training
        record = TangentProbe(model, x.float(), y).log(0)
    exact = Dense(model.double(), x)
    for key, value in of_a_set(exact, exact, y).items():
        assert record[key] == pytest.approx(value, rel=1e-5, abs=1e-6), key


def test_classes_targets_and_sequences_of_them_are_the_same_labels() -> None:
    model, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double(), torch.randn(4, 2, 3).double()
    y = torch.arange(8).view(4, 2) % 3
    labels = [(y, None), (F.one_hot(y, 3), None), (F.one_hot(y, 3).flatten(1).double(), lambda f: f.flatten(1))]
    found = [TangentProbe(model, x, y, output=output, measures="cka").log(0)["cka"] for y, output in labels]
    assert found == pytest.approx([found[0]] * 3, rel=1e-12)


def test_inputs_as_a_tuple_a_dict_and_a_data_set() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(3, 2), nn.Linear(3, 2)

        def forward(self, a: Tensor, b: Tensor) -> dict[str, Tensor]:
            return {"logits": self.left(a) * self.right(b)}

    model, a, b, y = Two(), torch.randn(4, 3), torch.randn(4, 3), torch.tensor([0, 1, 1, 0])
    kinds = [(a, b), {"a": a, "b": b}, torch.utils.data.TensorDataset(a, b)]
    first, *others = (TangentProbe(model, x, y, measures=["cka", "sign_similarity"][:1]).log(0) for x in kinds)
    for other in others:
        assert other["cka"] == pytest.approx(first["cka"], rel=1e-5)


def test_a_set_of_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["representation_alignment", "sign_similarity", "cka"]
    model, (x, y) = mlp(), data(7)
    whole = TangentProbe(model, x, y, measures=names)
    monkeypatch.setattr(fixed, "_BATCH", 3)
    parts = TangentProbe(model, x, y, measures=names)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p))
    b = parts.log(0)
    monkeypatch.undo()
    a = whole.log(0)
    assert {**a, "seconds": 0} == pytest.approx({**b, "seconds": 0}, rel=1e-12)
    assert a["sign_similarity"] < 1


def test_parameters_and_layers_can_be_chosen() -> None:
    model, (x, y) = mlp(), data(5)
    exact = Dense(model, x)
    J = exact.J[:, exact.columns["2"]]
    record = TangentProbe(model, x, y, params="2.*", layers=False, measures=["eigenvalues", "cka", "distance"]).log(0)
    assert set(record) == {"step", "seconds", "finite", "eigenvalues", "cka", "distance/l2", "distance/cosine"}
    H = torch.kron(torch.eye(5).double() - 1 / 5, torch.eye(3).double())
    expected = np.linalg.eigvalsh((H @ J @ J.T @ H).numpy())[::-1]
    assert record["eigenvalues"] == pytest.approx(expected, rel=1e-10, abs=1e-12 * expected[0])


def test_a_kernel_with_a_large_mean_is_centred_in_float64() -> None:
    """f = w x at whole numbers, whose products float32 holds: what is left by centering is Σ (x − mean)²."""
    x = torch.tensor([3901.0, 3917, 3954, 3978, 4003, 4019, 4057, 4090, 4093])[:, None]
    record = TangentProbe(nn.Linear(1, 1, bias=False), x, torch.arange(9) % 2, measures="eigenvalues").log(0)
    assert record["eigenvalues"] == pytest.approx([39642, *[0] * 8], rel=1e-6, abs=1e-5)


def test_a_model_that_is_one_layer() -> None:
    record = TangentProbe(nn.Linear(4, 3), torch.randn(5, 4), data(5)[1], measures="cka").log(0)
    assert record["cka/Linear"] == record["cka"]


def test_functions_count_like_modules() -> None:
    class Functional(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            h = F.relu(self[0](x))
            h = torch.relu_(F.linear(h, self[2].weight, self[2].bias))
            return F.linear(h, self[4].weight, self[4].bias)

    model, (x, y) = mlp(), data(6)
    names = ["sign_similarity", "representation_alignment"]
    probes = [TangentProbe(one, x, y, measures=names, steps=[1]) for one in (model, Functional(*model))]
    train(model, *data(20), 2, lambda step: None)
    a, b = (probe.log(1) for probe in probes)
    assert {**a, "seconds": 0} == {**b, "seconds": 0}
    assert a["sign_similarity"] < 1


def test_what_a_model_does_not_have_is_none_and_noted() -> None:
    model = nn.Sequential(nn.Conv1d(2, 3, 2), nn.Tanh(), nn.Conv1d(3, 2, 2), nn.Flatten())
    x, y = torch.randn(5, 2, 3), torch.tensor([0, 1, 0, 1, 1])
    probe = TangentProbe(model, x, y)
    record = probe.log(0)
    assert record["sign_similarity"] is record["representation_alignment"] is None
    assert record["finite"] is True
    assert probe.notes == {
        "sign_similarity": "No ReLU is applied.",
        "representation_alignment": "No linear layer is applied last to inputs of shape (N, ...), which would be the "
        "representation.",
    }
    assert np.isnan(probe.series("sign_similarity")[1]).all()
    with pytest.raises(ValueError, match=r"measure 'sign_similarity' cannot be taken: No ReLU is applied\."):
        TangentProbe(model, x, y, measures=["cka", "sign_similarity"])


def test_a_new_measure_is_one_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MEASURES, "largest_output", None)  # taken out again at the end

    @measure()
    def largest_output(state: State) -> Tensor:
        return state.activity.outputs.max()

    model, (x, y) = mlp(), data(5)
    record = TangentProbe(model, x, y, x_test=-x, y_test=y).log(0)
    with torch.no_grad():
        assert record["largest_output"] == float(model(x).max())
        assert record["test/largest_output"] == float(model(-x).max())


NUMBERS: list[tuple[Any, Any]] = [
    (0.5, 0.5),
    (2, 2.0),
    (np.float32(0.25), 0.25),
    (np.array([1.0, 2.0]), [1.0, 2.0]),
    (torch.tensor(3.0), 3.0),
]


@pytest.mark.parametrize(("value", "recorded"), NUMBERS)
def test_a_measure_gives_a_number_of_any_kind(value: Any, recorded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MEASURES, "own", None)

    @measure()
    def own(state: State) -> Any:
        return value

    found = small(measures="own").log(0)["own"]
    assert found == recorded
    assert type(found) is type(recorded)  # TensorBoard gets floats


def test_a_measure_that_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MEASURES, "own", None)

    @measure()
    def own(state: State) -> Any:
        return {"part": "half"}

    with pytest.raises(TypeError, match=r"Measure 'own' gave a str\. It should give a number, a tensor, or a dict"):
        small(measures="own")


def test_layers_that_are_used_by_some_samples_only(quiet: None) -> None:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            f, left = x.new_zeros(len(x), 3), x @ self.left.weight[0] > 0
            f[left], f[~left] = F.relu(self.left(x[left])), self.right(x[~left])
            return f

    model, (x, y) = Experts().double(), data(6)
    probe = TangentProbe(model, x, y)
    with torch.no_grad():
        model.left.weight[0] = x[0] * 0.1 - x[1]
    record = probe.log(0)
    assert record["finite"] is True
    assert record["representation_alignment"] is None
    assert math.isnan(record["sign_similarity"])  # other units than at the start


# ---------------------------------------------------------------------------------------------- when


def test_logarithmic_steps() -> None:
    due = schedule("log")
    expected = {0} | {5 * math.floor(1.15**k) for k in range(70)}
    assert {step for step in range(50_000) if due(step)} == {step for step in expected if step < 50_000}
    assert max(expected) > 50_000


@pytest.mark.parametrize(
    ("steps", "expected"),
    [(3, [0, 3, 6, 9]), ([1, 8, 2], [1, 2, 8]), (range(7, 9), [7, 8]), (np.array([4]), [4]), (lambda s: s > 7, [8, 9])],
)
def test_other_steps(steps: Any, expected: list[int]) -> None:
    probe = small(steps=steps, measures="distance")
    for step in range(10):
        probe.log(step)
    assert probe.series("distance/l2")[0].tolist() == expected


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ("linear", "steps='linear' is not 'log', a number"),
        (0, "steps=0: a number n stands for every n-th step"),
        ([], r"steps should be some numbers from 0 on, got \[\]"),
        ([3, -1], r"steps should be some numbers from 0 on, got \[-1, 3\]"),
    ],
)
def test_steps_that_are_none(steps: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small(steps=steps)


@pytest.mark.parametrize("steps", [0.5, [3, 0.5]])
def test_steps_are_whole(steps: Any) -> None:
    with pytest.raises(TypeError, match=r"steps are counted in whole numbers, got 0\.5"):
        small(steps=steps)


def test_between_its_steps_the_probe_does_nothing() -> None:
    model, calls = mlp(), []
    probe = TangentProbe(model, *data(5), steps=[3])
    model.register_forward_hook(lambda *_: calls.append(1))
    assert probe.log(2) is None
    assert not calls
    assert probe.log(3) is probe.records[0]
    assert calls
    assert probe.log(3) is None  # a step is measured once, also if it takes several batches
    assert len(probe.records) == 1


def test_a_step_can_be_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = small(steps=[3], measures="distance")
    assert probe.log(2) is None
    assert probe.log(2, force=True) is probe.records[0]
    assert probe.log(2, force=True) is None
    monkeypatch.setattr(TangentProbe, "_too_costly", lambda self: True)
    assert probe.log(3) is None
    assert probe.log(3, force=True) is probe.records[1]
    assert probe.series("distance/l2")[0].tolist() == [2, 3]


# ------------------------------------------------------------------------- training does not notice


def fingerprint(model: nn.Module) -> Any:
    parts = [*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters() if p.grad is not None)]
    versions = [t._version for t in parts]
    flags = [m.training for m in model.modules()], [p.requires_grad for p in model.parameters()]
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    return [t.tolist() for t in parts], versions, flags, hooks, torch.get_rng_state().tolist()


def fail(*_: Any) -> None:
    raise RuntimeError("inside")


def test_the_model_is_left_as_it_was() -> None:
    model, (x, y) = conv(), data(6, (1, 5, 5), 2)
    model.train()
    model[1].eval()  # flags of its own
    F.cross_entropy(model(x), y).backward()
    before = fingerprint(model)
    probe = TangentProbe(model, x, y)
    assert fingerprint(model) == before
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        probe.log(0)
        assert torch.is_autocast_enabled("cpu")
        assert not torch.is_grad_enabled()
    assert fingerprint(model) == before
    handle = model.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="inside"):
        probe.log(5)
    handle.remove()
    assert fingerprint(model) == before


def test_eval_is_not_called() -> None:
    class Merging(nn.Linear):
        def train(self, mode: bool = True) -> Merging:
            raise AssertionError("a module that merges its weights on eval()")

    probe = TangentProbe(nn.Sequential(Merging(4, 3)).double(), *data(5))
    assert probe.log(0)["finite"]


def test_training_is_the_same_to_the_last_bit() -> None:
    ends = []
    for watched in (True, False):
        torch.manual_seed(1)
        model, (x, y) = conv().float(), data(12, (1, 5, 5), 2)
        x = x.float()
        probe = TangentProbe(model, x[:5], y[:5], x_test=x[5:], y_test=y[5:], steps=2) if watched else None
        train(model, x, y, 6, lambda step, probe=probe: probe and probe.log(step))
        ends.append([*model.parameters(), *model.buffers()])
    for a, b in zip(*ends, strict=True):
        assert torch.equal(a, b)


def test_a_layer_that_is_frozen_halfway_still_counts() -> None:
    model, (x, y) = mlp(), data(5)
    probe = TangentProbe(model, x, y, steps=1)
    first = probe.log(0)
    model[0].requires_grad_(False)
    second = probe.log(1)
    assert {**first, "step": 1, "seconds": 0} == {**second, "seconds": 0}
    assert not model[0].weight.requires_grad


@pytest.mark.parametrize("kind", ["tensor", "tuple", "dict", "array"])
def test_a_probe_set_that_is_changed_later_is_that_of_the_start(kind: str) -> None:
    kinds = {"tensor": lambda x: x, "tuple": lambda x: (x,), "dict": lambda x: {"input": x}, "array": Tensor.numpy}
    (x, y), (x_test, y_test) = data(6), data(5)
    held_out = {"x_test": kinds[kind](x_test), "y_test": y_test.numpy() if kind == "array" else y_test}
    probe = TangentProbe(mlp(), kinds[kind](x), y.numpy() if kind == "array" else y, steps=1, **held_out)
    first = probe.log(0)
    for t in (x, x_test):
        t.mul_(3)
    for t in (y, y_test):
        t.copy_(t.flip(0))
    assert {**first, "step": 1, "seconds": 0} == {**probe.log(1), "seconds": 0}
    assert first["kernel_alignment"] == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize("names", [None, "cka", "sign_similarity"])
def test_another_network_is_told(names: str | None) -> None:
    was = r"no longer the one of the start: '{}' was {} of torch\.float64 and is {}"
    probe = small(measures=names)
    model, before = probe.model, copy.deepcopy(probe.model.state_dict())
    model[2], model[4] = nn.Linear(6, 9).double(), nn.Linear(9, 3).double()
    with pytest.raises(ValueError, match=was.format("2.weight", r"\(5, 6\)", r"\(9, 6\)")):
        probe.log(0)
    model[2], model[4] = nn.Linear(6, 5).double(), nn.Linear(5, 3, bias=False).double()
    with pytest.raises(ValueError, match=was.format("4.bias", r"\(3,\)", "gone")):
        probe.log(0)
    model[4] = nn.Linear(5, 3).double()
    model.float()
    with pytest.raises(ValueError, match=was.format("0.weight", r"\(6, 4\)", r"\(6, 4\) of torch\.float32")):
        probe.log(0)
    model.double().load_state_dict(before)
    assert probe.log(0)["finite"]
    assert not probe.skipped


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_model_that_moves_to_a_gpu_after_the_start() -> None:
    model, (x, y) = conv(), data(6, (1, 5, 5), 2)
    other = copy.deepcopy(model)
    probes = [TangentProbe(one, x, y, x_test=-x, y_test=y, steps=1) for one in (model, other)]
    train(model, x, y, 2, lambda step: None)
    other.load_state_dict(model.state_dict())
    model.cuda()
    for step in (0, 1):
        a, b = (probe.log(step) for probe in probes)
        assert {**a, "seconds": 0} == pytest.approx({**b, "seconds": 0}, rel=1e-9, abs=1e-12)


# --------------------------------------------------------------------------------- numbers that fail


def nan_in(record: dict[str, Any]) -> set[str]:
    return {key for key, value in record.items() if isinstance(value, float) and math.isnan(value)}


def test_nan_is_recorded_and_training_goes_on() -> None:
    model, (x, y) = mlp(), data(5)
    probe = TangentProbe(model, x, y, x_test=-x, y_test=y, steps=1)
    good = copy.deepcopy(model.state_dict())
    first = probe.log(0)
    with torch.no_grad():
        model[2].weight[0, 0] = math.nan
    record = probe.log(1)
    assert record["finite"] is False
    assert record.keys() == first.keys()
    assert nan_in(record) == record.keys() - {"step", "seconds", "finite"}
    model.load_state_dict(good)
    assert {**first, "step": 2, "seconds": 0} == {**probe.log(2), "seconds": 0}


def test_an_infinite_kernel_of_finite_outputs() -> None:
    model, (x, y) = mlp().float(), data(5)
    probe = TangentProbe(model, x.float(), y, steps=1)
    probe.log(0)
    with torch.no_grad():
        model[4].weight.mul_(1e25)
    record = probe.log(1)
    assert record["finite"] is False
    assert math.isnan(record["effective_rank"])
    assert math.isfinite(record["distance/l2"])
    assert 0 < record["sign_similarity"] <= 1


def test_an_infinite_derivative_of_finite_outputs(quiet: None) -> None:
    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.lin(x).abs().sqrt()

    model, (x, y) = Root().double(), data(5)
    probe = TangentProbe(model, x, y, steps=1)
    probe.log(0)
    with torch.no_grad():
        model.lin.weight.zero_()
        model.lin.bias.zero_()
    record = probe.log(1)
    assert record["finite"] is False
    assert math.isnan(record["cka"])
    assert math.isfinite(record["distance/l2"])


def test_a_network_that_died_is_finite_and_has_no_spectrum() -> None:
    model, (x, y) = mlp().float(), data(5)
    probe = TangentProbe(model, x.float(), y, steps=1)
    probe.log(0)
    with torch.no_grad():
        model[2].bias.fill_(-1e3)
    record = probe.log(1)
    assert record["finite"] is True
    spectral = {key for key in record if key.startswith(("spectrum", "effective_rank", "trace_ratio"))}
    assert nan_in(record) == spectral
    assert record["cka"] == 0


def test_a_start_with_nan_is_refused() -> None:
    model = mlp()
    with torch.no_grad():
        model[0].bias[0] = math.nan
    with pytest.raises(ValueError, match="NaN or infinity at the start"):
        TangentProbe(model, *data(5))


# ---------------------------------------------------------------------------------------------- cost


class Clock:
    """A clock that runs as it is told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_overhead_and_its_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(probe_module, "perf_counter", clock)
    monkeypatch.setitem(MEASURES, "slow", None)

    @measure(held_out=False)
    def slow(state: State) -> Tensor:
        clock.now += 2  # seconds
        return torch.tensor(0.0)

    written: list[dict[str, Any]] = []
    probe = small(measures="slow", max_overhead=0.1, writers=[written.append])
    free = small(measures="slow")
    clock.now = 10.0  # 2 of them for the first probe
    assert probe.overhead == pytest.approx(0.2)
    for step in range(100):
        probe.log(step)  # the first is always made, later ones when (spent + 2) / (elapsed + 2) is at most a tenth
        clock.now += 1
    # 12 s, 4 spent after step 0; the next may begin at 58 s: step s > 0 is seen at 12 + s while nothing is spent
    assert [record["step"] for record in probe.records] == [0, 46, 64, 82]
    assert probe.skipped == [step for step in range(100) if step not in (0, 46, 64, 82)]
    assert [line["step"] for line in written if line.get("skipped")] == probe.skipped
    assert probe.records[1]["seconds"] == pytest.approx(2.0)
    assert probe.overhead <= 0.1
    assert all(free.log(step) for step in range(5))
    assert not free.skipped


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 5.0])
def test_a_cap_is_a_part(share: float) -> None:
    with pytest.raises(ValueError, match=r"max_overhead=.* should be a part of the time, between 0 and 1"):
        small(max_overhead=share)


# ------------------------------------------------------------------------------------- where it goes


def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "probe.jsonl"
    probe = small(writers=[path])
    probe.log(0)
    assert json.loads(path.read_text(encoding="utf-8")) == probe.records[0]  # at once
    with torch.no_grad():
        probe.model[0].bias[0] = math.inf
    probe.log(1)
    line = path.read_text(encoding="utf-8").splitlines()[1]
    assert "NaN" not in line
    assert json.loads(line) == {k: None if k in nan_in(probe.records[1]) else v for k, v in probe.records[1].items()}
    with path.open("a", encoding="utf-8") as file:
        file.write('{"step": 2, "seco')  # killed
    again = small(writers=[str(path)], measures="distance")
    again.log(7)
    assert [json.loads(line)["step"] for line in path.read_text(encoding="utf-8").splitlines()] == [0, 1, 7]


def test_tensorboard_and_functions() -> None:
    class Board:
        def __init__(self) -> None:
            self.scalars: dict[tuple[str, int], float] = {}

        def add_scalar(self, tag: str, value: float, step: int) -> None:
            self.scalars[tag, step] = value

    board, printed = Board(), []
    probe = small(writers=[board, printed.append], measures=["cka", "eigenvalues", "distance"])
    record = probe.log(3)
    assert printed == [record]
    assert board.scalars == {(f"tangent/{k}", 3): v for k, v in record.items() if isinstance(v, float)}
    assert {"tangent/cka", "tangent/cka/0", "tangent/seconds"} <= {tag for tag, _ in board.scalars}
    with pytest.raises(TypeError, match=r"A writer is a path .* got int"):
        small(writers=[3])


def test_one_writer_needs_no_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small(writers="log.jsonl", measures="distance").log(0)
    small(writers=tmp_path / "log.jsonl", measures="distance").log(1)
    assert [path.name for path in tmp_path.iterdir()] == ["log.jsonl"]
    assert [json.loads(line)["step"] for line in Path("log.jsonl").read_text().splitlines()] == [0, 1]
    printed: list[Any] = []
    probe = small(writers=printed.append, measures="distance")
    assert printed == [probe.log(0)]
    with pytest.raises(TypeError, match=r"A writer is a path .* got int"):
        small(writers=3)


def test_series() -> None:
    probe = small(measures=["eigenvalues", "distance"])
    with pytest.raises(KeyError, match="nothing was logged yet"):
        probe.series("cka")
    for step in (0, 3):
        probe.log(step)
    with torch.no_grad():
        probe.model[0].bias[0] = math.nan
    probe.log(4)
    steps, values = probe.series("eigenvalues")
    assert steps.tolist() == [0, 3, 4]
    assert values.shape == (3, 15)
    assert values[1].tolist() == probe.records[1]["eigenvalues"]
    assert np.isnan(values[2]).all()
    with pytest.raises(KeyError, match=r"No record has 'cka'\. The keys are: step, seconds, finite, eigenvalues, dist"):
        probe.series("cka")


# --------------------------------------------------------------------------------------- frameworks


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable:
    """Puts stand-ins for frameworks into place, and takes away those that are installed."""
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning", "transformers"):
        monkeypatch.setitem(sys.modules, name, None)

    def install(name: str, **content: Any) -> None:
        for depth in range(1, len(name.split(".")) + 1):
            path = ".".join(name.split(".")[:depth])
            monkeypatch.setitem(sys.modules, path, types.ModuleType(path))
        vars(sys.modules[name]).update(content)

    return install


class LightningCallback:
    """The hooks that Lightning calls."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None: ...

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


@pytest.mark.parametrize("name", ["lightning.pytorch", "pytorch_lightning"])
def test_lightning(installed: Callable, name: str) -> None:
    installed(name, Callback=LightningCallback)
    probe, other = small(measures="distance", steps=[0, 2, 4]), small(measures="distance")
    callback, resumed = probe.lightning(), other.lightning()
    assert isinstance(callback, LightningCallback)
    trainer = types.SimpleNamespace(global_step=0, is_global_zero=True)
    callback.on_train_start(trainer, None)
    for batch in range(6):
        trainer.global_step = (batch + 1) // 2  # gradients of two batches are accumulated
        callback.on_train_batch_end(trainer, None, None, None, batch)
    assert probe.series("distance/l2")[0].tolist() == [0, 2]
    resumed.load_state_dict(callback.state_dict())
    resumed.on_train_start(types.SimpleNamespace(global_step=2, is_global_zero=True), None)  # was logged before
    assert other.records == probe.records
    second_rank = types.SimpleNamespace(global_step=4, is_global_zero=False)
    callback.on_train_start(second_rank, None)
    callback.on_train_batch_end(second_rank, None, None, None, 0)
    assert len(probe.records) == 2


def test_huggingface(installed: Callable) -> None:
    class TrainerCallback:
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None: ...

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None: ...

    installed("transformers", TrainerCallback=TrainerCallback)
    probe = small(measures="distance", steps=[0, 2])
    callback = probe.huggingface()
    assert isinstance(callback, TrainerCallback)
    for zero in (True, False):
        state = types.SimpleNamespace(global_step=0, is_world_process_zero=zero)
        callback.on_train_begin(None, state, None, model=probe.model)
        for step in (1, 2):
            state.global_step = step
            callback.on_step_end(None, state, None, model=probe.model)
    assert probe.series("distance/l2")[0].tolist() == [0, 2]


def test_frameworks_that_are_not_installed(installed: Callable) -> None:
    probe = small(measures="distance")
    with pytest.raises(ImportError, match=r"This callback needs lightning.pytorch or pytorch_lightning\. Install it"):
        probe.lightning()
    with pytest.raises(ImportError, match=r"This callback needs transformers\. Install it"):
        probe.huggingface()


def test_a_resumed_run_goes_on_from_the_same_start(tmp_path: Path) -> None:
    model, (x, y) = mlp(), data(6)
    probe = TangentProbe(model, x, y, x_test=-x, y_test=y, steps=2)
    checkpoint: dict[str, Any] = {}

    def each(step: int) -> None:
        probe.log(step)
        if step == 3:
            torch.save({"model": model.state_dict(), "probe": probe.state_dict()}, tmp_path / "checkpoint")
        checkpoint[step] = copy.deepcopy(model.state_dict())

    train(model, *data(20), 6, each)
    saved = torch.load(tmp_path / "checkpoint", weights_only=True)
    model = mlp()  # other weights
    model.load_state_dict(saved["model"])
    resumed = TangentProbe(model, x, y, x_test=-x, y_test=y, steps=2)
    resumed.load_state_dict(saved["probe"])
    for step in (4, 6):
        model.load_state_dict(checkpoint[step])
        resumed.log(step)
    plain = [[{**r, "seconds": 0} for r in one.records] for one in (probe, resumed)]
    assert plain[0] == plain[1]
    assert [r["step"] for r in resumed.records] == [0, 2, 4, 6]


def test_a_resumed_run_does_not_log_its_last_step_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it was measured or skipped."""
    for skip in (False, True):
        probe, resumed = (small(measures="distance", max_overhead=0.5) for _ in range(2))
        probe.log(0)
        monkeypatch.setattr(TangentProbe, "_too_costly", lambda _, skip=skip: skip)
        probe.log(1)
        monkeypatch.setattr(TangentProbe, "_too_costly", lambda _: False)
        resumed.load_state_dict(probe.state_dict())
        assert resumed.log(1) is None
        assert resumed.records == probe.records
        assert resumed.skipped == probe.skipped == [1] * skip
        assert resumed.log(2) is not None


def test_a_state_of_other_samples_or_measures_is_refused() -> None:
    """Kernels of other samples would be compared."""
    probe = small(measures=["kernel_alignment", "distance"])
    probe.log(0)
    saved = probe.state_dict()
    x, y = data(5)
    for other, what in (
        (TangentProbe(mlp(), x, y, measures=["kernel_alignment", "distance"]), "its x differ"),
        (small(measures=["distance"]), "its measures differ"),
        (small(measures=["kernel_alignment", "distance"], params="2.*"), "its parameters differ"),
        (small(measures=["kernel_alignment", "distance"], x_test=x, y_test=y), "its test/x differ"),
    ):
        with pytest.raises(ValueError, match=f"The saved state is that of another probe: {what}"):
            other.load_state_dict(saved)
        assert not other.records
    with pytest.raises(ValueError, match="This is no state of a TangentProbe"):
        probe.load_state_dict({})


def test_a_step_whose_measurement_failed_can_be_measured_again() -> None:
    probe = small(measures="kernel_alignment")
    forward, probe.model.forward = probe.model.forward, None
    with pytest.raises(TypeError):
        probe.log(0)
    probe.model.forward = forward
    assert probe.log(0) is not None


# ----------------------------------------------------------------------------------------- bad input


def bad(y: Any, outputs: int = 3, **options: Any) -> None:
    TangentProbe(mlp(outputs), torch.randn(5, 4, dtype=torch.float64), y, **options)


@pytest.mark.parametrize(
    ("y", "outputs", "message"),
    [
        (torch.arange(4) % 3, 3, r"y has shape \(4,\), but the model's outputs on this set have \(5, 3\)"),
        (torch.zeros(5, 2), 3, r"labels are classes of shape \(5,\) or targets of shape \(5, 3\)"),
        (torch.tensor([0.0, 1, 2, 1, 0]), 3, r"pass integer classes \(y.long\(\)\)"),
        (torch.tensor([1, 2, 3, 1, 2]), 3, "y should hold classes 0 … 2, got 1 … 3"),
        (torch.arange(5), 1, "y has 5 classes, but the model has one output"),
        (torch.ones(5, dtype=torch.long), 3, "y is the same for all samples"),
        (torch.tensor([0.5, math.nan, 1, 2, 3]), 1, "y has NaN or infinity"),
    ],
)
def test_labels_of_the_wrong_shape_or_coding(y: Tensor, outputs: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bad(y, outputs)


def test_a_held_out_set_is_checked_by_its_own_name() -> None:
    x, y = data(5)
    with pytest.raises(ValueError, match="x_test and y_test go together"):
        bad(y, x_test=x)
    with pytest.raises(ValueError, match="x_test and y_test go together"):
        bad(y, y_test=y)
    with pytest.raises(ValueError, match=r"y_test has shape \(3,\)"):
        bad(y, x_test=x, y_test=y[:3])


def test_a_held_out_set_is_another() -> None:
    x, y = data(5)
    for same in (x, x.clone(), x.flip(0), x[1:3]):
        with pytest.raises(ValueError, match=r"Every sample of x_test is in x, too.* samples that were held out"):
            TangentProbe(mlp(), x, y, x_test=same, y_test=y[: len(same)])
    some = torch.cat([x[3:], -x[:3]])
    with pytest.warns(tt.TangentWarning, match="2 of the 5 samples of x_test are in x, too") as said:
        TangentProbe(mlp(), x, y, x_test=some, y_test=y)
    assert len(said) == 1


def test_samples_of_every_kind_are_told_apart() -> None:
    """By all of their tensors, of any type."""
    flags, halves = torch.arange(4) % 2 == 0, torch.arange(8.0).view(4, 2).bfloat16()
    own = (flags, halves)
    check_apart(own, (~flags, halves))
    check_apart({"x": halves}, {"x": halves + 1})
    check_apart(TensorDataset(*own), TensorDataset(~flags, halves))
    for other in ((flags, halves), TensorDataset(*own)):
        with pytest.raises(ValueError, match="Every sample of x_test"):
            check_apart(own, other)
    with pytest.warns(tt.TangentWarning, match="1 of the 4 samples"):
        check_apart(own, (flags, halves + torch.tensor([[0], [1], [1], [1]])))


def test_labels_are_needed_by_those_who_compare_with_them() -> None:
    x, y = data(5)
    with pytest.raises(ValueError, match=r"y is None, but measures such as 'cka' .* Pass y, or measures="):
        TangentProbe(mlp(), x)
    chosen = [name for name in MEASURES if name != "cka"]
    record = TangentProbe(mlp(), x, x_test=-x, measures=chosen).log(0)
    assert "test/spectrum/max" in record
    assert not any("cka" in key for key in record)
    with pytest.raises(ValueError, match="x_test and y_test go together"):
        TangentProbe(mlp(), x, x_test=-x, y_test=y, measures=chosen)
    with pytest.raises(ValueError, match=r"y should be numbers .* this list holds others"):
        TangentProbe(mlp(), x, ["cat", "dog", "cat", "dog", "cat"])


def test_choices_that_match_nothing() -> None:
    y = data(5)[1]
    with pytest.raises(ValueError, match=r"measure='ckA' is not known. Choose one of 'spectrum', 'eigenvalues'"):
        bad(y, measures=["cka", "ckA"])
    with pytest.raises(ValueError, match="measures is empty: nothing would be recorded"):
        bad(y, measures=[])
    with pytest.raises(ValueError, match=r"params pattern 'head\.\*' matches no trainable parameter"):
        bad(y, params="head.*")
    with pytest.raises(ValueError, match=r"No trainable parameter is chosen by the predicate params="):
        bad(y, params=lambda name, _: False)
    x = torch.zeros(0, 4, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"empty \(0 samples\)"):
        TangentProbe(mlp(), x, y[:0])
    with pytest.raises(ValueError, match=r"empty \(0 samples\)"):
        bad(y, x_test=x, y_test=y[:0])
    with pytest.raises(TypeError):
        small().log(0.5)


class Rarely:
    """A data set of which one item is never the same."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> Tensor:
        return torch.arange(4.0) + i + (torch.randn(4) if i == 7 else 0.0)


def test_a_data_set_that_does_not_repeat() -> None:
    model = nn.Linear(4, 1)
    probe = tt.TangentProbe(model, Rarely(), steps=1, measures=["kernel_alignment"])
    with pytest.raises(ValueError, match="The data set does not repeat: its item 7 differs"):
        [probe.log(step) for step in range(3)]
