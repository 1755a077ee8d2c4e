"""Alignment against explicit features from autograd, explicit centering matrices, and the lemma's identities."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
import torch
from cases import ZOO
from oracle import assert_close
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import torchtangent as tt
from torchtangent import alignment, spectrum
from torchtangent.alignment import similarity
from torchtangent.jacobians import factors
from torchtangent.jacobians.trace import Trace
from torchtangent.kernel import columns, matrix, sketch
from torchtangent.operators import ImplicitOperator

N = 24


def mlp(outputs: int = 1, width: int = 20) -> nn.Module:
    return nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, outputs)).double()


def conv(outputs: int = 1) -> nn.Module:
    body = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Conv2d(4, 6, 3, stride=2, groups=2), nn.Tanh())
    return nn.Sequential(body, nn.Flatten(), nn.Linear(24, outputs)).double()


NETS: dict[str, tuple[Callable[[int], nn.Module], tuple[int, ...], int]] = {
    "mlp": (mlp, (6,), 1),
    "conv": (conv, (2, 7, 7), 1),
    "mlp with 3 outputs": (mlp, (6,), 3),
    "conv with 3 outputs": (conv, (2, 7, 7), 3),
}
UNUSUAL = ["single-output", "one-sample-one-output", "sequence-outputs", "tied-embedding-and-output", "dict-output"]
UNUSUAL += ["two-inputs", "words-and-numbers", "conv2d-groups", "layernorm", "scalar-gate"]


@pytest.fixture(params=NETS)
def net(request: pytest.FixtureRequest) -> tuple[nn.Module, Tensor, int]:
    make, shape, outputs = NETS[request.param]
    return make(outputs), torch.randn(N, *shape, dtype=torch.float64), outputs


def kernel_of(J: Tensor) -> Tensor:
    """(N, N, C, C), or (N, N) for one output."""
    K = torch.einsum("ncp,mep->nmce", J, J)
    return K[..., 0, 0] if J.shape[1] == 1 else K


def matrix_of(K: Tensor) -> Tensor:
    return K if K.dim() == 2 else K.permute(0, 2, 1, 3).flatten(2, 3).flatten(0, 1)


def targets(outputs: int, *count: int) -> Tensor:
    return torch.randn(N, *([outputs] if outputs > 1 else []), *count, dtype=torch.float64)


def positive(n: int = N, rank: int = N) -> Tensor:
    A = torch.randn(n, rank, dtype=torch.float64)
    return A @ A.T


# ------------------------------------------------------------------------------------ Lemma 1, in three ways


@pytest.mark.parametrize("count", [(), (1,), (2,), (7,)], ids=str)
def test_alignment_in_three_ways(net: tuple[nn.Module, Tensor, int], count: tuple[int, ...]) -> None:
    """With fewer targets than outputs, and more."""
    model, x, outputs = net
    J = oracle.jacobian(model, x)
    g = targets(outputs, *count)
    mean = torch.einsum("nck,ncp->kp", g.reshape(N, outputs, -1), J) / N
    expected = mean.square().sum(1).view(count)
    K = kernel_of(J)
    pairs = spectrum.top(matrix_of(K), N * outputs)
    for found in (alignment.target(model, x, g), alignment.of_kernel(K, g), alignment.of_spectrum(pairs, g)):
        assert found.shape == count
        assert found.dtype == torch.float64
        assert_close(found, expected)


def test_alignment_of_eigenvectors_is_their_eigenvalue(net: tuple[nn.Module, Tensor, int]) -> None:
    """With unit norm in the mean, E[φ²] = 1, α(φ_j) is the Mercer eigenvalue, that of K / N."""
    model, x, outputs = net
    K = matrix_of(kernel_of(oracle.jacobian(model, x)))
    values, vectors = np.linalg.eigh(K.numpy())
    g = torch.from_numpy(vectors[:, -5:]) * N**0.5
    found = alignment.target(model, x, g.view(N, *([outputs] if outputs > 1 else []), 5))
    assert_close(found, torch.from_numpy(values[-5:]) / N)


@pytest.mark.parametrize("name", UNUSUAL)
def test_inputs_and_outputs_of_every_form(name: str) -> None:
    model, x, output = ZOO[name].build()
    J = oracle.jacobian(model, x, output)
    rows = J.flatten(0, -2)
    for count in (1, len(rows) + 1):
        g = torch.randn(*J.shape[:-1], count, dtype=torch.float64)
        expected = (rows.T @ g.view(len(rows), count)).square().sum(0) / len(J) ** 2
        assert_close(alignment.target(model, x, g, output=output), expected)


@pytest.mark.parametrize("count", [1, 9])
def test_in_batches_of_a_data_set_for_some_parameters(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    model, x = mlp(3), torch.randn(N, 6, dtype=torch.float64)
    g = targets(3, count)
    J = oracle.jacobian(model, x, keep=lambda name, p: name == "0.weight")
    expected = torch.einsum("nck,ncp->kp", g, J).square().sum(1) / N**2
    monkeypatch.setattr(columns, "BUDGET", 0)
    monkeypatch.setattr(columns, "_COLUMN_BYTES", 4 * 8 * J.shape[2])
    read: list[int] = []
    batch = columns.Samples.batch
    monkeypatch.setattr(columns.Samples, "batch", lambda s, i, j: read.append(j - i) or batch(s, i, j))
    assert_close(alignment.target(model, list(x), g, params="0.weight"), expected)
    assert max(read) < N
    assert sum(read) >= N * -(-count // 4)  # four columns at a time


@pytest.mark.parametrize("make", [mlp, conv])
def test_columns_taken_up_by_cotangents_in_pieces(monkeypatch: pytest.MonkeyPatch, make: Callable) -> None:
    """Several outputs: a layer with few locations need not be formed, for samples in any pieces."""
    model, x = make(5), torch.randn(N, *((6,) if make is mlp else (2, 7, 7)), dtype=torch.float64)
    g = targets(5, 8)
    expected = torch.einsum("nck,ncp->kp", g, oracle.jacobian(model, x)).square().sum(1) / N**2
    pieces: list[int] = []
    regroup = factors.Outer.regroup
    monkeypatch.setattr(factors.Outer, "regroup", lambda s, n: pieces.append(s.samples) or regroup(s, n))
    monkeypatch.setitem(factors._CHUNK_BYTES, "cpu", 5 * 8 * 8 * 20)
    assert_close(alignment.target(model, x, g), expected)
    assert sum(pieces) >= N
    assert max(pieces) < N


def test_the_model_is_left_alone() -> None:
    model, x = mlp(), torch.randn(N, 6, dtype=torch.float64)
    before = {name: p.clone() for name, p in model.named_parameters()}
    g = model(x)[:, 0]  # with a graph of its own
    found = [alignment.target(model, x, h) for h in (g, torch.stack([g, g], 1))] + [alignment.of_kernel(positive(), g)]
    assert not any(alpha.requires_grad for alpha in found)
    alignment.rank_tasks(model, x, {"a": x[:, 0] > 0, "own": g})
    assert all(torch.equal(p, before[name]) and p.grad is None for name, p in model.named_parameters())


class Largest(TorchDispatchMode):
    """The size of the largest tensor that any operation makes."""

    entries = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        sizes = [t.untyped_storage().nbytes() // t.itemsize for t in tree_leaves(result) if isinstance(t, Tensor)]
        self.entries = max([self.entries, *sizes])
        return result


def test_a_thousand_targets_without_the_kernel() -> None:
    """In float32, to 1e-5 of the kernel's answer; and no tensor larger than the targets themselves is made."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    x, K = torch.randn(3000, 4), 1000
    g = torch.randn(3000, K)
    with Largest() as seen:
        found = alignment.target(model, x, g)
    assert seen.entries <= 3000 * K
    assert found.dtype == torch.float32
    with Largest() as seen:
        kernel = tt.ntk(model, x)
        assert seen.entries >= 3000**2  # it would have been seen
    assert_close(found, alignment.of_kernel(kernel, g), 1e-5)
    J = oracle.jacobian(model.double(), x[:300].double())[:, 0]
    exact = (J.T @ g[:300].double()).square().sum(0) / 300**2
    assert_close(alignment.target(model.float(), x[:300], g[:300]), exact, 1e-5)


