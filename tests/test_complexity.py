"""Complexity along a trajectory, and the norms it is compared with, against numpy and sums over all paths."""

from __future__ import annotations

import copy
import itertools
import math
import os
from typing import Any

import numpy as np
import oracle
import pytest
import torch
from oracle import assert_close
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from torchtangent.complexity import Trajectory, feature_norm, fisher_rao, fixed, margins, measures, norms

DOUBLE = torch.float64


def mlp(*widths: int, bias: bool = True) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b, bias=bias), nn.ReLU()]
    return nn.Sequential(*layers[:-1]).double()


def conv() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 3, 2), nn.ReLU(), nn.Conv2d(3, 4, 2, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)
    ).double()


def trained(init: nn.Module, size: float = 0.3) -> nn.Module:
    """The network some way off."""
    model = copy.deepcopy(init)
    with torch.no_grad():
        for p in model.parameters():
            p += size * torch.randn_like(p)
    return model


NETS = {"mlp": (lambda: mlp(4, 5, 6, 3), (4,)), "conv": (conv, (2, 5, 5)), "two layers": (lambda: mlp(4, 7, 3), (4,))}
every_net = pytest.mark.parametrize("name", NETS)


def problem(name: str, samples: int = 30) -> tuple[nn.Module, nn.Module, Tensor, Tensor]:
    make, shape = NETS[name]
    init = make()
    return trained(init), init, torch.randn(samples, *shape, dtype=DOUBLE), torch.randint(3, (samples,))


# ------------------------------------------------------------------------------------------- trajectory


def features(model: nn.Module, x: Tensor) -> float:
    """(Tr K / N)^½."""
    return float((oracle.jacobian(model, x).square().sum() / len(x)).sqrt())


@every_net
def test_feature_norm(name: str) -> None:
    model, _, x, _ = problem(name)
    assert feature_norm(model, x) == pytest.approx(features(model, x), rel=1e-10)


def test_feature_norm_of_some_parameters_and_one_output() -> None:
    model, _, x, _ = problem("mlp")
    J = oracle.jacobian(model, x, lambda f: f[:, :1], keep=lambda name, p: name.startswith("2."))
    found = feature_norm(model, x, params="2.*", output=lambda f: f[:, :1])
    assert found == pytest.approx(float((J.square().sum() / len(x)).sqrt()), rel=1e-10)


def move(model: nn.Module, size: float) -> float:
    """Move all weights at random and say how far."""
    with torch.no_grad():
        steps = [size * torch.randn_like(p) for p in model.parameters()]
        for p, step in zip(model.parameters(), steps, strict=True):
            p += step
    return float(torch.cat([step.flatten() for step in steps]).norm())


def test_a_linear_model_has_constant_features() -> None:
    model, x = nn.Linear(4, 3).double(), torch.randn(9, 4, dtype=DOUBLE)
    run = Trajectory(model, x)
    lengths = [move(model, size) + 0 * run.step() for size in (0.1, 1.0, 0.5)]
    assert run.lengths == pytest.approx(lengths, rel=1e-10)
    # K[n,n,c,c] = ‖x_n‖² + 1
    norm = float((3 * (x.square().sum(1) + 1)).mean().sqrt())
    assert run.complexity == pytest.approx(norm * sum(lengths), rel=1e-10)


@every_net
def test_a_step_is_weighed_by_the_features_where_it_began(name: str) -> None:
    model, _, x, _ = problem(name)
    run = Trajectory(model, x)
    expected = []
    for size in (0.3, 0.2):
        norm = features(model, x)
        expected.append(norm * move(model, size))
        assert run.step() == pytest.approx(expected[-1], rel=1e-10)
    assert run.increments == pytest.approx(expected, rel=1e-10)
    assert run.complexity == pytest.approx(sum(expected), rel=1e-10)
    assert run.norms[-1] == pytest.approx(features(model, x), rel=1e-10)


def test_chosen_parameters_only() -> None:
    model, _, x, _ = problem("mlp")
    run = Trajectory(model, x, params="0.weight")
    with torch.no_grad():
        model[0].weight += 1
        model[2].weight += 1
    run.step()
    assert run.lengths == pytest.approx([20**0.5])


