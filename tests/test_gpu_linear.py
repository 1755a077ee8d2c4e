"""Linearized networks and what kernels say about tasks, on a GPU where there is one: the numbers of the CPU."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import oracle
import pytest
import torch
from torch import Tensor, nn

import torchtangent as tt

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS"),  # torch's, in the backward thread's first product
]
N = 12


def network(outputs: int = 1) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.GELU(), nn.Flatten(), nn.Linear(48, 5), nn.GELU(), nn.Linear(5, outputs))
    return net.double()


def problem(outputs: int = 1) -> tuple[nn.Module, Tensor, Tensor]:
    """A network, inputs, and its Jacobian (N·C, P) by the oracle, on the CPU."""
    model, x = network(outputs), torch.randn(N, 1, 6, 6, dtype=torch.float64)
    return model, x, oracle.jacobian(model, x).flatten(0, 1)


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-9) -> None:
    assert actual.is_cuda
    assert float((actual.double().cpu() - expected).norm()) <= tolerance * float(expected.norm())


@pytest.mark.parametrize("where", ["gpu", "cpu", "disk"])
@pytest.mark.parametrize("outputs", [1, 3])
def test_sgd_in_function_space(outputs: int, where: str, tmp_path: Path) -> None:
    """The kernel on the GPU, or brought there block by block; against the same on the CPU."""
    model, x, J = problem(outputs)
    K = (J @ J.T).view(N, outputs, N, outputs).transpose(1, 2).contiguous()
    y = torch.randint(2 if outputs == 1 else outputs, (N, 4), generator=torch.Generator().manual_seed(1))
    f0 = model(x).detach()
    rule = {"loss": "bce" if outputs == 1 else "cross-entropy", "lr": 0.05, "momentum": 0.9, "schedule": "linear"}
    y = y.double() if outputs == 1 else y
    K = K if outputs > 1 else K[..., 0, 0]
    expected = tt.dual.SGD(K, y, f0=f0, **rule).run(epochs=3, batch_size=5)
    given = {"gpu": K.cuda(), "cpu": K}.get(where)
    if given is None:
        np.save(tmp_path / "K.npy", K.numpy())
        given = np.load(tmp_path / "K.npy", mmap_mode="r")
    found = tt.dual.SGD(given, y.cuda(), f0=f0.cuda(), **rule, device="cuda").run(epochs=3, batch_size=5)
    close(found.c, expected.c)
    close(found.train_loss, expected.train_loss)


def test_predictions() -> None:
    _, _, J = problem()
    K, y = J @ J.T + 0.1 * torch.eye(N), torch.randn(N, 2, dtype=torch.float64)
    for predict in (
        lambda K, y: tt.predict.ridge(K, y, ridge=0.1),
        lambda K, y: tt.predict.flow(K, y, t=2.0),
        lambda K, y: tt.predict.descent(K, y, steps=7, lr=0.01),
        lambda K, y: tt.predict.leave_one_out(K, y, ridge=0.1),
    ):
        close(predict(K.cuda(), y.cuda()), predict(K, y))


@pytest.mark.parametrize("outputs", [1, 3])
def test_alignments_and_spectra(outputs: int) -> None:
    model, x, J = problem(outputs)
    g = torch.randn(N, outputs, 4, dtype=torch.float64)
    expected = (J.T @ g.flatten(0, 1)).square().sum(0) / N**2
    shaped = g[:, 0] if outputs == 1 else g
    close(tt.alignment.target(model.cuda(), x.cuda(), shaped.cuda()), expected)
    K = tt.ntk(model, x.cuda())
    matrix = tt.flatten(K)
    close(tt.alignment.of_kernel(matrix, g.flatten(0, 1).cuda()) * outputs**2, expected)
    values = torch.linalg.eigvalsh(J @ J.T).flip(0)
    close(tt.spectrum.top(matrix, 3).values, values[:3])
    close(tt.spectrum.trace_ratio(matrix, [1, 2]), values.cumsum(0)[:2] / values.sum())
    mu = values.clamp(min=1e-30) / values.sum()
    close(tt.spectrum.effective_rank(matrix), torch.exp(-(mu * mu.log()).sum()))


def test_directions_and_complexity() -> None:
    model, _, _ = problem()
    on_cpu = tt.anisotropy.directions(copy.deepcopy(model), (1, 6, 6), k=4)
    norm = tt.complexity.feature_norm(copy.deepcopy(model), torch.ones(3, 1, 6, 6, dtype=torch.float64))
    found = tt.anisotropy.directions(model.cuda(), (1, 6, 6), k=4)
    close(found.values, on_cpu.values, 1e-7)
    gpu = tt.complexity.feature_norm(model, torch.ones(3, 1, 6, 6, dtype=torch.float64).cuda())
    assert gpu == pytest.approx(norm, rel=1e-10)


def test_a_probed_run() -> None:
    records = []
    for device in ("cpu", "cuda"):
        model = network(3).to(device)
        x = torch.randn(N, 1, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).to(device)
        y = (torch.arange(N) % 3).to(device)
        probe = tt.TangentProbe(model, x, y, steps=1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            probe.log(step)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        records.append(probe.records[-1])
    for key, value in records[0].items():
        if isinstance(value, float) and key != "seconds":
            assert records[1][key] == pytest.approx(value, rel=1e-6, abs=1e-9), key


def test_an_ensemble_trains_as_on_the_cpu() -> None:
    from torchtangent.lab.ensemble import Ensemble, Training, copies

    x, y = torch.randn(20, 1, 6, 6, dtype=torch.float64), torch.randint(2, (3, 20)).double()
    how = Training(epochs=3, batch=8)
    runs = []
    for device in ("cpu", "cuda"):
        ensemble = Ensemble(network().to(device), copies([network().to(device)] * 3))
        losses: list[Tensor] = []
        ensemble.train(x.to(device), y.to(device), how, after=lambda _, loss, kept=losses: kept.append(loss.cpu()))
        runs.append((torch.stack(losses), ensemble.outputs(x.to(device)).cpu()))
    torch.testing.assert_close(runs[0], runs[1], rtol=1e-8, atol=1e-10)