def test_one_target_is_one_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the check of the first samples, nothing is formed."""
    formed: list[int] = []
    monkeypatch.setattr(Trace, "units", lambda *a: formed.append(1))
    alignment.target(mlp(), torch.randn(N, 6, dtype=torch.float64), torch.ones(N))
    assert not formed


def test_kernels_of_every_kind(tmp_path: Path) -> None:
    model, x = mlp(3), torch.randn(N, 6, dtype=torch.float64)
    K = kernel_of(oracle.jacobian(model, x))
    np.save(tmp_path / "K.npy", K.numpy())
    disk = np.load(tmp_path / "K.npy", mmap_mode="r")
    features = sketch.nystrom(model, x, N, reduce="full")
    operator = sketch.operator(model, x)
    y = torch.randint(3, (N,))
    g = targets(3, 2)
    for other in (disk, matrix_of(K), features, operator):
        assert_close(alignment.of_kernel(other, g), alignment.of_kernel(K, g), 1e-9)
        assert_close(alignment.bound(other, g), alignment.bound(K, g), 1e-9)
        assert_close(alignment.energy(other, g, k=5), alignment.energy(K, g, k=5), 1e-9)
        assert_close(alignment.kernels(other, disk), torch.tensor(1.0, dtype=torch.float64), 1e-9)
    assert_close(alignment.cka(disk, y), alignment.cka(K, y))
    assert_close(alignment.norm(operator, g, ridge=1.0), alignment.norm(K, g, ridge=1.0), 1e-9)


# --------------------------------------------------------------------------------- RKHS norm and the bound


def test_norm_is_the_smallest_change_of_parameters(net: tuple[nn.Module, Tensor, int]) -> None:
    model, x, outputs = net
    J = oracle.jacobian(model, x).flatten(0, 1).numpy()
    g = targets(outputs, 3)
    flat = g.reshape(len(J), 3).numpy()
    theta = np.linalg.lstsq(J, flat, rcond=None)[0]
    K = kernel_of(torch.from_numpy(J).view(N, outputs, -1))
    found = alignment.norm(K, g)
    assert_close(found, torch.from_numpy((theta**2).sum(0)), 1e-8)
    assert_close(alignment.norm(K, g[..., 0]), found[0])
    ridge = 0.3 * float(np.trace(J @ J.T)) / len(J)
    expected = np.einsum("nk,nk->k", flat, np.linalg.solve(J @ J.T + ridge * np.eye(len(J)), flat))
    assert_close(alignment.norm(K, g, ridge=ridge), torch.from_numpy(expected))


def test_norm_by_mercer_pairs() -> None:
    """Equation 3: Σ_j (E[φ_j g])² / λ_j with λ the eigenvalues of K / N and E[φ²] = 1."""
    K, g = positive(), torch.randn(N, dtype=torch.float64)
    values, vectors = np.linalg.eigh(K.numpy() / N)
    phi = vectors * N**0.5
    expected = ((phi.T @ g.numpy() / N) ** 2 / values).sum()
    assert_close(alignment.norm(K, g), torch.tensor(expected), 1e-8)


def test_bound_is_below_the_norm_and_equal_for_eigenvectors() -> None:
    K, g = positive(), torch.randn(N, 50, dtype=torch.float64)
    norm, bound = alignment.norm(K, g), alignment.bound(K, g)
    assert (bound < norm).all()
    assert_close(bound, (g.square().mean(0) ** 2) / alignment.of_kernel(K, g))
    phi = 3 * torch.linalg.eigh(K).eigenvectors
    assert_close(alignment.bound(K, phi), alignment.norm(K, phi), 1e-8)
    flat = torch.ones(4, 4, dtype=torch.float64)
    assert alignment.bound(flat, torch.tensor([1.0, -1.0, 0.0, 0.0])) == torch.inf
    assert alignment.bound(flat, torch.zeros(4)) == 0


def test_of_spectrum_is_a_lower_bound() -> None:
    K, g = positive(), torch.randn(N, 5, dtype=torch.float64)
    found = [alignment.of_spectrum(spectrum.top(K, k), g) for k in (1, 5, N)]
    assert (found[0] < found[1]).all()
    assert (found[1] < found[2]).all()
    assert_close(found[2], alignment.of_kernel(K, g))


# -------------------------------------------------------------------------------- kernel alignment and CKA


def plain_cka(K: np.ndarray, L: np.ndarray) -> float:
    """CKA of two matrices with the centering matrix written out."""
    H = np.eye(len(K)) - 1 / len(K)
    K, L = H @ K @ H, H @ L @ H
    return float((K * L).sum() / (np.linalg.norm(K) * np.linalg.norm(L)))


def close(found: Tensor, expected: float, tolerance: float = 1e-10) -> bool:
    assert found.shape == ()
    return abs(float(found) - expected) <= tolerance


def test_kernel_alignment() -> None:
    K, L = positive(), positive(rank=3)
    expected = float((K * L).sum() / (K.norm() * L.norm()))
    assert close(alignment.kernels(K, L), expected)
    assert close(alignment.kernels(5 * K, 0.1 * L), expected)
    assert close(alignment.kernels(K, K), 1)
    assert 0 <= expected <= 1
    assert close(alignment.kernels(spectrum.center(K), spectrum.center(L)), plain_cka(K.numpy(), L.numpy()))
    assert alignment.kernels(K.float(), L.float()).dtype == torch.float32
    four = kernel_of(oracle.jacobian(mlp(3), torch.randn(8, 6, dtype=torch.float64)))
    assert close(alignment.kernels(four, K), float(similar(matrix_of(four), K)))
    assert close(alignment.kernels(K[:3], L[:3]), float(similar(K[:3], L[:3])))
    assert alignment.kernels(0 * K, L) == 0


@pytest.mark.parametrize("scale", [1e-300, 1e-170, 1e170, 1e300])
def test_alignments_do_not_depend_on_scale(scale: float) -> None:
    K, L = positive(), positive(rank=3)
    expected = float(similar(K, L))
    assert close(alignment.kernels(K * scale, L), expected)
    assert close(alignment.kernels(K, L * scale), expected)
    assert close(alignment.kernels(K * scale, L * scale), expected)
    y = torch.randn(N, dtype=torch.float64)
    expected = plain_cka(K.numpy(), np.outer(y, y))
    assert close(alignment.cka(K * scale, y), expected)
    assert close(alignment.cka(K, y * scale), expected)


def similar(K: Tensor, L: Tensor) -> Tensor:
    return (K * L).sum() / (K.norm() * L.norm())


@pytest.mark.parametrize("centering", ["class", "plain"])
def test_cka_of_one_output(centering: str) -> None:
    """Real targets, classes in every coding, and columns."""
    K = positive()
    real, two, five = torch.randn(N, dtype=torch.float64), torch.randint(2, (N,)), torch.randint(5, (N,)) + 3
    columns = torch.randn(N, 4, dtype=torch.float64)

    def found(y: Tensor, K: Tensor = K) -> Tensor:
        return alignment.cka(K, y, centering=centering)

    assert close(found(real), plain_cka(K.numpy(), np.outer(real, real)))
    signs = 2.0 * two.numpy() - 1
    for y in (two, 2 * two - 1, two.bool(), two.double(), 7.0 * two + 2, nn.functional.one_hot(two)):
        assert close(found(y), plain_cka(K.numpy(), np.outer(signs, signs)))
        assert close(found(y, 1e3 * K[:, :, None, None]), float(found(two)))
    hot = (five[:, None] == torch.arange(10)).double().numpy()
    assert close(found(five), plain_cka(K.numpy(), hot @ hot.T))
    assert close(found(torch.from_numpy(hot)), plain_cka(K.numpy(), hot @ hot.T))
    assert close(found(columns), plain_cka(K.numpy(), (columns @ columns.T).numpy()))
    assert close(found(columns), float(alignment.kernels(spectrum.center(K), spectrum.center(columns @ columns.T))))
    assert close(found(real, torch.outer(real, real) + 2.0), 1)
    assert 0 <= float(found(real)) <= 1


def test_cka_per_class() -> None:
    """Features of each output centred by themselves, explicitly; and the plain centering matrix of N·C rows."""
    model, x = mlp(3), torch.randn(N, 6, dtype=torch.float64)
    y = torch.randint(3, (N,))
    phi = oracle.jacobian(model, x).numpy()
    hot = np.eye(3)[y.numpy()]
    K = kernel_of(torch.from_numpy(phi))

    Phi, Y = (phi - phi.mean(0)).reshape(N * 3, -1), (hot - hot.mean(0)).flatten()
    expected = Y @ Phi @ Phi.T @ Y / (np.linalg.norm(Phi @ Phi.T) * (Y @ Y))
    for labels in (y, torch.from_numpy(hot), torch.from_numpy(hot).long(), y.int()):
        assert close(alignment.cka(K, labels), expected)
    assert close(alignment.cka(K.numpy() * 9, y.numpy()), expected)
    assert abs(float(alignment.cka(K.float(), y)) - expected) <= 1e-5
    assert 0 <= expected <= 1

    flat = hot.reshape(-1, 1)
    expected = plain_cka(matrix_of(K).numpy(), flat @ flat.T)
    assert close(alignment.cka(K, y, centering="plain"), expected)
    H = np.eye(3 * N) - 1 / (3 * N)  # equation 6.3.3, on features
    Phi, Y = H @ phi.reshape(3 * N, -1), H @ flat[:, 0]
    assert abs(Y @ Phi @ Phi.T @ Y / (np.linalg.norm(Phi @ Phi.T) * (Y @ Y)) - expected) <= 1e-10


def test_in_blocks_of_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    K = kernel_of(oracle.jacobian(mlp(3), torch.randn(N, 6, dtype=torch.float64)))
    y = torch.randint(3, (N,))
    whole = alignment.cka(K, y), alignment.kernels(K, 1 + K)
    np.save(tmp_path / "K.npy", K.numpy())
    disk = np.load(tmp_path / "K.npy", mmap_mode="r")
    monkeypatch.setattr(similarity, "_BLOCK_BYTES", 7 * 3 * N * 8)
    monkeypatch.setattr(matrix, "_WIDE_BYTES", {"cpu": 4 * 3 * N * 8})
    blocks = list(similarity._blocks(similarity.as_matrix(disk)))
    assert [len(rows) for _, rows in blocks] == [4, 3] * 10 + [2]
    assert_close(torch.cat([rows for _, rows in blocks]), tt.flatten(K))
    assert torch.equal(torch.cat([index for index, _ in blocks]), torch.arange(3 * N))
    assert_close(alignment.cka(disk, y), whole[0])
    assert_close(alignment.kernels(disk, 1 + K), whole[1])


def test_layer_by_layer() -> None:
    """Layers' kernels sum, each has its CKA, and the last bias, alike for all samples, has none."""
    model, x = mlp(3), torch.randn(N, 6, dtype=torch.float64)
    y = torch.randint(3, (N,))
    kernels = tt.ntk(model, x, per_layer=True)
    J = oracle.jacobian(model, x).split([p.numel() for p in model.parameters()], -1)
    found = alignment.cka(kernels, y)
    assert list(found) == list(kernels) == [name for name, _ in model.named_parameters()]
    for name, part in zip(found, J, strict=True):
        assert_close(kernels[name], kernel_of(part))
        if name != "2.bias":
            assert close(found[name], float(alignment.cka(kernel_of(part), y)))
    assert found["2.bias"] == 0
    assert alignment.cka(0.3 * kernels["2.bias"].float(), y) == 0
    assert_close(torch.stack([*kernels.values()]).sum(0), kernel_of(torch.cat(J, -1)))
    both = alignment.kernels(kernels, {name: K + 1 for name, K in kernels.items()})
    assert close(both["0.bias"], float(similar(kernels["0.bias"], kernels["0.bias"] + 1)))