@pytest.mark.parametrize("size", [math.nan, 1e200])  # NaN, and features whose squares overflow
def test_a_step_to_where_nothing_is_finite_is_not_taken(size: float) -> None:
    model, _, x, _ = problem("mlp")
    run = Trajectory(model, x)
    weight = model[0].weight.detach().clone()
    with torch.no_grad():
        model[0].weight.fill_(size)
    assert math.isnan(run.step())
    assert (run.lengths, len(run.norms), run.complexity) == ([], 1, 0)
    with torch.no_grad():
        model[0].weight.copy_(weight).add_(1)
    run.step()
    assert run.lengths == pytest.approx([20**0.5])


def test_a_step_is_taken_in_eval_mode() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.ReLU(), nn.Linear(4, 2)).double()
    x = torch.randn(5, 3, dtype=DOUBLE)
    model(x)  # other statistics than those at the start
    model[3].eval()
    modes = [module.training for module in model.modules()]
    run = Trajectory(model, x)
    length = move(model, 0.3)
    run.step()
    assert [module.training for module in model.modules()] == modes
    assert run.lengths == pytest.approx([length], rel=1e-10)
    assert run.norms[1] == pytest.approx(features(copy.deepcopy(model).eval(), x), rel=1e-10)


def test_a_layer_that_is_frozen_halfway_still_counts() -> None:
    model, _, x, _ = problem("mlp")
    run = Trajectory(model, x)
    length = move(model, 0.3)
    model[0].requires_grad_(False)
    run.step()
    assert run.lengths == pytest.approx([length], rel=1e-10)
    assert not model[0].weight.requires_grad
    model.requires_grad_(True)
    assert run.norms[1] == pytest.approx(features(model, x), rel=1e-10)


@pytest.mark.parametrize("kind", ["tensor", "tuple", "dict"])
def test_inputs_that_are_changed_later_are_those_of_the_start(kind: str) -> None:
    model, _, x, _ = problem("mlp")
    run = Trajectory(model, {"tensor": x, "tuple": (x,), "dict": {"input": x}}[kind])
    x.mul_(3)
    run.step()
    assert run.norms[1] == run.norms[0]


def test_data_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixed, "_BATCH", 4)  # in several batches
    model, _, x, y = problem("mlp")
    expected = features(model, x)
    assert feature_norm(model, TensorDataset(x)) == pytest.approx(expected, rel=1e-10)
    assert feature_norm(model, list(x)) == pytest.approx(expected, rel=1e-10)  # a list is a data set, not arguments
    run = Trajectory(model, list(x))
    length = move(model, 0.3)
    assert run.step() == pytest.approx(expected * length, rel=1e-10)
    with torch.no_grad():
        model[0].weight.fill_(math.nan)
    assert math.isnan(run.step())
    for made in (feature_norm, Trajectory):
        with pytest.raises(TypeError, match="if one is a target, give a data set without it"):
            made(mlp(4, 3), TensorDataset(x, y))
        with pytest.raises(TypeError, match=r"a data set .* got DataLoader\. Pass loader\.dataset"):
            made(mlp(4, 3), DataLoader(TensorDataset(x)))


@pytest.mark.skipif("TORCHTANGENT_SHAPES" in os.environ, reason="the shape checks would speak first")
def test_measures_say_what_they_take() -> None:
    model, init, x, y = problem("mlp")
    for other in (DataLoader(TensorDataset(x, y)), TensorDataset(x), x.numpy(), (x,)):
        with pytest.raises(TypeError, match=rf"x should be a tensor \(N, \.\.\.\), got a {type(other).__name__}"):
            measures(model, init, other, y)
    assert measures(model, init, x, y.numpy()) == measures(model, init, x, y)


def test_another_network_is_told_from_a_step() -> None:
    model, _, x, _ = problem("mlp")
    run = Trajectory(model, x)
    model[0] = nn.Linear(4, 8).double()
    model[2] = nn.Linear(8, 6).double()
    with pytest.raises(ValueError, match=r"no longer the one of the start: '0\.weight' was \(5, 4\) .* is \(8, 4\)"):
        run.step()