# ---------------------------------------------------------------------------------------------------- energy


def test_energy() -> None:
    K = positive()
    vectors = torch.linalg.eigh(K).eigenvectors.flip(1)
    inside, outside = vectors[:, :5] @ torch.randn(5, 3).double(), vectors[:, 5:] @ torch.randn(N - 5, 3).double()
    assert_close(alignment.energy(K, inside, k=5), torch.ones(3).double())
    assert alignment.energy(K, outside, k=5).max() <= 1e-10
    y = inside / inside.norm(dim=0) * 3 + outside / outside.norm(dim=0) * 4
    for source in (K, spectrum.top(K, 5), spectrum.top(K, 8)):
        assert_close(alignment.energy(source, y, k=5), torch.full((3,), 0.6, dtype=torch.float64))
        assert close(alignment.energy(source, y[:, 0], k=5), 0.6)
    random = torch.randn(N, 20000, dtype=torch.float64)
    assert abs(float(alignment.energy(K, random, k=6).square().mean()) - 6 / N) <= 0.005
    assert close(alignment.energy(K, y[:, 0], k=N), 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e-300, 1e-40, 1e-23, 1e20, 1e300])
def test_energy_does_not_depend_on_the_scale_of_y(scale: float, dtype: torch.dtype) -> None:
    K, y = positive(), torch.randn(N, 2, dtype=torch.float64)
    vectors = np.linalg.eigh(K.numpy())[1][:, -5:]
    expected = torch.from_numpy(np.linalg.norm(vectors.T @ y.numpy(), axis=0) / np.linalg.norm(y.numpy(), axis=0))
    found = alignment.energy(K.to(dtype), y * scale, 5)
    assert found.dtype == dtype
    assert_close(found.double(), expected, 1e-10 if dtype == torch.float64 else 1e-4)
    if 1e-30 < scale < 1e30:
        assert_close(alignment.energy(K.to(dtype), y.float() * scale, 5).double(), expected, 1e-4)