def test_errors_of_a_trajectory() -> None:
    model, x = nn.Linear(3, 2), torch.randn(5, 3)
    with pytest.raises(ValueError, match="pattern 'head' matches no trainable parameter"):
        Trajectory(model, x, params="head")
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):  # the user's error
        Trajectory(model, x[:, :2])
    with torch.no_grad():
        model.bias[0] = math.nan
    with pytest.raises(ValueError, match="The network has NaN or infinity at the start"):
        Trajectory(model, x)
    mixing = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 1))
    with pytest.raises(ValueError, match="BatchNorm1d '1' keeps no running statistics"):
        Trajectory(mixing, x)


# --------------------------------------------------------------------------------------------- margins


def test_margins_of_classes() -> None:
    f, y = torch.randn(50, 4, dtype=DOUBLE), torch.randint(4, (50,))
    expected = [row[c] - max(row[:c] + row[c + 1 :]) for row, c in zip(f.tolist(), y.tolist(), strict=True)]
    assert margins(f, y).tolist() == expected


@pytest.mark.parametrize("shape", [(5,), (5, 1)])
def test_margins_of_signs(shape: tuple[int, ...]) -> None:
    f, y = torch.randn(*shape), torch.tensor([1, -1, 1, 1, -1])
    assert torch.equal(margins(f, y), f.flatten() * y)
    assert margins(f, y.double()).dtype == f.dtype


def test_margins_of_arrays_are_numbers_and_of_tensors_have_a_slope() -> None:
    f, y = torch.randn(6, 4, dtype=DOUBLE, requires_grad=True), torch.randint(4, (6,))
    found = margins(f, y)
    assert torch.equal(margins(f.detach().numpy(), y.numpy()[::-1]), margins(f.detach(), y.flip(0)))
    assert torch.equal(margins(f.tolist(), y.tolist()), found.detach())
    slopes = torch.autograd.grad(found.sum(), f)[0]
    assert torch.equal(slopes.gather(1, y[:, None]), torch.ones(6, 1, dtype=DOUBLE))
    with pytest.raises(ValueError, match="y should be numbers"):
        margins(f, ["a"] * 6)
    assert margins([[1, 3, 0], [2, 1, 4]], [1, 0]).tolist() == [2, -2]
    assert margins(f[:0], y[:0]).shape == (0,)


def test_errors_of_margins() -> None:
    f = torch.randn(5, 3)
    with pytest.raises(ValueError, match=r"needs 5 labels ±1, got shape \(5,\) with values \[0, 1\].* 2 \* y - 1"):
        margins(f[:, :1], torch.tensor([0, 1, 0, 1, 0]))
    with pytest.raises(ValueError, match=r"needs 5 labels ±1, got .* values \[False, True\]"):
        margins(f[:, 0], torch.tensor([False, True, False, True, False]))
    with pytest.raises(ValueError, match=r"needs 5 labels ±1, got shape \(4,\)"):
        margins(f[:, 0], torch.ones(4))
    with pytest.raises(ValueError, match=r"3 outputs needs 5 integer classes from 0 to 2, .* values \[0, 3\]"):
        margins(f, torch.tensor([0, 3, 0, 3, 0]))
    with pytest.raises(ValueError, match=r"got shape \(5,\) of torch.float32"):
        margins(f, torch.zeros(5))
    with pytest.raises(ValueError, match=r"got shape \(5, 3\) of torch.int64"):
        margins(f, torch.zeros(5, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"outputs \(N,\) or \(N, C\), got \(5, 2, 3\)"):
        margins(torch.randn(5, 2, 3), torch.zeros(5, dtype=torch.int64))


# ----------------------------------------------------------------------------------------------- norms


def matrices(model: nn.Module) -> list[np.ndarray]:
    return [p.detach().numpy().reshape(len(p), -1) for name, p in model.named_parameters() if name.endswith("weight")]


def rows(w: np.ndarray, p: float, q: float) -> float:
    """The q-norm of the p-norms of the rows."""
    inner = (np.abs(w) ** p).sum(1) ** (1 / p)
    return float(inner.max() if q == np.inf else (inner**q).sum() ** (1 / q))


@every_net
def test_norms(name: str) -> None:
    model, init, x, y = problem(name)
    found = measures(model, init, x, y).norms
    W, W0 = matrices(model), matrices(init)
    s = [np.linalg.svd(w)[1][0] for w in W]
    moved = [rows(w - w0, 2, 1) for w, w0 in zip(W, W0, strict=True)]
    far = [np.sqrt(len(w)) * np.linalg.norm(w - w0) for w, w0 in zip(W, W0, strict=True)]
    expected = {
        "l1_inf": np.prod([rows(w, 1, np.inf) for w in W]),
        "frobenius": np.prod([np.linalg.norm(w) for w in W]),
        "l3_1.5": np.prod([rows(w, 3, 1.5) for w in W]),
        "spectral": np.prod(s),
        "spectral_l21": np.prod(s) * sum((m / t) ** (2 / 3) for m, t in zip(moved, s, strict=True)) ** 1.5,
        "spectral_frobenius": np.prod(s) * np.sqrt(sum((m / t) ** 2 for m, t in zip(far, s, strict=True))),
    }
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, rel=1e-10), key
    assert ("neyshabur" in found) == (name == "two layers")
    assert set(found) - {"neyshabur"} == {*expected, "path_1", "path_2"}


def test_two_layers() -> None:
    """The formulas for U and V as they are written for networks with one hidden layer."""
    model, init, x, y = problem("two layers")
    (U, V), (U0, V0) = matrices(model), matrices(init)
    found = measures(model, init, x, y).norms
    u, v = np.linalg.norm(U, 2), np.linalg.norm(V, 2)
    l21 = ((v * rows(U - U0, 2, 1)) ** (2 / 3) + (u * rows(V - V0, 2, 1)) ** (2 / 3)) ** (3 / 2)
    fro = np.sqrt(7 * (v * np.linalg.norm(U - U0)) ** 2 + 3 * (u * np.linalg.norm(V - V0)) ** 2)
    assert found["spectral_l21"] == pytest.approx(l21, rel=1e-10)
    assert found["spectral_frobenius"] == pytest.approx(fro, rel=1e-10)
    ours = np.linalg.norm(V) * (np.linalg.norm(U - U0) + np.linalg.norm(U0, 2))
    assert found["neyshabur"] == pytest.approx(ours, rel=1e-10)


class Backwards(nn.Module):
    """Two layers, the second of which was made first."""

    def __init__(self) -> None:
        super().__init__()
        self.second, self.first = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu())


def test_layers_are_taken_in_the_order_of_use() -> None:
    init = Backwards().double()
    model, x, y = trained(init), torch.randn(5, 4, dtype=DOUBLE), torch.randint(4, (5,))
    U, U0, V = (w.detach().numpy() for w in (model.first.weight, init.first.weight, model.second.weight))
    expected = np.linalg.norm(V) * (np.linalg.norm(U - U0) + np.linalg.norm(U0, 2))
    assert measures(model, init, x, y).norms["neyshabur"] == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("bias", [True, False])
def test_path_norm_is_a_sum_over_paths(bias: bool) -> None:
    widths = (2, 3, 4, 2)
    model = mlp(*widths, bias=bias)
    W = matrices(model)
    b = [layer.bias.detach().numpy() if bias else np.zeros(layer.out_features) for layer in model[::2]]
    found = measures(model, model, torch.randn(3, 2, dtype=DOUBLE), torch.tensor([0, 1, 0])).norms
    for p in (1, 2):
        total = 0.0
        for start in range(4):  # the layer at which a path begins: at an input, or at a bias of layer start − 1
            for path in itertools.product(*(range(w) for w in widths[start:])):
                weight = b[start - 1][path[0]] if start else 1.0
                for layer, (i, o) in enumerate(itertools.pairwise(path), start):
                    weight *= W[layer][o, i]
                total += abs(weight) ** p
        assert found[f"path_{p}"] == pytest.approx(total ** (1 / p), rel=1e-10)


def test_path_norm_of_convolutions() -> None:
    model, init, x, y = problem("conv")
    for name, p in model.named_parameters():
        if name.endswith("bias"):
            p.data.zero_()
    found = measures(model, init, x, y).norms

    def unrolled(layer: nn.Module, *shape: int) -> np.ndarray:
        units = torch.eye(int(np.prod(shape)), dtype=DOUBLE).view(-1, *shape)
        return layer(units).flatten(1).detach().numpy().T

    layers = [unrolled(model[0], 2, 5, 5), unrolled(model[2], 3, 4, 4), unrolled(model[5], 16)]
    for p in (1, 2):
        paths = np.ones(50)
        for layer in layers:
            paths = np.abs(layer) ** p @ paths
        assert found[f"path_{p}"] == pytest.approx(paths.sum() ** (1 / p), rel=1e-10)