def test_energy_with_outputs() -> None:
    K = kernel_of(oracle.jacobian(mlp(3), torch.randn(N, 6, dtype=torch.float64)))
    vectors = np.linalg.eigh(matrix_of(K).numpy())[1][:, -7:]
    y = targets(3, 4)
    expected = np.linalg.norm(vectors.T @ y.reshape(3 * N, 4).numpy(), axis=0) / y.norm(dim=(0, 1)).numpy()
    for source in (K, spectrum.top(matrix_of(K), 7)):
        assert_close(alignment.energy(source, y, k=7), torch.from_numpy(expected))


# --------------------------------------------------------------------------------------------------- ranking


def test_tasks_are_ranked_by_the_centred_kernel(net: tuple[nn.Module, Tensor, int]) -> None:
    """Eigenvectors of the centred kernel in the order of their eigenvalues, with the numbers behind it."""
    model, x, outputs = net
    J = oracle.jacobian(model, x)
    centred = matrix_of(kernel_of(J - J.mean(0)))
    trace = float(J.square().sum())
    values, vectors = torch.linalg.eigh(centred)
    chosen = torch.tensor([-9, -1, -4, -2, -7])
    g = vectors[:, chosen].view(N, *([outputs] if outputs > 1 else []), 5)
    ranking = alignment.rank_tasks(model, x, g)
    assert ranking.names == [1, 3, 2, 4, 0]
    assert len(ranking) == 5
    for k, lam in enumerate(values[chosen].tolist()):
        assert ranking[k].score == pytest.approx(lam / trace)
        assert ranking[k].alignment == pytest.approx(lam / N**2)
        assert ranking[k].bound == pytest.approx(1 / lam)
    assert all(0 <= task.score <= 1 for task in ranking)


def test_codings_of_two_classes_are_one_task() -> None:
    model, x = mlp(), torch.randn(N, 6, dtype=torch.float64)
    two = torch.randint(2, (N,))
    g = 2.0 * two - 1
    g -= g.mean()
    J = oracle.jacobian(model, x)[:, 0]
    form = float((g.double() @ J).square().sum())
    codings = {"0/1": two, "±1": 2 * two - 1, "bool": two.bool(), "3.0/7.0": 4.0 * two + 3, "column": two[:, None]}
    ranking = alignment.rank_tasks(model, x, {**codings, "flipped": 1 - two, "array": two.numpy()})
    for task in ranking:
        assert task.score == pytest.approx(form / float(g.square().sum()) / float(J.square().sum()))
        assert task.alignment == pytest.approx(form / N**2)
        assert task.bound == pytest.approx(float(g.square().sum()) ** 2 / form)
    real = torch.randn(N)
    scores = {task.score for task in alignment.rank_tasks(model, x, {"a": real, "b": 5 * real + 3})}
    assert max(scores) == pytest.approx(min(scores), rel=1e-6)


def test_a_list_of_tasks_is_numbered() -> None:
    model, x = mlp(), torch.randn(N, 6, dtype=torch.float64)
    y = torch.randint(2, (N, 3))
    by_column = {task.name: task for task in alignment.rank_tasks(model, x, y)}
    for given in (list(y.T), tuple(y.T), y.T.tolist(), [*y.T.numpy()]):
        assert {task.name: task for task in alignment.rank_tasks(model, x, given)} == by_column
    assert by_column.keys() == {0, 1, 2}


def test_classes_are_one_hot() -> None:
    model, x = mlp(3), torch.randn(N, 6, dtype=torch.float64)
    y, z = torch.randint(3, (2, N))
    ranking = alignment.rank_tasks(model, x, {"y": y, "z": z})
    g = nn.functional.one_hot(y).double()
    g -= g.mean(0)
    J = oracle.jacobian(model, x)
    form = float(torch.einsum("nc,ncp->p", g, J).square().sum())
    assert ranking["y"].score == pytest.approx(form / float(g.square().sum() * J.square().sum()))
    assert alignment.rank_tasks(model, x, torch.stack([y, z], 1))[1] == ranking["z"]._replace(name=1)
    hot = nn.functional.one_hot(z)
    assert alignment.rank_tasks(model, x, {"z": hot})["z"].score == pytest.approx(ranking["z"].score)