def test_path_norm_and_fisher_rao_do_not_see_a_rescaling_of_units() -> None:
    model, init, x, y = problem("mlp")
    other = copy.deepcopy(model)
    with torch.no_grad():
        scale = torch.rand(5, dtype=DOUBLE) + 0.5
        other[0].weight *= scale[:, None]
        other[0].bias *= scale
        other[2].weight /= scale
    assert_close(other(x), model(x))
    before, after = measures(model, init, x, y), measures(other, init, x, y)
    for key in ("path_1", "path_2"):
        assert after.norms[key] == pytest.approx(before.norms[key], rel=1e-10)
    assert after.fisher_rao == pytest.approx(before.fisher_rao, rel=1e-10)
    assert after.norms["frobenius"] != pytest.approx(before.norms["frobenius"], rel=1e-2)


class Wired(nn.Module):
    """Two layers a and b, and how they go together."""

    def __init__(self, wiring: Any, a: nn.Module, b: nn.Module) -> None:
        super().__init__()
        self.wiring, self.a, self.b = wiring, a, b
        self.register_buffer("mix", torch.tensor([[2.0, -1.0], [-1.0, 2.0]]))
        self.register_buffer("unused", torch.tensor([-1.0]))

    def forward(self, x: Tensor) -> Tensor:
        return self.wiring(self, x)


SIGNS = {
    "in the end": (lambda s, x: -s.b(F.relu(s.a(x))), "'neg' gives negative values", 2, 2),
    "in place": (lambda s, x: s.b(s.a(x).relu_()).neg_(), "'neg_' gives negative values", 2, 2),
    "of a branch": (lambda s, x: s.b(x - F.relu(s.a(x))), "what 'relu' gives is subtracted", 2, 2),
    "before a ReLU": (
        lambda s, x: s.b(torch.cat([F.relu(s.a(x)), F.relu(-s.a(x))], 1)),
        "'neg' gives negative values",
        2,
        4,
    ),
    "of the inputs": (lambda s, x: s.b(s.a(torch.cat([x, -x], 1)).relu()), "'neg' gives negative values", 4, 2),
    "of neighbours": (lambda s, x: s.b(s.a(x).relu().diff()), "what 'relu' gives is subtracted", 2, 1),
    "in a fixed matrix": (lambda s, x: s.b(s.a(x).relu() @ s.mix.to(x)), "what 'relu' gives is subtracted", 2, 2),
}


@pytest.mark.parametrize("name", SIGNS)
def test_path_norms_of_networks_that_subtract_are_refused(name: str) -> None:
    """The run at |w|^p would take signed sums for the sums over paths, negative ones also."""
    wiring, message, ins, outs = SIGNS[name]
    model = Wired(wiring, nn.Linear(ins, 2, bias=False), nn.Linear(outs, 2, bias=False)).double()
    x, y = torch.randn(3, 2, dtype=DOUBLE), torch.tensor([0, 1, 0])
    for _ in range(5):
        with pytest.raises(ValueError, match="path norms are not defined for a network that subtracts: "):
            measures(trained(model), model, x, y)
    nn.init.constant_(model.a.weight, 0.1)  # values as they should be: only slopes tell
    with pytest.raises(ValueError, match=message):
        measures(model, model, x, y)


def test_path_norms_of_networks_that_add() -> None:
    """x + relu(Ax) has the paths of B and those of BA, also where the activation works in place."""
    model = Wired(lambda s, x: s.b(s.a(x).relu_() + x), nn.Linear(2, 2), nn.Linear(2, 2)).double()
    A, a, B, b = (p.detach().abs().numpy() for p in model.parameters())
    with torch.no_grad():
        found = measures(model, model, torch.randn(3, 2, dtype=DOUBLE), torch.tensor([0, 1, 0])).norms
    for p in (1, 2):
        expected = (B**p @ (A**p @ np.ones(2) + a**p + 1) + b**p).sum() ** (1 / p)
        assert found[f"path_{p}"] == pytest.approx(expected, rel=1e-10)


def test_path_norms_with_buffers_in_float32() -> None:
    norm = nn.BatchNorm1d(2, affine=False).eval()
    norm.running_var.fill_(4)
    model = nn.Sequential(nn.Linear(3, 2, bias=False), norm, nn.ReLU(), nn.Linear(2, 2, bias=False))
    A, B = (w.astype(np.float64) for w in matrices(model))
    norm.num_batches_tracked.fill_(1)
    found = measures(model, model, torch.randn(3, 3), torch.tensor([0, 1, 0])).norms
    for p in (1, 2):
        expected = (np.abs(B) ** p @ (np.abs(A) ** p).sum(1)).sum() / math.sqrt(4 + norm.eps)
        assert found[f"path_{p}"] == pytest.approx(expected ** (1 / p), rel=1e-10)


@pytest.mark.parametrize("pool", [F.avg_pool1d, F.max_pool1d])
def test_path_norms_with_pooling(pool: Any) -> None:
    """A mean of two counts each path half, for both p; of a maximum the largest sum of paths counts."""
    model = Wired(
        lambda s, x: s.b(pool(s.a(x).relu(), 2)), nn.Linear(3, 4, bias=False), nn.Linear(2, 2, bias=False)
    ).double()
    A, B = matrices(model)
    found = measures(model, model, torch.randn(3, 3, dtype=DOUBLE), torch.tensor([0, 1, 0])).norms
    for p in (1, 2):
        pairs = (np.abs(A) ** p).sum(1).reshape(2, 2)
        pooled = pairs.mean(1) if pool is F.avg_pool1d else pairs.max(1)
        assert found[f"path_{p}"] == pytest.approx((np.abs(B) ** p @ pooled).sum() ** (1 / p), rel=1e-10)


# ----------------------------------------------------------------------------------------- Fisher–Rao


@pytest.mark.parametrize("kind", ["empirical", "exact"])
@every_net
def test_fisher_rao(name: str, kind: str) -> None:
    model, _, x, y = problem(name)
    theta = oracle.flat(model)
    F = oracle.fisher(model, [(x, y)], kind=kind)
    assert fisher_rao(model, x, y, kind=kind) == pytest.approx(float(theta @ F @ theta) ** 0.5, rel=1e-10)


def test_fisher_rao_of_a_homogeneous_network() -> None:
    """Jθ = L f in L layers of ReLU without biases, so ⟨θ, F θ⟩ = L² E[⟨∂ℓ/∂f, f⟩²]."""
    model, x, y = mlp(4, 6, 5, 3, bias=False), torch.randn(20, 4, dtype=DOUBLE), torch.randint(3, (20,))
    f = model(x).detach().requires_grad_()
    slopes = torch.autograd.grad(nn.functional.cross_entropy(f, y, reduction="sum"), f)[0]
    expected = 3 * float((slopes * f.detach()).sum(1).square().mean().sqrt())
    assert fisher_rao(model, x, y) == pytest.approx(expected, rel=1e-10)
    assert measures(model, model, x, y).fisher_rao == pytest.approx(expected, rel=1e-10)


def test_fisher_rao_of_one_output() -> None:
    model, x = mlp(4, 6, 1), torch.randn(20, 4, dtype=DOUBLE)
    y = torch.randint(2, (20,))
    theta = oracle.flat(model)
    F = oracle.fisher(model, [(x, y.double()[:, None])], likelihood="bernoulli", kind="empirical")
    found = measures(model, model, x, 2 * y - 1)
    assert found.fisher_rao == pytest.approx(float(theta @ F @ theta) ** 0.5, rel=1e-10)
    assert found.margin == pytest.approx(np.percentile((model(x)[:, 0] * (2 * y - 1)).detach().numpy(), 5), rel=1e-10)


# -------------------------------------------------------------------------------------------- measures