class Sequences(nn.Module):
    """T = 3 outputs, or C for each of them, that share a part."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.own, self.shared = nn.Linear(6, torch.Size(shape).numel()), nn.Linear(6, 1)
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        return (torch.tanh(self.own(x)) + 3 * self.shared(x)).unflatten(1, self.shape)


def test_labels_of_sequences() -> None:
    """A class for each position is one-hot there; with one output for each, two classes in any coding."""
    x = torch.randn(N, 6, dtype=torch.float64)
    for model, y in (
        (Sequences(3, 4).double(), torch.randint(4, (N, 3))),
        (Sequences(3, 1).double(), torch.randint(2, (N, 3))),
    ):
        several = model.shape[1] > 1
        g = nn.functional.one_hot(y).double() if several else 2.0 * y.double()[..., None] - 1
        J, h = oracle.jacobian(model, x), g - g.mean(0)
        form = torch.einsum("ntc,ntcp->p", h, J).square().sum()
        ranking = alignment.rank_tasks(model, x, {"classes": y, "numbers": g})
        for task in ranking:
            assert task.score == pytest.approx(float(form / h.square().sum() / J.square().sum()))
            assert task.alignment == pytest.approx(float(form) / N**2)
        for table, name in ((torch.stack([y.flip(0), y], -1), "classes"), (torch.stack([g.flip(0), g], -1), "numbers")):
            assert alignment.rank_tasks(model, x, table)[1].score == pytest.approx(ranking[name].score)


@pytest.mark.parametrize("outputs", [(1,), (3,), (2, 2)], ids=str)
def test_random_is_the_mean_over_all_shuffles(outputs: tuple[int, ...]) -> None:
    """Of classes in any balance, where outputs share most of their gradients, and of real targets."""
    n = 5
    model, x = Sequences(*outputs).double(), torch.randn(n, 6, dtype=torch.float64)
    J = oracle.jacobian(model, x).view(n, -1, sum(p.numel() for p in model.parameters()))
    classes = torch.tensor(
        [[0, 0, 1, 0, 0], [1, 0, 1, 1, 0]] if outputs[-1] < 3 else [[0, 0, 2, 0, 1], [1, 1, 1, 2, 1]]
    )
    tasks = {"a": classes[0], "b": classes[1], "real": torch.randn(n, *outputs, dtype=torch.float64)}
    if len(outputs) == 2:
        tasks |= {"a": classes.T, "b": 1 - classes.T.flip(1)}

    def score(y: Tensor) -> float:
        hot = y if y.is_floating_point() or outputs == (1,) else nn.functional.one_hot(y, outputs[-1])
        g = hot.double().reshape(n, -1)
        g = g - g.mean(0)
        return float(torch.einsum("nc,ncp->p", g, J).square().sum() / g.square().sum() / J.square().sum())

    for chosen in (["a"], ["real"], ["a", "b", "real"]):
        orders = list(permutations(range(n)))
        expected = np.mean([score(tasks[name][list(order)]) for name in chosen for order in orders])
        ranking = alignment.rank_tasks(model, x, {name: tasks[name] for name in chosen})
        assert ranking.random == pytest.approx(expected)


def test_a_learnable_task_is_above_random_ones() -> None:
    """Labels that a linear function gives, and noise."""
    model, x = mlp(width=50).float(), torch.randn(500, 6)
    noise = {f"noise {i}": torch.randint(2, (500,)) for i in range(5)}
    ranking = alignment.rank_tasks(model, x, {**noise, "sum": x.sum(1) > 0})
    assert ranking.names[0] == "sum"
    assert ranking["sum"].score > 10 * ranking.random
    mean = sum(ranking[name].score for name in noise) / 5
    assert ranking.random / 2 < mean < 2 * ranking.random
    lines = str(ranking).splitlines()
    assert len(lines) == 8
    assert lines[1].split()[:2] == ["1", "sum"]
    assert lines[-1].split() == ["random", f"{ranking.random:.3g}"]
    assert len({len(line) for line in lines[:-1]}) == 1


# ---------------------------------------------------------------------------------------------------- errors


def test_targets_of_the_wrong_shape() -> None:
    model, x = mlp(3), torch.randn(N, 6, dtype=torch.float64)
    K = positive()
    with pytest.raises(ValueError, match=r"24 samples with 3 outputs needs g of shape \(24, 3\), or .*; got \(24,\)"):
        alignment.target(model, x, torch.ones(N))
    with pytest.raises(ValueError, match=r"24 samples with 1 output needs g of shape \(24,\), or .*; got \(23,\)"):
        alignment.target(mlp(), x, torch.ones(N - 1))
    with pytest.raises(ValueError, match=r"kernel \(24, 24\) of 12 samples with 2 outputs needs g .* got \(12,\)"):
        alignment.of_kernel(K, torch.ones(12))
    with pytest.raises(ValueError, match=r"24 samples with 1 output needs y of shape \(24,\), or .*; got \(\)"):
        alignment.energy(K, torch.tensor(1.0), k=3)
    with pytest.raises(ValueError, match=r"Classes are passed one-hot, F.one_hot\(g, 3\)\."):
        alignment.target(model, x, torch.arange(N) % 3)
    with pytest.raises(ValueError, match=r"g has NaN or infinity, first in sample 5"):
        alignment.target(model, x, torch.ones(N, 3).index_fill(0, torch.tensor([5]), torch.nan))
    with pytest.raises(ValueError, match=r"square matrix \(N, N\), or .* got shape \(5, 24\)"):
        alignment.of_kernel(K[:5], torch.ones(N))


def test_singular_kernels() -> None:
    g = torch.randn(N, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"condition number of at least \d\.\de\+1\d, .*Pass a ridge of at least"):
        alignment.norm(positive(rank=5), g)
    nearly = torch.diag(torch.cat([torch.ones(N - 1), torch.tensor([1e-9])]))
    with pytest.raises(ValueError, match=r"K is singular.*condition number of at least 1.0e\+09"):
        alignment.norm(nearly, g)
    with pytest.raises(ValueError, match=r"K \+ ridge·I is singular"):
        alignment.norm(nearly, g, ridge=1e-9)
    assert alignment.norm(nearly.double(), g) > 0
    assert alignment.norm(nearly, g, ridge=1e-3).dtype == torch.float32
    with pytest.raises(ValueError, match=r"ridge must be a finite number >= 0, got -1\.0"):
        alignment.norm(positive(), g, ridge=-1.0)


@pytest.mark.parametrize("K", [-torch.eye(N), torch.zeros(N, N), positive(rank=5), torch.ones(N, N)], ids=range(4))
def test_norms_and_regressions_give_the_same_advice(K: Tensor) -> None:
    g, said = torch.randn(N), []
    for call in (alignment.norm, tt.predict.coefficients):
        with pytest.raises(ValueError, match="K is") as error:
            call(K, g)
        said.append(str(error.value).replace(", or fit only what K can by flow(K, y, math.inf)", ""))
    number = re.compile(r"-?\d\.\de[-+]\d+")  # of rounding, by two ways
    assert number.sub("", said[0]) == number.sub("", said[1])
    if not K.any():
        return
    enough = float(re.search(r"ridge of at least (\S+?)[,;.]?( |$)", said[0]).group(1))
    c = tt.predict.coefficients(K, g, ridge=enough)
    assert alignment.norm(K, g, ridge=enough) == pytest.approx(float(g.double() @ c.double()), rel=1e-3)


def test_kernels_that_do_not_compare() -> None:
    K = positive()
    with pytest.raises(ValueError, match=r"K1 \(24, 24\) and K2 \(5, 5\) are kernels of different sizes"):
        alignment.kernels(K, K[:5, :5])
    for other in (K, {"b": K}):
        with pytest.raises(ValueError, match="both dicts of kernels with the same names"):
            alignment.kernels({"a": K}, other)
    with pytest.raises(ValueError, match=r"^K has NaN or infinity"):
        alignment.kernels(K, K / 0)


WITH_A_KERNEL: dict[str, Callable[[Any, Tensor], Any]] = {
    "of_kernel": alignment.of_kernel,
    "bound": alignment.bound,
    "norm": alignment.norm,
    "energy": lambda K, y: alignment.energy(K, y, k=3),
    "cka": alignment.cka,
}


@pytest.mark.parametrize("name", WITH_A_KERNEL)
@pytest.mark.parametrize("n", [N, 150])
def test_kernels_that_are_none(name: str, n: int) -> None:
    run = WITH_A_KERNEL[name]
    y = torch.randn(n, dtype=torch.float64)
    for bad in (torch.nan, torch.inf):  # where no sample of rows sees it
        K = positive(n, n + 5)
        K[1, 2] = bad
        with pytest.raises(ValueError, match=r"^K has NaN or infinity"):
            run(K, y)
    K = torch.rand(n, n, dtype=torch.float64)
    for kernel in (K, K.numpy()):
        with pytest.raises(ValueError, match="K is not symmetric"):
            run(kernel, y)
    net, inputs = mlp(3), torch.randn(8, 6, dtype=torch.float64)
    with pytest.raises(ValueError, match="A kernel of two sets of inputs"):
        run(tt.ntk(net, inputs, inputs + 1), torch.randn(8, 3))


@pytest.mark.parametrize("name", WITH_A_KERNEL)
@pytest.mark.parametrize("size", [1e-33, 1e33])
def test_kernels_of_small_and_large_numbers_are_judged_alike(name: str, size: float) -> None:
    run, y = WITH_A_KERNEL[name], torch.randn(N)
    K = (size * positive(N, N + 5)).float()
    power = {"of_kernel": 1, "bound": -1, "norm": -1}.get(name, 0)
    expected = run(K.double() / size, y)
    assert float(run(K, y)) * size**-power == pytest.approx(float(expected), rel=1e-4)
    with pytest.raises(ValueError, match="K is not symmetric"):
        run(size * torch.rand(N, N), y)


def test_rows_of_products_are_not_asked_for() -> None:
    """α(g) by an operator costs one product with it."""
    K, columns = positive(), []

    def product(V: Tensor) -> Tensor:
        columns.append(V.shape[1])
        return K @ V

    g = torch.randn(N, dtype=torch.float64)
    implicit = ImplicitOperator(product, N, torch.float64, torch.device("cpu"))
    assert alignment.of_kernel(implicit, g) == pytest.approx(float(g @ K @ g) / N**2)
    assert columns == [1]


def test_labels_of_the_wrong_kind() -> None:
    K, four = positive(), torch.eye(3 * N).view(N, 3, N, 3).permute(0, 2, 1, 3)
    with pytest.raises(ValueError, match=r"centering='both' is not known. Choose one of 'class', 'plain'"):
        alignment.cka(K, torch.randn(N), centering="both")
    with pytest.raises(ValueError, match=r"y has shape \(23,\); for a kernel of 24 samples and 1 output it"):
        alignment.cka(K, torch.ones(N - 1))
    with pytest.raises(ValueError, match=r"y has shape \(24, 2\).*3 outputs.*classes \(24,\) or numbers \(24, 3\)"):
        alignment.cka(four, torch.ones(N, 2))
    with pytest.raises(ValueError, match=r"y holds one real number for 3 outputs: pass integer classes \(y.long\(\)\)"):
        alignment.cka(four, torch.ones(N))
    for y in (torch.arange(N), torch.arange(N) % 2 * 2 - 1):
        with pytest.raises(ValueError, match=rf"y should hold classes 0 … 2, got {y.min()} … {y.max()}"):
            alignment.cka(four, y)
    for kernel, y in ((K, torch.full((N,), 0.3)), (K, torch.ones(N).long()), (four, torch.ones(N).long())):
        with pytest.raises(ValueError, match="y is the same for all samples"):
            alignment.cka(kernel, y)
    with pytest.raises(ValueError, match=r"y has shape \(\)"):
        alignment.cka(K, torch.tensor(1))
    with pytest.raises(ValueError, match="y has NaN"):
        alignment.cka(K, torch.full((N,), torch.nan))
    names = np.array(["cat", "dog"] * (N // 2))
    with pytest.raises(ValueError, match=r"y should be numbers .* this ndarray holds others.*return_inverse=True"):
        alignment.cka(K, names)
    with pytest.raises(ValueError, match="g should be numbers"):
        alignment.of_kernel(K, names)
    with pytest.raises(ValueError, match="g should be numbers"):
        alignment.target(mlp(), torch.randn(N, 6, dtype=torch.float64), names)


def test_energies_that_are_not_defined() -> None:
    K, y = positive(), torch.randn(N)
    with pytest.raises(ValueError, match="k must be between 1 and N = 24, got 50"):
        alignment.energy(K, y)
    with pytest.raises(ValueError, match="between 1 and the 5 eigenpairs that were given, got 6"):
        alignment.energy(spectrum.top(K, 5), y, k=6)
    with pytest.raises(ValueError, match=r"y is zero\."):
        alignment.energy(K, 0 * y, k=3)
    with pytest.raises(ValueError, match=r"y is zero in column 1\."):
        alignment.energy(K, torch.stack([y, 0 * y], 1), k=3)


@pytest.mark.filterwarnings("ignore:Task '.*' has two classes and the model 3 outputs")
def test_tasks_that_are_none() -> None:
    model, x = mlp(), torch.randn(N, 6, dtype=torch.float64)
    fine = torch.randint(2, (N,))

    def ranked(y: Any, model: nn.Module = model) -> None:
        alignment.rank_tasks(model, x, {"fine": fine, "odd": y})

    with pytest.raises(ValueError, match="Task 'odd' is the same for all samples"):
        ranked(torch.ones(N))
    with pytest.raises(ValueError, match="Task 'odd' has NaN or infinity"):
        ranked(torch.full((N,), torch.nan))
    with pytest.raises(
        ValueError, match=r"Task 'odd' has shape \(23,\).*of shape \(24,\) or targets of shape \(24, 1\)"
    ):
        ranked(fine[1:])
    with pytest.raises(ValueError, match="Task 'odd' has 24 classes, but the model has one output"):
        ranked(torch.arange(N))
    with pytest.raises(
        ValueError, match=r"Task 'odd' holds one real number for 3 outputs.*or numbers of shape \(24, 3\)"
    ):
        ranked(torch.randn(N), mlp(3))
    with pytest.raises(ValueError, match=r"Task 'odd' should hold classes 0 … 2, got -1 … 1"):
        ranked(2 * fine - 1, mlp(3))
    with pytest.raises(
        ValueError, match=r"has shape \(24, 5\).*classes of shape \(24, 3\) or targets of shape \(24, 3, 4\)"
    ):
        alignment.rank_tasks(Sequences(3, 4).double(), x, {"odd": torch.randint(4, (N, 5))})
    with pytest.raises(ValueError, match=r"one real number for 4 outputs.*or numbers of shape \(24, 3, 4\)"):
        alignment.rank_tasks(Sequences(3, 4).double(), x, {"odd": torch.randn(N, 3)})
    with pytest.raises(ValueError, match=r"Task 'odd' should be numbers .* but this list holds others. Classes that"):
        ranked(["cat", "dog"] * (N // 2))
    with pytest.raises(ValueError, match="Task 1 should be numbers"):
        alignment.rank_tasks(model, x, [fine, None])
    with pytest.raises(ValueError, match=r"Task 0 has shape \(\)"):
        alignment.rank_tasks(model, x, fine.tolist())
    for none in ({}, []):
        with pytest.raises(ValueError, match="no targets"):
            alignment.rank_tasks(model, x, none)
    with pytest.raises(ValueError, match=r"targets has shape \(24,\).*\{'name': labels\}"):
        alignment.rank_tasks(model, x, fine)
    with pytest.raises(KeyError, match="no task 'b'; the tasks are 'a'"):
        alignment.rank_tasks(model, x, {"a": fine})["b"]
    dead = nn.Sequential(nn.Linear(6, 2), nn.ReLU(), nn.Linear(2, 1, bias=False)).double()
    with torch.no_grad():
        dead[0].bias.fill_(-100)
    with pytest.raises(ValueError, match="gradient is zero at every sample"):
        ranked(1 - fine, dead)


# --------------------------------------------------------------------------------- kernels that are nearly constant


def deep(depth: int, samples: int) -> tuple[nn.Module, Tensor, Tensor]:
    """A network at its start, whose gradients hardly differ between samples."""
    torch.manual_seed(0)
    layers = [layer for _ in range(depth) for layer in (nn.Linear(32, 32), nn.ReLU())]
    x = torch.rand(samples, 32)
    return nn.Sequential(*layers, nn.Linear(32, 1)), x, (x[:, 0] > 0.5).long()


@pytest.mark.parametrize(("depth", "samples"), [(6, 60), (8, 400)])
def test_a_kernel_in_float32_is_centred_in_float64(depth: int, samples: int) -> None:
    model, x, y = deep(depth, samples)
    K = tt.ntk(model, x, reduce="trace")
    assert_close(alignment.cka(K, y).double(), alignment.cka(K.double(), y), 1e-6)
    g = y.float() - y.float().mean()
    assert_close(alignment.of_kernel(K, g).double(), alignment.of_kernel(K.double(), g.double()), 1e-5)
    centred = spectrum.center(K)
    assert torch.equal(centred, centred.T)
    assert_close(centred.double(), spectrum.center(K.double()), 1e-6)


def test_what_rounding_hides_is_said() -> None:
    model, x, y = deep(14, 50)
    K = tt.ntk(model, x, reduce="trace")
    with pytest.warns(tt.TangentWarning, match="of K, less than the rounding of torch.float32"):
        assert alignment.cka(K, y) == 0
    assert alignment.cka(torch.ones(4, 4), torch.tensor([0, 0, 1, 1])) == 0  # of a constant nothing is left: no word
    with pytest.warns(tt.TangentWarning, match="The gradients of all samples are the same but for rounding"):
        assert np.isnan(alignment.rank_tasks(model, x, {"task": y}).random)


def test_centering_keeps_a_kernel_of_outputs_symmetric() -> None:
    K = tt.ntk(mlp(3).float(), torch.randn(7, 6))
    centred = spectrum.center(K)
    assert torch.equal(centred, centred.transpose(0, 1).transpose(2, 3))
    wide = K.double()
    assert_close(centred.double(), wide - wide.mean(1, True) - wide.mean(0, True) + wide.mean((0, 1)), 1e-6)


def test_classes_in_a_column_are_classes() -> None:
    K, y = tt.ntk(mlp(), torch.randn(9, 6).double(), reduce="trace"), torch.arange(9) % 3
    assert alignment.cka(K, y[:, None]) == alignment.cka(K, y)


def test_ranking_many_outputs_takes_little_memory() -> None:
    """Less than N · C² numbers by far."""
    with Largest() as largest:
        alignment.rank_tasks(nn.Linear(3, 200), torch.randn(2000, 3), {"a": torch.arange(2000) % 200})
    assert largest.entries < 2000 * 200**2 / 2


def test_a_binary_task_for_many_outputs_is_said() -> None:
    """Labels 0 and 1 would name the first two of ten outputs."""
    x = torch.randn(20, 6).double()
    with pytest.warns(tt.TangentWarning, match=r"Task 'odd' has two classes and the model 3 outputs"):
        alignment.rank_tasks(mlp(3), x, {"odd": x[:, 0] > 0})
    alignment.rank_tasks(mlp(3), x, {"odd": x[:, 0] > 0}, output=lambda f: f[:, 0])


def test_energy_of_true_and_false_is_refused() -> None:
    """They would count as 1 and 0, which has another energy than ±1."""
    with pytest.raises(ValueError, match=r"Pass 2\.0 \* y - 1"):
        tt.alignment.energy(torch.eye(4), torch.tensor([True, False, True, True]), k=2)


def test_an_alignment_beyond_float32_is_an_error() -> None:
    model, x = nn.Linear(2, 1), torch.full((4, 2), 1e25)
    with pytest.raises(ValueError, match=r"leaves the range of torch\.float32"):
        tt.alignment.target(model, x, torch.ones(4))
    assert torch.isfinite(tt.alignment.target(model.double(), x.double(), torch.ones(4)))


def test_two_kernels_are_no_kernel_and_labels() -> None:
    J = torch.randn(5, 3, dtype=torch.float64)
    K = J @ J.T
    with pytest.raises(ValueError, match=r"symmetric: a kernel\? cka compares a kernel with labels"):
        alignment.cka(K, K)
    one_hot = torch.eye(5, dtype=torch.float64)
    for labels in (one_hot, one_hot - 1 / 5, 2 * one_hot - 1):  # a symmetric matrix by chance
        assert 0 < alignment.cka(K, labels) < 1
    H = torch.eye(5, dtype=torch.float64) - 1 / 5
    other = torch.diag(torch.arange(1.0, 6.0)).double()
    expected = (H @ K @ H * (H @ other @ H)).sum() / (H @ K @ H).norm() / (H @ other @ H).norm()
    assert_close(alignment.kernels(spectrum.center(K), spectrum.center(other)), expected)