@every_net
def test_margin_and_parameters(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, init, x, _ = problem(name)
    monkeypatch.setattr(norms, "BUDGET", 0)  # in several pieces
    f = model(x).detach()
    y = f.argmax(1)
    found = measures(model, init, x, y, percentile=20)
    gaps = np.diff(np.sort(f.numpy(), 1)[:, -2:], axis=1)
    assert found.margin == pytest.approx(np.percentile(gaps, 20), rel=1e-10)
    assert found.parameters == sum(p.numel() for p in model.parameters())
    assert found.over_margin() == {key: value / found.margin for key, value in found.norms.items()}


def test_over_margin_does_not_depend_on_the_scale_of_the_outputs() -> None:
    model, init, x, _ = problem("mlp")
    y = model(x).argmax(1)
    larger = copy.deepcopy(model)
    with torch.no_grad():
        larger[4].weight *= 3
        larger[4].bias *= 3
    one, other = (measures(m, init, x, y).over_margin() for m in (model, larger))
    for key in ("l1_inf", "frobenius", "l3_1.5", "spectral", "path_1", "path_2"):
        assert other[key] == pytest.approx(one[key], rel=1e-10)


def test_frozen_layers_count_and_stay_frozen() -> None:
    model, init, x, y = problem("mlp")
    expected = measures(model, init, x, y)
    model[2].requires_grad_(False)
    found = measures(model, init.state_dict(), x, y)
    assert found == expected
    assert [p.requires_grad for p in model.parameters()] == [True, True, False, False, True, True]


def test_float32() -> None:
    model, init, x, y = problem("conv")
    expected = measures(model, init, x, y)
    found = measures(model.float(), init.float(), x.float(), y)
    assert found.norms == pytest.approx(expected.norms, rel=1e-5)
    assert found.margin == pytest.approx(expected.margin, rel=1e-4)
    assert found.fisher_rao == pytest.approx(expected.fisher_rao, rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    """Against a float64 model with the same, rounded, weights."""
    model, init, x, y = problem("mlp")
    model, init, x = model.to(dtype), init.to(dtype), x.to(dtype)
    wide = copy.deepcopy(model).double()
    theta = oracle.flat(wide)
    exact = oracle.fisher(wide, [(x.double(), y)], kind="empirical")
    rao = float(theta @ exact @ theta) ** 0.5
    assert fisher_rao(model, x, y) == pytest.approx(rao, rel=0.02)
    found = measures(model, init, x, y)
    assert found.fisher_rao == pytest.approx(rao, rel=0.02)
    assert found.norms == pytest.approx(measures(wide, init.double(), x.double(), y).norms, rel=1e-10)


class Bare(nn.Module):
    """A layer with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.gain = nn.Linear(4, 3), nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * self.fc(x)


def refused(model: nn.Module, message: str, **options: Any) -> None:
    x, y = torch.randn(6, 4), torch.randint(3, (6,))
    with pytest.raises(ValueError, match=message):
        measures(model, options.get("init", model), x, y)


def test_errors_of_measures() -> None:
    refused(
        nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)).eval(),
        r"BatchNorm1d '1' has parameters, .* Fold it into the layer before it",
    )
    refused(Bare(), "Parameters outside of linear and convolutional layers: gain")
    refused(nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 3)), "defined for networks with ReLU")
    refused(nn.Sequential(nn.Linear(4, 3), nn.Softmax(1)), "Is there another activation, or a softmax")
    net = nn.Sequential(nn.Linear(4, 3))
    for percentile in (200, -1, math.nan):
        with pytest.raises(ValueError, match=f"percentile={percentile} should be between 0 and 100"):
            measures(net, net, torch.randn(6, 4), torch.randint(3, (6,)), percentile=percentile)
    refused(net, "The initial weight '0.weight' is missing; the model's has shape", init=nn.Linear(4, 3))
    refused(net, r"'0.weight' has shape \(2, 4\); the model's has shape \(3, 4\)", init=nn.Sequential(nn.Linear(4, 2)))


def test_a_margin_that_is_not_positive() -> None:
    model, init, x, _ = problem("mlp")
    found = measures(model, init, x, model(x).argmin(1))
    assert found.margin < 0
    with pytest.raises(ValueError, match=r"The margin is -.*: too many samples are misclassified"):
        found.over_margin()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int64])
def test_margins_take_classes_of_any_integer(dtype: torch.dtype) -> None:
    f = torch.tensor([[1.0, 3.0, 0.0], [2.0, 0.0, 5.0]])
    found = margins(f, torch.tensor([1, 0], dtype=dtype))
    assert found.tolist() == [2.0, -3.0]


def test_parameters_may_come_from_a_generator() -> None:
    """They are asked for more than once."""
    model, x, y = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), torch.randn(6, 3), torch.arange(6) % 2
    for measure in (lambda p: feature_norm(model, x, params=p), lambda p: fisher_rao(model, x, y, params=p)):
        assert measure(name for name in ["2.*"]) == measure("2.*")
