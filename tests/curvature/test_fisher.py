"""fisher() and hessian() against dense matrices written from the formulas."""

from __future__ import annotations

import copy
from collections import UserDict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import oracle
import pytest
import torch
from cases import ZOO, Case, every_case
from oracle import Inputs, assert_close, take
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import torchtangent as tt
from torchtangent.curvature import implicit, source
from torchtangent.curvature.cotangents import Cotangents
from torchtangent.curvature.representation import Layers
from torchtangent.jacobians.capture import Capture
from torchtangent.jacobians.trace import Trace

LIKELIHOODS = ["categorical", "bernoulli", "gaussian"]
MODELS = {
    "categorical": ["mlp", "lenet", "sequence-outputs", "residual-gelu"],
    "bernoulli": ["mlp", "sequence-outputs", "single-output", "one-sample-one-output"],
    "gaussian": ["mlp", "sequence-outputs", "single-output", "one-sample-one-output"],
}


def draw_targets(f: Tensor, likelihood: str) -> Tensor:
    """Random targets that suit outputs f."""
    if likelihood == "categorical":
        return torch.randint(f.shape[-1], f.shape[:-1])
    if likelihood == "bernoulli":
        return torch.randint(2, f.shape).to(f)
    return torch.randn_like(f)


def setting(name: str, likelihood: str) -> tuple[nn.Module, Inputs, Tensor]:
    """A model of the zoo, its inputs and targets."""
    model, x, output = ZOO[name].build()
    assert output is None
    return model, x, draw_targets(oracle.outputs(model, x), likelihood)


def batches(x: Inputs, y: Tensor | None, sizes: tuple[int, ...]) -> list[tuple[Inputs, Tensor | None]]:
    """Consecutive batches of these sizes."""
    ends = torch.tensor(sizes).cumsum(0).tolist()
    parts = [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]
    assert ends[-1] == oracle.count(x)
    return [(take(x, part), None if y is None else y[part]) for part in parts]


# ------------------------------------------------------------------- exact representations, every model

EXACT = {
    "Dense": lambda F, model: F,
    "Diagonal": lambda F, model: torch.diag(F.diag()),
    "BlockDiagonal": oracle.block_diagonal,
    "QuasiDiagonal": oracle.quasi_diagonal,
    "LowRank": lambda F, model: F,
}


@every_case
@pytest.mark.usefixtures("silence")
def test_every_model(case: Case) -> None:
    """All exact representations of one model, so that the oracle runs once."""
    model, x, output = case.build()
    f, J = oracle.outputs(model, x, output), oracle.jacobian_of(case)
    likelihood = "categorical" if f.shape[-1] > 1 else "bernoulli"
    dense = oracle.exact_fisher(f, J, likelihood)
    errors = {}
    for name, reduce in EXACT.items():
        F = tt.fisher(model, (x, None), getattr(tt, name), likelihood=likelihood, output=output)
        errors[name] = oracle.relative_error(F.dense(), reduce(dense, model))
        errors[f"trace of {name}"] = oracle.relative_error(F.trace(), dense.trace())
    v = torch.randn(len(dense), dtype=torch.float64)
    F = tt.fisher(model, (x, None), tt.Implicit, likelihood=likelihood, output=output)
    errors["Implicit"] = oracle.relative_error(F @ v, dense @ v)
    assert all(error <= 1e-10 for error in errors.values()), errors


# ------------------------------------------------------------------------------- likelihoods and kinds


@pytest.mark.parametrize("kind", ["exact", "empirical"])
@pytest.mark.parametrize(("likelihood", "name"), [(k, name) for k, names in MODELS.items() for name in names])
def test_likelihoods(name: str, likelihood: str, kind: str) -> None:
    model, x, y = setting(name, likelihood)
    dense = oracle.fisher(model, [(x, y)], likelihood, kind)
    for representation, reduce in EXACT.items():
        F = tt.fisher(model, (x, y), getattr(tt, representation), likelihood=likelihood, kind=kind)
        assert_close(F.dense(), reduce(dense, model))


@pytest.mark.parametrize("kind", ["exact", "empirical"])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("name", ["mlp", "sequence-outputs"])
def test_implicit_likelihoods(name: str, likelihood: str, kind: str) -> None:
    model, x, y = setting(name, likelihood)
    loader = batches(x, y, (1, oracle.count(x) - 1))
    F = tt.fisher(model, loader, tt.Implicit, likelihood=likelihood, kind=kind)
    V = torch.randn(F.size, 3, dtype=torch.float64)
    expected = oracle.fisher(model, [(x, y)], likelihood, kind) @ V
    for _ in range(5):  # from the fourth product on, the data is kept as a linear map
        assert_close(F @ V, expected)
        assert (F @ V[:, :0]).shape == (F.size, 0)


def test_a_network_is_traced_only_if_all_graphs_may_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tracing takes seconds for a large one."""
    model, x, y = setting("mlp", "categorical")
    monkeypatch.setattr(Capture, "budget", lambda self, base, *_: len(x) * 2 * sum(self.bytes_per_sample) - 1)
    monkeypatch.setattr(implicit, "replayed", lambda *_: pytest.fail("traced"))
    F = tt.fisher(model, batches(x, y, (1, oracle.count(x) - 1)), tt.Implicit)
    expected = oracle.fisher(model, [(x, y)], "categorical", "exact").sum(1)
    for _ in range(6):
        assert_close(F @ torch.ones(F.size, dtype=torch.float64), expected)


class Counted(nn.Linear):
    """Counts its calls."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x)


def test_implicit_runs_the_model_once_for_both_derivatives() -> None:
    model, x = Counted(4, 3).double(), torch.randn(6, 4, dtype=torch.float64)
    F = tt.fisher(model, (x, None), tt.Implicit)
    v = torch.randn(F.size, dtype=torch.float64)
    F @ v  # chooses the way, on two samples
    model.calls = 0
    product = F @ v
    assert model.calls == 1
    assert_close(product, oracle.fisher(model, [(x, None)], "categorical", "exact") @ v)


@pytest.mark.parametrize("representation", EXACT)
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_a_layer_of_no_units(representation: str) -> None:
    model = nn.ModuleDict({"none": nn.Linear(4, 0), "some": nn.Linear(4, 2)}).double()
    model.forward = lambda x: model["some"](x) + model["none"](x).sum(1, keepdim=True)
    x = torch.randn(5, 4, dtype=torch.float64)
    F = tt.fisher(model, (x, None), getattr(tt, representation))
    some = model["some"]
    assert_close(F.dense(), EXACT[representation](oracle.fisher(some, [(x, None)], "categorical", "exact"), some))


def test_exact_formula_by_enumeration() -> None:
    """The exact Fisher is the expectation of the empirical one over all labels, each with its probability."""
    model, x, _ = setting("mlp", "categorical")
    f, J = oracle.outputs(model, x), oracle.jacobian(model, x)
    expected = torch.zeros(J.shape[-1], J.shape[-1], dtype=torch.float64)
    for n in range(len(f)):
        for label, p in enumerate(f[n].softmax(-1)):
            one = oracle.empirical_fisher(f[n : n + 1], J[n : n + 1], torch.tensor([label]))
            expected += p * one / len(f)
    assert_close(tt.fisher(model, (x, None), tt.Dense).dense(), expected)


def test_sequence_terms() -> None:
    """(N, T, C): exact sums the terms' matrices; empirical is the outer product of the summed gradient."""
    model, x, y = setting("sequence-outputs", "categorical")
    f, J = oracle.outputs(model, x), oracle.jacobian(model, x)
    exact = sum(oracle.exact_fisher(f[:, t], J[:, t]) for t in range(f.shape[1]))
    assert_close(tt.fisher(model, (x, y), tt.Dense).dense(), exact)
    log_p = f.log_softmax(-1).gather(-1, y[..., None])
    assert log_p.shape == (*y.shape, 1)
    g = torch.einsum("ntc,ntcp->np", oracle.score(f, y, "categorical"), J)
    empirical = torch.einsum("np,nq->pq", g, g) / len(g)
    assert_close(tt.fisher(model, (x, y), tt.Dense, kind="empirical").dense(), empirical)


def test_empirical_is_made_of_loss_gradients() -> None:
    """The same from torch's own cross-entropy: no score formula involved."""
    model, x, y = setting("mlp", "categorical")
    rows = []
    for n in range(len(x)):
        loss = nn.functional.cross_entropy(model(x[n : n + 1]), y[n : n + 1])
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]))
    g = torch.stack(rows)
    assert_close(tt.fisher(model, (x, y), tt.Dense, kind="empirical").dense(), g.T @ g / len(g))


# -------------------------------------------------------------------------------------------- batching

BATCHED = ["Dense", "Diagonal", "BlockDiagonal", "QuasiDiagonal", "KFAC", "EKFAC", "Implicit"]


@pytest.mark.parametrize("kind", ["exact", "empirical"])
@pytest.mark.parametrize("representation", BATCHED)
@pytest.mark.parametrize(("name", "sizes"), [("mlp", (1, 3, 2)), ("lenet", (3, 1)), ("sequence-outputs", (1, 2))])
def test_uneven_batches_are_one_batch(name: str, sizes: tuple[int, ...], representation: str, kind: str) -> None:
    model, x, y = setting(name, "categorical")
    chosen = getattr(tt, representation)
    one = tt.fisher(model, (x, y), chosen, kind=kind)
    many = tt.fisher(model, batches(x, y, sizes), chosen, kind=kind)
    V = torch.randn(one.size, 3, dtype=torch.float64)
    # The eigenbasis behind EKFAC is sensitive where eigenvalues nearly agree.
    assert_close(many @ V, one @ V, 1e-8 if representation == "EKFAC" else 1e-10)


def test_batches_of_different_lengths() -> None:
    """Sequences of 2 and of 5 words: more locations in one batch than in the other, one mean over samples."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    loader = [(torch.randn(3, 2, 3).double(), None), (torch.randn(1, 5, 3).double(), None)]
    pooled = lambda y: y.mean(1)  # noqa: E731
    dense = oracle.fisher(model, loader, output=pooled)
    for representation, reduce in EXACT.items():
        F = tt.fisher(model, loader, getattr(tt, representation), output=pooled)
        assert_close(F.dense(), reduce(dense, model))
    K = tt.fisher(model, loader, tt.KFAC, output=pooled).dense()
    parts = [(oracle.factors(model, x, pooled), oracle.outputs(model, x, pooled)) for x, _ in loader]
    for name in ("0", "2"):
        a = torch.cat([factors[name][0].flatten(0, 1) for factors, _ in parts])
        d = [oracle.cotangents(factors[name][1], f, "categorical").flatten(0, 2) for factors, f in parts]
        A, B = a.T @ a / len(a), sum(rows.T @ rows for rows in d) / 4
        index = oracle.layer_index(model, name)
        assert_close(K[index[:, None], index], torch.kron(B, A))


def test_data_loader() -> None:
    model, x, y = setting("mlp", "categorical")
    loader = DataLoader(TensorDataset(x, y), batch_size=4)
    F = tt.fisher(model, loader, tt.Dense, kind="empirical")
    assert_close(F.dense(), oracle.fisher(model, [(x, y)], kind="empirical"))


def test_progress_counts_samples() -> None:
    """All of them, once per pass over the data; how many there are is not known before a generator ends."""
    model, x = nn.Linear(3, 2).double(), torch.randn(10, 3).double()
    parts = [(part, None) for part in x.split(4)]
    loader = DataLoader(TensorDataset(x, torch.zeros(10)), batch_size=4, drop_last=True)
    for data, representation, total in (
        ((x, None), tt.Diagonal, 10),
        (parts, tt.EKFAC, 20),
        (loader, tt.KFAC, 8),
        ((part for part in parts), tt.KFAC, None),
    ):
        seen: list[tuple[int, int | None]] = []
        tt.fisher(model, data, representation, progress=lambda *done, seen=seen: seen.append(done))
        assert seen[-1] == (total or 10, total)
        assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_dict_batches() -> None:
    model, x, output = ZOO["words-and-numbers"].build()
    expected = oracle.fisher(model, [(x, None)], output=output)
    assert_close(tt.fisher(model, batches(x, None, (3, 1)), tt.Dense).dense(), expected)


@pytest.mark.usefixtures("quiet")
def test_tuple_batches() -> None:
    model, x, _ = ZOO["two-inputs"].build()
    expected = oracle.fisher(model, [(x, None)])
    assert_close(tt.fisher(model, batches(x, None, (1, 3)), tt.Dense).dense(), expected)
    assert_close(tt.fisher(model, (x, None), tt.Dense).dense(), expected)


# -------------------------------------------------------------------------------------- KFAC and EKFAC

KRONECKER = ["mlp", "deep-linear", "lenet", "linear-sequence", "linear-grid", "linear-no-bias", "conv2d",
             "conv2d-uneven", "module-called-thrice", "branches", "one-module-two-names"]  # fmt: skip


@pytest.mark.parametrize("sharing", ["expand", "reduce"])
@pytest.mark.parametrize("name", KRONECKER)
def test_kfac_factors(name: str, sharing: str) -> None:
    """B ⊗ A with A = Σ aaᵀ / (number of locations), B = Σ ddᵀ / N, the bias the last column of [W b]."""
    model, x, _ = ZOO[name].build()
    F = tt.fisher(model, (x, None), tt.KFAC(sharing=sharing))
    assert_close(F.dense(), oracle.kfac(model, x, sharing=sharing))


@pytest.mark.parametrize("kind", ["exact", "empirical"])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("sharing", ["expand", "reduce"])
@pytest.mark.parametrize("name", ["mlp", "lenet", "conv-per-pixel-outputs"])
def test_kfac_likelihoods(name: str, sharing: str, likelihood: str, kind: str) -> None:
    model, x, y = setting(name, likelihood)
    F = tt.fisher(model, (x, y), tt.KFAC(sharing=sharing), likelihood=likelihood, kind=kind)
    targets = y if kind == "empirical" else None
    assert_close(F.dense(), oracle.kfac(model, x, likelihood=likelihood, sharing=sharing, y=targets))


def test_kfac_default_is_expand() -> None:
    model, x, _ = ZOO["lenet"].build()
    assert_close(
        tt.fisher(model, (x, None), tt.KFAC).dense(),
        tt.fisher(model, (x, None), tt.KFAC(sharing="expand")).dense(),
    )


@pytest.mark.parametrize("kind", ["exact", "empirical"])
@pytest.mark.parametrize("name", KRONECKER)
def test_ekfac_is_the_true_second_moment_in_its_eigenbasis(name: str, kind: str) -> None:
    """E shares the eigenbasis Q of KFAC's K and has the diagonal of QᵀFQ there.

    So, for the block F of every layer and whatever basis was taken where eigenvalues agree:
    E commutes with K, tr(E Kʲ) = tr(F Kʲ), and F − E is orthogonal to E.
    """
    model, x, y = setting(name, "categorical")
    E = tt.fisher(model, (x, y), tt.EKFAC, kind=kind).dense()
    K = oracle.kfac(model, x, y=y if kind == "empirical" else None)
    F = oracle.block_diagonal(oracle.fisher(model, [(x, y)], kind=kind), model)
    for layer in oracle.factors(model, x):
        index = oracle.layer_index(model, layer)
        e, k, f = (M[index[:, None], index] for M in (E, K, F))
        k = k / k.norm()
        assert (e @ k - k @ e).norm() <= 1e-10 * e.norm()
        for power in range(4):
            kj = torch.linalg.matrix_power(k, power)
            assert abs((e * kj).sum() - (f * kj).sum()) <= 1e-10 * f.trace()
        assert abs(((f - e) * e).sum()) <= 1e-10 * f.norm() ** 2
    assert_close(oracle.block_diagonal(E, model), E)


def test_ekfac_equals_its_definition() -> None:
    """Where all eigenvalues of the factors differ, the basis is unique and so is EKFAC."""
    model, x, _ = ZOO["mlp"].build()
    x = torch.randn(40, 6, dtype=torch.float64)
    E = tt.fisher(model, (x, None), tt.EKFAC).dense()
    F, f = oracle.fisher(model, [(x, None)]), oracle.outputs(model, x)
    for name, (a, D) in oracle.factors(model, x).items():
        A, B = oracle.kfac_factors(a, oracle.cotangents(D, f, "categorical"))
        for factor in (A, B):
            assert torch.linalg.eigvalsh(factor).diff().min() > 1e-6 * factor.norm()
        Q = torch.kron(torch.linalg.eigh(B)[1], torch.linalg.eigh(A)[1])
        index = oracle.layer_index(model, name)
        block = F[index[:, None], index]
        expected = Q @ torch.diag(torch.diag(Q.T @ block @ Q)) @ Q.T
        assert_close(E[index[:, None], index], expected, 1e-8)


# ------------------------------------------------------------------------------------------ per-module mix


def test_mix() -> None:
    """Each module gets the representation that its name asks for; between modules there is nothing."""
    model, x, _ = ZOO["mlp"].build()
    F = tt.fisher(model, (x, None), {"0.0": tt.Diagonal, "0.2": tt.BlockDiagonal, "3": tt.KFAC}).dense()
    blocks = {
        "0.0": torch.diag(oracle.fisher(model, [(x, None)]).diag()),
        "0.2": oracle.fisher(model, [(x, None)]),
        "3": oracle.kfac(model, x),
    }
    expected = torch.zeros_like(F)
    for name, matrix in blocks.items():
        index = oracle.layer_index(model, name)
        expected[index[:, None], index] = matrix[index[:, None], index]
    assert_close(F, expected)


def test_mix_by_pattern() -> None:
    model, x, _ = ZOO["mlp"].build()
    F = tt.fisher(model, (x, None), {"0.*": tt.Diagonal, "3": tt.KFAC(sharing="reduce")}).dense()
    by_name = {"0.0": tt.Diagonal, "0.2": tt.Diagonal, "3": tt.KFAC(sharing="reduce")}
    assert_close(F, tt.fisher(model, (x, None), by_name).dense())


def test_mix_equals_each_alone() -> None:
    model, x, _ = ZOO["lenet"].build()
    mixed = tt.fisher(model, (x, None), {"*": tt.EKFAC}).dense()
    assert_close(mixed, tt.fisher(model, (x, None), tt.EKFAC).dense(), 1e-8)


# ---------------------------------------------------------------------------------- parameters, outputs


@pytest.mark.parametrize("representation", EXACT)
def test_params(representation: str) -> None:
    model, x, _ = ZOO["mlp"].build()
    F = tt.fisher(model, (x, None), getattr(tt, representation), params=["0.0.*", "3.*"])
    full = EXACT[representation](oracle.fisher(model, [(x, None)]), model)
    index = torch.cat([place.flatten() for name, place in oracle.positions(model).items() if "0.2." not in name])
    assert_close(F.dense(), full[index[:, None], index])


@pytest.mark.usefixtures("quiet")
def test_output_picker() -> None:
    model, x, output = ZOO["language-model"].build()
    F = tt.fisher(model, (x, None), tt.Dense, output=output)
    assert_close(F.dense(), oracle.fisher(model, [(x, None)], output=output))


@pytest.mark.parametrize("representation", EXACT)
@pytest.mark.parametrize("name", ["mlp", "lenet", "residual-gelu", "sequence-outputs"])
def test_float32(name: str, representation: str) -> None:
    model, x, _ = ZOO[name].build(torch.float32)
    F = tt.fisher(model, (x, None), getattr(tt, representation)).dense()
    assert F.dtype == torch.float32
    model, x, _ = ZOO[name].build(torch.float64)
    assert_close(F, EXACT[representation](oracle.fisher(model, [(x, None)]), model), 1e-5)


# ----------------------------------------------------------------------------------- what an operator can


@pytest.mark.parametrize("representation", BATCHED)
def test_operations_agree_with_the_dense_matrix(representation: str) -> None:
    model, x, _ = ZOO["mlp"].build()
    F = tt.fisher(model, [(x, None)], getattr(tt, representation), likelihood="gaussian")
    M = F.dense()
    v = torch.randn(len(M), dtype=torch.float64)
    assert_close(F @ v, M @ v)
    assert_close(torch.as_tensor(F.quad(v)), v @ M @ v)
    damped = M + 0.1 * torch.eye(len(M), dtype=torch.float64)
    assert_close(F.solve(v, damping=0.1), torch.linalg.solve(damped, v), 1e-5 if F_is_iterative(F) else 1e-10)
    if not F_is_iterative(F):
        assert_close(torch.as_tensor(F.trace()), M.trace())
        assert_close(F.diag(), M.diag())
        assert_close(torch.as_tensor(F.frobenius()), M.norm())


def F_is_iterative(F: object) -> bool:  # noqa: N802
    """Implicit operators solve by conjugate gradients and may estimate traces."""
    return type(F).__name__.startswith("Implicit")


@pytest.mark.parametrize("representation", BATCHED)
def test_vectors_come_back_as_they_were_given(representation: str) -> None:
    model, x, _ = ZOO["mlp"].build()
    F = tt.fisher(model, [(x, None)], getattr(tt, representation))
    flat = torch.randn(sum(p.numel() for p in model.parameters()), dtype=torch.float64)
    expected = F @ flat
    places = oracle.positions(model)
    as_dict = {name: flat[place] for name, place in places.items()}
    result = F @ as_dict
    assert list(result) == list(as_dict)
    for name, place in places.items():
        assert_close(result[name], expected[place])
    result = F @ list(as_dict.values())
    assert isinstance(result, list)
    for piece, place in zip(result, places.values(), strict=True):
        assert_close(piece, expected[place])


# ------------------------------------------------------------------------------------------- sampled


@pytest.mark.parametrize("representation", ["Dense", "Diagonal", "BlockDiagonal", "QuasiDiagonal", "KFAC", "EKFAC"])
def test_sampled_is_reproducible(representation: str) -> None:
    model, x, _ = ZOO["mlp"].build()

    def draw(seed: int) -> Tensor:
        chosen = getattr(tt, representation)
        return tt.fisher(model, (x, None), chosen, kind="sampled", samples=2, seed=seed).dense()

    first = draw(3)
    torch.rand(7)  # the global state plays no part
    assert torch.equal(first, draw(3))
    assert not torch.allclose(first, draw(4))


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_sampled_representations_see_the_same_draws(likelihood: str) -> None:
    """With one seed, the diagonal is the diagonal of the dense matrix."""
    model, x, _ = ZOO["mlp"].build()
    options = {"likelihood": likelihood, "kind": "sampled", "samples": 3, "seed": 5}
    dense = tt.fisher(model, (x, None), tt.Dense, **options).dense()
    for representation, reduce in EXACT.items():
        actual = tt.fisher(model, (x, None), getattr(tt, representation), **options).dense()
        assert_close(actual, reduce(dense, model))


@pytest.mark.parametrize("samples", [1, 3])
def test_sampled_rank(samples: int) -> None:
    """One gradient for each sample and draw, no more."""
    model, x, _ = ZOO["mlp"].build()
    F = tt.fisher(model, (x[:2], None), tt.Dense, likelihood="gaussian", kind="sampled", samples=samples)
    assert torch.linalg.matrix_rank(F.dense(), rtol=1e-9) == 2 * samples


# ------------------------------------------------------------------------------------------- Hessian


def true_hessian(model: nn.Module, x: Tensor, y: Tensor, loss: object) -> Tensor:
    """∂²/∂θ² of the mean loss, row by row."""
    parameters = list(oracle.trainable(model).values())
    value = loss(model(x), y)
    g = torch.cat([p.flatten() for p in torch.autograd.grad(value, parameters, create_graph=True)])
    rows = [torch.autograd.grad(entry, parameters, retain_graph=True, allow_unused=True) for entry in g]
    zeros = [torch.zeros_like(p) for p in parameters]
    return torch.stack(
        [torch.cat([(z if r is None else r).flatten() for r, z in zip(row, zeros, strict=True)]) for row in rows]
    )


@pytest.mark.parametrize("sizes", [(6,), (1, 3, 2)])
def test_hessian(sizes: tuple[int, ...]) -> None:
    """The Hessian of the mean over all samples, whatever the batches."""
    model, x, y = setting("mlp", "categorical")
    H = tt.hessian(model, batches(x, y, sizes), nn.functional.cross_entropy)
    expected = true_hessian(model, x, y, nn.functional.cross_entropy)
    v = torch.randn(len(expected), dtype=torch.float64)
    assert_close(H @ v, expected @ v)
    assert_close(H.dense(), expected)


def test_batches_of_other_lengths() -> None:
    """Sequences of 5 and of 6 tokens; the graphs of implicit products are kept all the same."""
    model = nn.Sequential(nn.Embedding(7, 4), nn.Tanh(), nn.Linear(4, 7)).double()
    data = [(torch.randint(7, (4, t)), torch.randint(7, (4, t))) for t in (5, 6)]
    v = torch.randn(63, dtype=torch.float64)

    def loss(f: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(f.transpose(1, 2), y)

    H = sum(true_hessian(model, x, y, loss) for x, y in data) / 2
    assert_close(tt.hessian(model, data, loss) @ v, H @ v)
    F = tt.fisher(model, data, tt.Implicit)
    expected = tt.fisher(model, data, tt.Dense) @ v
    for _ in range(6):
        assert_close(F @ v, expected)
    assert F.matmat._kept


@pytest.mark.parametrize("name", ["mlp", "lenet", "embedding"])
def test_implicit_products_by_vmap(name: str) -> None:
    """From the first on, and when graphs are kept; also solves, products with J, and derivatives by the vectors."""
    model, x, output = ZOO[name].build()
    options = {"likelihood": "gaussian", "output": output}
    F = tt.fisher(model, (x, None), tt.Implicit, **options)
    y = torch.zeros_like(oracle.forward(model, x, output)).detach()
    V = torch.randn(F.size, 3, dtype=torch.float64)
    dense = tt.fisher(model, (x, None), tt.Dense, **options).dense()

    def by_vmap(function: Callable[[Tensor], Tensor], U: Tensor = V) -> Tensor:
        return torch.func.vmap(function, in_dims=1, out_dims=1)(U)

    for _ in range(6):
        assert_close(by_vmap(lambda v: F @ v), dense @ V)
    assert_close(by_vmap(lambda v: F.solve(v, damping=1.0)), torch.linalg.solve(dense + torch.eye(F.size), V), 1e-5)
    J = tt.jacobian(model, x, output=output)
    rows = J.dense().flatten(0, -2)
    assert_close(by_vmap(lambda v: (J @ v).flatten()), rows @ V)
    W = torch.randn(len(rows), 3, dtype=torch.float64)
    assert_close(by_vmap(lambda u: J.T @ u.view(J.shape[:-1]), W), rows.T @ W)
    assert_close(by_vmap(torch.func.grad(lambda v: v @ (F @ v) / 2)), dense @ V)
    v, t, H = V[:, 0], V[:, 1], tt.hessian(model, (x, y), nn.functional.mse_loss)
    for product in (lambda v: F @ v, lambda v: J @ v, lambda v: H @ v):
        assert_close(torch.func.jvp(product, (v,), (t,))[1], product(t))
    if F.size < 100:
        assert_close(torch.func.hessian(lambda v: v @ (F @ v) / 2)(v), dense)
        assert_close(torch.func.jacfwd(lambda v: (J @ v).flatten())(v), rows)
    scales = torch.tensor([2.0, 3.0], dtype=torch.float64)
    assert_close(by_vmap(lambda v: torch.func.vmap(lambda s: F @ (s * v))(scales).sum(0)), 5 * dense @ V)


@pytest.mark.parametrize("batch", [50, 500, 5000])
@pytest.mark.parametrize("outputs", [3, 10, 20])
def test_directions_that_are_zero_in_float32(outputs: int, batch: int) -> None:
    """Logits may all be shifted, B 1 = 0: in a posterior, N‖A‖ times the error of that competes with the prior."""
    torch.manual_seed(0)
    N, x, model = 10_000, torch.randn(10_000, 16) * 0.5 + 2, nn.Linear(16, outputs)

    def found(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        F = tt.fisher(model, [(part, None) for part in x.split(batch)], tt.KFAC)
        B = F.blocks[0][1].left.dense().double()
        return B, tt.jacobian(model, x[:20]).covariance((N * F).inverse(10.0)).double(), (N * F).logdet(10.0).double()

    B, S, logdet = found(model, x)
    exact = found(copy.deepcopy(model).double(), x.double())
    assert_close(B, exact[0], 2e-7)
    assert_close(S, exact[1], 5e-3)  # 10⁻⁵ of B would be 10 %
    assert_close(logdet, exact[2], 1e-5)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("name", ["mlp", "lenet", "frozen-layer"])
def test_a_hessian_keeps_graphs(name: str, large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """After some products those of all batches, if they are small; a loader may fill one buffer again and again."""
    model, x, _ = ZOO[name].build()
    y = torch.randn_like(model(x))
    if large:
        monkeypatch.setattr(Capture, "budget", lambda *_: 100)
    parts = (slice(0, 1), slice(1, len(x)))

    class Loader:
        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            inputs, targets = torch.empty_like(x), torch.empty_like(y)
            for part in parts:
                n = len(x[part])
                yield inputs[:n].copy_(x[part]), targets[:n].copy_(y[part])

    loss = nn.functional.mse_loss
    H = tt.hessian(model, Loader(), loss)
    v = torch.randn(H.size, 2, dtype=torch.float64)
    expected = sum(len(x[part]) * true_hessian(model, x[part], y[part], loss) @ v for part in parts) / len(x)
    for _ in range(7):
        assert_close(H @ v, expected)
    assert (H.matmat._kept is None) == large
    assert (H @ v[:, :0]).shape == (H.size, 0)
    with pytest.raises(RuntimeError, match="or it was copied"):
        copy.deepcopy(H) @ v
    with torch.no_grad():
        next(p for p in model.parameters() if p.requires_grad).mul_(1.1)
    with pytest.raises(RuntimeError, match="changed"):
        H @ v


def test_hessian_of_one_batch() -> None:
    model, x, y = setting("mlp", "gaussian")
    H = tt.hessian(model, (x, y), nn.functional.mse_loss)
    assert_close(H.dense(), true_hessian(model, x, y, nn.functional.mse_loss))


def test_hessian_is_gauss_newton_for_a_linear_model() -> None:
    """With outputs linear in the parameters the Hessian of the cross-entropy is the exact Fisher."""
    model, x, y = setting("linear-alone", "categorical")
    H = tt.hessian(model, (x, y), nn.functional.cross_entropy)
    assert_close(H.dense(), tt.fisher(model, (x, y), tt.Dense).dense())


@pytest.mark.parametrize("targets", [(6,), (6, 1)])
def test_the_hessians_loss_sees_outputs_as_the_model_gives_them(targets: tuple[int, ...]) -> None:
    """(N,) outputs, which count as one output, are not (N, 1) for a loss that would broadcast them."""
    torch.manual_seed(0)
    layers = [nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)] + ([nn.Flatten(0)] if len(targets) == 1 else [])
    model, x = nn.Sequential(*layers).double(), torch.randn(6, 2, dtype=torch.float64)
    y = torch.randn(targets, dtype=torch.float64)
    H = tt.hessian(model, (x, y), nn.functional.mse_loss)
    assert_close(H.dense(), true_hessian(model, x, y, nn.functional.mse_loss))


# ------------------------------------------------------------------------------------- half precision


class Bagged(nn.Module):
    """What only the fallback does, before a layer with a rule."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(7, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.bag(x).tanh())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("representation", [tt.Diagonal, tt.KFAC, tt.Implicit, tt.Dense])
@pytest.mark.filterwarnings("ignore:J @ v takes")
@pytest.mark.filterwarnings("ignore:The Jacobian of")
@pytest.mark.filterwarnings("ignore:No Kronecker factors")
def test_half_precision_is_summed_in_float32(representation: type, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, x = Bagged().to(dtype), torch.randint(7, (40, 5))
    data = [(x, None)] * 20
    F = tt.fisher(model, data, representation)
    v = torch.randn(F.size)
    found = F @ v
    assert F.dtype == found.dtype == torch.float32
    assert {layer.dense().dtype for layer in tt.jacobian(model, x).layers.values()} == {torch.float32}
    wide = tt.fisher(model.double(), data, representation)
    assert oracle.relative_error(found.double(), wide @ v.double()) < (0.03 if dtype == torch.bfloat16 else 0.005)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_of_a_hessian(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype), torch.randn(30, 4).to(dtype)
    y = torch.randint(3, (30,))
    H = tt.hessian(model, [(x, y)] * 20, nn.functional.cross_entropy)
    v = torch.randn(H.size)
    found = H @ v
    assert found.dtype == torch.float32
    expected = tt.hessian(model.double(), (x.double(), y), nn.functional.cross_entropy) @ v.double()
    assert oracle.relative_error(found.double(), expected) < 0.05


# ------------------------------------------------------------------------------------- padding, draws


@pytest.mark.parametrize("wrap", [False, True])
def test_padding_has_no_curvature(wrap: bool) -> None:
    """A row that is never learned takes nothing from the others; in KFAC it is no location."""

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(5, 4, padding_idx=2), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            read = nn.functional.embedding(x, self.table.weight, 2) if wrap else self.table(x)
            return self.head(read.sum(1).tanh())

    torch.manual_seed(0)
    model = Reader().double()
    x = torch.tensor([[0, 2, 2, 2], [1, 2, 2, 2], [3, 2, 2, 2], [0, 2, 2, 2]])
    exact = tt.fisher(model, (x, None), tt.Dense, params="table.*")
    for representation in (tt.KFAC, tt.EKFAC, tt.Diagonal):
        F = tt.fisher(model, (x, None), representation, params="table.*")
        assert (F.diag().view(5, 4)[2] == 0).all()
        assert_close(F.trace(), exact.trace())


def test_draws_that_would_not_be_made_are_refused() -> None:
    model, x, y = setting("mlp", "categorical")
    with pytest.raises(ValueError, match="samples=10 has no effect with kind='exact'"):
        tt.fisher(model, (x, y), tt.Diagonal, samples=10)


# ------------------------------------------------------------------------------------------ data


def test_a_batch_as_a_loader_yields_it() -> None:
    """`next(iter(loader))` is a list; targets may be a list or an array."""
    model, x, y = setting("mlp", "categorical")
    wanted = tt.fisher(model, (x, y), tt.Diagonal, kind="empirical").diag()
    for batch in ([x, y], [x, y.tolist()], (x, y.numpy()), [(x, y.tolist())]):
        assert torch.equal(tt.fisher(model, batch, tt.Diagonal, kind="empirical").diag(), wanted)
    two = tt.fisher(model, [[x[:2], y[:2]], [x[2:], y[2:]]], tt.Diagonal, kind="empirical").diag()
    assert_close(two, wanted)


def test_outputs_that_are_no_logits_are_said() -> None:
    model, x = nn.Sequential(nn.Linear(3, 4), nn.Softmax(-1)), torch.randn(6, 3)
    with pytest.warns(tt.TangentWarning, match="takes logits, but the outputs are probabilities"):
        tt.fisher(model, (x, None), tt.Diagonal)
    with pytest.warns(tt.TangentWarning, match="the targets are real numbers: for a regression pass"):
        tt.fisher(model[0], (x, torch.randn(6, 4)), tt.Diagonal)
    tt.fisher(model[0], (x, torch.rand(6, 4)), tt.Diagonal)  # soft labels, perhaps


@pytest.mark.filterwarnings("ignore:The exact Fisher matrix of outputs")
def test_many_cotangents_are_said_and_taken_in_parts() -> None:
    """Terms are pulled back a few at a time; second moments of inputs, seen several times, stay means."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 70)).double()
    x, y = torch.randn(2, 64, 3).double(), torch.randint(70, (2, 64))
    y[0, :60] = -100
    y[1, 4:] = -100
    with pytest.warns(tt.TangentWarning, match="takes 4,416 backward passes"):
        found = {kind: tt.fisher(model, (x, y), kind) for kind in (tt.Diagonal, tt.KFAC, tt.EKFAC)}
    small = [(x[0, 60:], y[0, 60:]), (x[1, :4], y[1, :4])]
    wanted = tt.fisher(model, small, tt.Diagonal).diag() * 4  # a mean over 2 samples, not over 8
    assert_close(found[tt.Diagonal].diag(), wanted)
    assert_close(found[tt.EKFAC].trace(), wanted.sum())
    v = torch.randn(len(wanted), dtype=torch.float64)
    dense = tt.fisher(model, small, tt.Dense).dense() * 4
    assert_close(tt.fisher(model, [(x, y)], tt.Implicit) @ v, dense @ v)


@pytest.mark.parametrize("kind", ["exact", "sampled", "empirical"])
def test_ignored_terms_do_not_count(kind: str) -> None:
    torch.manual_seed(0)
    model, x, y = nn.Linear(3, 4).double(), torch.randn(6, 3).double(), torch.randint(4, (6,))
    some = y.clone()
    some[2:4] = -100
    F = tt.fisher(model, (x, some), tt.Dense, kind=kind)
    if kind == "sampled":
        assert torch.linalg.matrix_rank(F.dense(), rtol=1e-9) == 4
        return
    kept = [0, 1, 4, 5]
    assert_close(F.dense(), tt.fisher(model, (x[kept], y[kept]), tt.Dense, kind=kind).dense() * 4 / 6)


@pytest.mark.parametrize("representation", [tt.KFAC, tt.EKFAC, tt.KFAC(sharing="reduce")])
def test_parts_of_the_cotangents_count_samples_once(representation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences of other lengths are pulled back in other numbers of parts."""
    torch.manual_seed(0)
    words, first, last = nn.Embedding(9, 4, padding_idx=0), nn.Linear(4, 5), nn.Linear(5, 6)
    model = nn.Sequential(words, first, nn.Tanh(), last).double()
    data = [(torch.randint(9, (2, length)), None) for length in (3, 11)]
    wanted = tt.fisher(model, data, representation)
    most: list[int] = []

    def few(capture: Capture, base: int) -> int:
        most.append(7)
        return 7

    monkeypatch.setattr(Capture, "cotangents_within", few)
    found = tt.fisher(model, data, representation)
    assert most
    assert_close(found.dense(), wanted.dense())


def test_class_156_of_bytes_is_not_ignored() -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(3, 200).double(), torch.randn(4, 3).double()
    y = torch.tensor([156, 3, 156, 199])
    found, wanted = (tt.fisher(model, (x, t), tt.Diagonal, kind="empirical").diag() for t in (y.to(torch.uint8), y))
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("kind", ["exact", "sampled", "empirical"])
@pytest.mark.parametrize("representation", [tt.Dense, tt.KFAC, tt.Implicit])
def test_labels_of_another_shape_do_not_pass_for_none(representation: Any, kind: str) -> None:
    """Else −100 among them would be overlooked."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 3)).double()
    x, y = torch.randint(0, 7, (6, 5)), torch.randint(0, 3, (6, 5))
    y[:, 3:] = -100
    wrong = {"flat": y.flatten(), "fewer": y[:5], "shorter": y[:, :4], "one": y[:, 3], "turned": y.T}
    for labels in wrong.values():
        with pytest.raises(ValueError, match=r"shape"):
            tt.fisher(model, (x, labels), representation, kind=kind)
    with pytest.raises(ValueError, match=r"targets have shape \(30,\), but there are 6 samples.*not flattened"):
        tt.fisher(model, (x, y.flatten()), representation, kind=kind)


# ------------------------------------------------------------------------------ what was silently wrong


@pytest.mark.parametrize("representation", [tt.KFAC, tt.EKFAC, tt.QuasiDiagonal, tt.BlockDiagonal])
def test_a_bias_before_the_weight_of_one_output(representation: Any) -> None:
    """The only block is [W b], which is not the order of the flat vector."""
    model, x = nn.Linear(3, 1).double(), torch.randn(20, 3).double()
    weight = model.weight
    del model.weight
    model.weight = weight
    assert [name for name, _ in model.named_parameters()] == ["bias", "weight"]
    rows = torch.cat([torch.ones(20, 1).double(), x], 1)
    exact = rows.T @ rows / 20
    if representation is tt.QuasiDiagonal:
        exact[1:, 1:] = torch.diag(exact.diag()[1:])
    F = tt.fisher(model, (x, None), representation, likelihood="gaussian")
    assert_close(F.dense(), exact)
    assert_close(F.solve({"bias": exact[:1, 0], "weight": exact[1:, 0].view(1, 3)}, damping=0.0)["bias"], torch.ones(1))


@pytest.mark.parametrize("representation", [tt.KFAC, tt.EKFAC, tt.LowRank, tt.Dense])
def test_a_loader_may_refill_its_buffer(representation: Any) -> None:
    model, xs = nn.Linear(40, 3, bias=False).double(), torch.randn(4, 4, 40).double()

    class Loader:
        def __iter__(self) -> Any:
            buffer = torch.empty(4, 40).double()
            for x in xs:
                yield buffer.copy_(x), None

    wanted = tt.fisher(model, [(x, None) for x in xs], representation)
    assert_close(tt.fisher(model, Loader(), representation).dense(), wanted.dense())


@pytest.mark.parametrize("sizes", [(5, 5), (1,) * 10, (2, 3, 5)])
def test_weighted_classes_of_several_batches_are_refused(sizes: tuple[int, ...]) -> None:
    """A batch of one sample, or of one class, is a mean in itself."""
    model, x, y = nn.Linear(3, 3).double(), torch.randn(10, 3).double(), torch.tensor([0] * 5 + [1] * 5)
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 10.0]).double())
    assert_close(tt.hessian(model, (x, y), loss).dense(), true_hessian(model, x, y, loss))
    with pytest.raises(ValueError, match=r"do not add up.*Pass one batch"):
        tt.hessian(model, batches(x, y, sizes), loss).trace()
    y[3] = -100
    with pytest.raises(ValueError, match="do not add up"):
        tt.hessian(model, batches(x, y, sizes), nn.functional.cross_entropy).trace()


def test_a_sum_is_refused_however_small() -> None:
    model, x = nn.Linear(3, 1), torch.randn(20, 3)
    with torch.no_grad():
        model.weight.mul_(1e-4)
        model.bias.mul_(1e-4)
    y = model(x).detach() + 1e-5 * torch.randn(20, 1)
    with pytest.raises(ValueError, match='reduction="mean"'):
        tt.hessian(model, (x, y), nn.MSELoss(reduction="sum")).trace()
    wanted = 2 * (x.double().square().sum() / 20 + 1)
    assert_close(tt.hessian(model, (x, y), nn.MSELoss()).trace().double(), wanted, 1e-5)


def test_a_mean_that_cancels_is_still_one() -> None:
    """Losses of both signs, whose mean is little more than rounding."""
    model, x = nn.Linear(3, 1), torch.randn(20, 3)
    y = torch.zeros(20, 1)

    def loss(f: Tensor, y: Tensor) -> Tensor:
        return ((f - y).square() - middle).mean()

    middle = float(model(x).detach().square().mean())
    H = tt.hessian(model, [(x[:10], y[:10]), (x[10:], y[10:])], loss)
    assert_close(H.trace().double(), 2 * (x.double().square().sum() / 20 + 1), 1e-5)


@pytest.mark.parametrize("likelihood", ["categorical", "gaussian", "bernoulli"])
def test_complex_targets_are_refused(likelihood: str) -> None:
    model, x, y = setting("mlp", likelihood)
    with pytest.raises(ValueError, match=r"needs targets of shape.*of torch.complex128"):
        tt.fisher(model, (x, y.to(torch.complex128)), tt.Dense, likelihood=likelihood, kind="empirical")


@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli"])
def test_surplus_targets_are_refused(likelihood: str) -> None:
    model, x, y = nn.Linear(3, 2).double(), torch.randn(20, 3).double(), torch.rand(25, 2).double()
    for representation in (tt.Dense, tt.Implicit):
        with pytest.raises(ValueError, match=r"targets have shape \(25, 2\), but there are 20 samples"):
            tt.fisher(model, (x, y), representation, likelihood=likelihood, kind="empirical")
    for targets in (y, {"y": y}, y[:19]):
        with pytest.raises(ValueError, match="there are 20 samples"):
            tt.hessian(model, (x, targets), nn.functional.mse_loss)


def test_many_draws_are_not_called_exact() -> None:
    model, x = nn.Linear(3, 2).double(), torch.randn(2, 3).double()
    tt.fisher(model, (x, None), tt.Diagonal, kind="sampled", samples=5000)  # warnings are errors here


class Handmade(nn.Module):
    """A product with a weight that no rule knows, between layers that have one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2)
        self.mix = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.first(x)) @ torch.linalg.matrix_exp(self.mix))


@pytest.mark.parametrize("representation", [tt.KFAC, tt.EKFAC])
def test_weights_without_kronecker_factors_are_said(representation: Any) -> None:
    torch.manual_seed(0)
    model, x = Handmade().double(), torch.randn(6, 3).double()
    with pytest.warns(tt.TangentWarning, match="No Kronecker factors are known for mix: 1 of 7 param") as said:
        F = tt.fisher(model, (x, None), representation)
    assert sum("Kronecker" in str(w.message) for w in said) == 1
    own = tt.fisher(model, (x, None), tt.Diagonal, params="mix").diag()
    assert_close(F.space.split(F.diag())["mix"].flatten(), own)
    tt.fisher(model, (x, None), representation(rest=tt.BlockDiagonal))  # asked for: warnings are errors here
    tt.fisher(model, (x, None), representation, params="first.*")


@pytest.mark.parametrize(
    "representation", [tt.BlockDiagonal, tt.KFAC, tt.EKFAC, tt.QuasiDiagonal, tt.Dense, tt.Diagonal, tt.Implicit]
)
def test_models_of_two_dtypes(representation: Any) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2).double()

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.first(x).tanh().double())

    torch.manual_seed(0)
    model, x = Two(), torch.randn(9, 3)
    F = tt.fisher(model, (x, None), representation)
    assert F.dtype == torch.float64
    v = torch.randn(F.size, dtype=torch.float64)
    wanted = tt.fisher(copy.deepcopy(model).double(), (x.double(), None), representation)
    assert_close(F @ v, wanted @ v, 1e-5)
    assert_close(F.solve(v, damping=0.1), wanted.solve(v, damping=0.1), 1e-5)


@pytest.mark.parametrize("representation", [tt.QuasiDiagonal, tt.KFAC, tt.EKFAC, tt.BlockDiagonal, tt.Dense])
@pytest.mark.filterwarnings("ignore:These parameters do not influence")
def test_a_parameter_without_entries(representation: Any) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(3, 2), nn.Identity()).double(), torch.randn(9, 3).double()
    model[1].none = nn.Parameter(torch.zeros(0, 4).double())
    F = tt.fisher(model, (x, None), representation)
    v, dense = torch.randn(F.size).double(), F.dense()
    damped = dense + 0.1 * torch.eye(F.size).double()
    assert_close(dense, tt.fisher(model[0], (x, None), representation).dense())
    assert_close(F.solve(v, damping=0.1), torch.linalg.solve(damped, v))
    assert_close(F.logdet(0.1), torch.linalg.slogdet(damped)[1])
    if representation is not tt.QuasiDiagonal:
        assert_close(F.sqrt_mv(F.sqrt_mv(v)), dense @ v)
    assert_close(F.frobenius(), dense.norm())


def test_rare_classes_count() -> None:
    """Probabilities whose products are below the smallest number."""
    f = torch.tensor([[0.0, -60.0, -61.0, -62.0]])
    u = Cotangents("categorical", "exact").start()(f, None)[:, 0].double()
    p = torch.softmax(f[0].double(), 0)
    exact = torch.diag(p) - torch.outer(p, p)
    assert_close((u.T @ u)[1:, 1:], exact[1:, 1:], 1e-5)


class Sliced(nn.Module):
    """A linear layer made of some rows of a weight and some entries of a bias."""

    def __init__(self, weight: tuple[int, slice], bias: tuple[int, slice]) -> None:
        super().__init__()
        self.rows, self.entries = weight[1], bias[1]
        self.weight = nn.Parameter(torch.randn(weight[0], 2).double())
        self.bias = nn.Parameter(torch.randn(bias[0]).double())

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight[self.rows], self.bias[self.entries])


@pytest.mark.parametrize(
    ("weight", "bias"),
    [
        ((3, slice(0, 3)), (5, slice(1, 4))),
        ((3, slice(0, 3)), (5, slice(0, 3))),
        ((7, slice(2, 5)), (7, slice(1, 4))),
        ((7, slice(2, 5)), (5, slice(1, 4))),
        ((7, slice(1, 4)), (5, slice(1, 4))),
        ((7, slice(2, 5)), (7, slice(2, 5))),
    ],
    ids=str,
)
def test_other_parts_of_a_bias_than_of_its_weight(weight: tuple[int, slice], bias: tuple[int, slice]) -> None:
    torch.manual_seed(0)
    model, x = Sliced(weight, bias), torch.randn(8, 2).double()
    dense = oracle.fisher(model, [(x, torch.zeros(8, 3).double())], "gaussian", "exact")
    for representation in (tt.KFAC, tt.EKFAC, tt.QuasiDiagonal, tt.BlockDiagonal, tt.Diagonal):
        F = tt.fisher(model, (x, None), representation, likelihood="gaussian")
        assert_close(F.diag(), dense.diag())
    for representation in (tt.BlockDiagonal, tt.LowRank, tt.Implicit):
        F = tt.fisher(model, (x, None), representation, likelihood="gaussian")
        assert_close(F.dense(), dense)
    arrows, columns = torch.diag(dense.diag()), 2 * weight[0]
    if weight[0] == bias[0]:  # else a row has no bias of its own
        for o in range(bias[0]):
            row, b = slice(2 * o, 2 * o + 2), columns + o
            arrows[row, b] = arrows[b, row] = dense[row, b]
    assert_close(tt.fisher(model, (x, None), tt.QuasiDiagonal, likelihood="gaussian").dense(), arrows)
    J = oracle.jacobian(model, x)
    assert_close(tt.ntk(model, x), torch.einsum("ncp,mep->nmce", J, J))


@pytest.mark.parametrize("representation", [tt.KFAC, tt.EKFAC])
def test_parts_of_a_weight_with_their_biases_stay_together(representation: Any) -> None:
    """As in attention: a bias of the same rows is the last column of its weight, also where there are several parts."""

    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6, 2).double())
            self.bias = nn.Parameter(torch.randn(6).double())
            self.turned = False

        def forward(self, x: Tensor) -> Tensor:
            one, two = slice(0, 3), slice(3, 6)
            parts = zip((one, two), (two, one) if self.turned else (one, two), strict=True)
            return sum(nn.functional.linear(x, self.weight[w], self.bias[b]).sin() for w, b in parts)

    torch.manual_seed(0)
    model, x = Halves(), torch.randn(8, 2).double()
    assert len(tt.fisher(model, (x, None), representation, likelihood="gaussian").blocks) == 1
    model.turned = True
    F = tt.fisher(model, (x, None), representation, likelihood="gaussian")
    assert len(F.blocks) == 2
    dense = oracle.fisher(model, [(x, torch.zeros(8, 3).double())], "gaussian", "exact")
    assert_close(F.diag()[12:], dense.diag()[12:])


def test_rows_that_are_not_always_there_are_refused() -> None:
    class Changing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.randn(2, 3)), nn.Parameter(torch.randn(3))

        def forward(self, x: Tensor) -> Tensor:
            return (x @ self.weight if x.dim() == 2 else (self.weight.T @ x[:, 0].T).T) + self.bias

    model, x = Changing(), torch.randn(9, 2)
    with pytest.raises(ValueError, match="uses 'weight' differently from batch to batch"):
        tt.fisher(model, [(x, None), (x[:, None], None)], tt.QuasiDiagonal, likelihood="gaussian")


@pytest.mark.parametrize("kind", ["exact", "sampled", "empirical"])
@pytest.mark.parametrize("representation", [tt.Diagonal, tt.EKFAC, tt.Implicit])
def test_data_of_which_nothing_counts(representation: Any, kind: str) -> None:
    model, x, y = nn.Linear(3, 4).double(), torch.randn(6, 3).double(), torch.full((6,), -100)
    with pytest.warns(tt.TangentWarning, match="All targets are -100.*the Fisher matrix is zero"):
        F = tt.fisher(model, (x, y), representation, kind=kind)
    assert torch.equal(F @ torch.ones(16).double(), torch.zeros(16).double())
    some = torch.tensor([1, 2])
    tt.fisher(model, [(x, y), (x[:2], some), (x, y)], representation, kind=kind)  # some do


@pytest.mark.parametrize("representation", [tt.KFAC, tt.EKFAC, tt.BlockDiagonal])
def test_a_singular_layer_is_named(representation: Any) -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 3))
    F = tt.fisher(model, (torch.randn(2, 3), None), representation)
    with pytest.raises(torch.linalg.LinAlgError, match=r"^Block of 0\.weight, 0\.bias: .*singular.*damping=1e-3"):
        F.solve(torch.ones(F.size))


@pytest.mark.parametrize("kind", ["Dense", "Diagonal", "BlockDiagonal", "QuasiDiagonal", "KFAC", "EKFAC", "LowRank"])
def test_autocast_around_a_fisher_matrix(kind: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3))
    x = torch.randn(10, 2, 4, 4)
    wanted = tt.fisher(model, (x, None), getattr(tt, kind)).dense()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = tt.fisher(model, (x, None), getattr(tt, kind)).dense()
    assert torch.equal(found, wanted)


@pytest.mark.usefixtures("quiet")
def test_quasidiagonal_of_a_square_weight_that_is_read_in_two_ways() -> None:
    """A weight (in, out) of rows that a batch has, or has not, as many of for each sample."""

    class Ragged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.randn(3, 3)), nn.Parameter(torch.randn(3))
            self.head = nn.Linear(3, 2)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            h = torch.tanh(torch.addmm(self.bias, x[mask], self.weight))
            return self.head(h.new_zeros(len(x), 3).index_add(0, mask.nonzero()[:, 0], h))

    def batch(*lengths: int) -> tuple:
        mask = torch.arange(4) < torch.tensor(lengths)[:, None]
        return (torch.randn(*mask.shape, 3).double(), mask), None

    model = Ragged().double()
    with pytest.raises(ValueError, match="The model uses 'weight' differently from batch to batch"):
        tt.fisher(model, [batch(2, 2, 2), batch(1, 3, 3)], tt.QuasiDiagonal, likelihood="gaussian")


class InPlace(nn.Module):
    """A residual connection by +=."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 5), nn.Linear(5, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.a(x))
        g = self.b(h)
        g += h
        return self.c(torch.tanh(g))


class LastStep(nn.Module):
    """The last step of a recurrent layer."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.rnn, self.out = kind(4, 3, batch_first=True), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(x.unflatten(1, (1, 4)).expand(-1, 3, -1))[0][:, -1])


@pytest.mark.parametrize(
    "make",
    [
        InPlace,
        lambda: LastStep(nn.RNN),
        lambda: LastStep(nn.LSTM),
        lambda: LastStep(nn.GRU),
        lambda: nn.Sequential(nn.Linear(4, 5), nn.SiLU(inplace=True), nn.Linear(5, 2)),
    ],
)
@pytest.mark.usefixtures("quiet")
def test_many_implicit_products_of_models_that_work_in_place(make: Any) -> None:
    torch.manual_seed(0)
    model, x = make().double(), torch.randn(6, 4, dtype=torch.float64)
    F = tt.fisher(model, (x, None), tt.Implicit)
    v = torch.randn(F.size, dtype=torch.float64)
    expected = oracle.fisher(model, [(x, None)], "categorical", "exact") @ v
    for _ in range(8):  # from the fourth on by what was kept, where that repeats
        assert_close(F @ v, expected)


def test_missing_targets_repeat() -> None:
    """NaN is not equal to itself, but stands where it stood."""
    model, x, y = nn.Linear(2, 1).double(), torch.randn(6, 2).double(), torch.randn(6, 1).double()
    y[1] = torch.nan

    def loss(f: Tensor, t: Tensor) -> Tensor:
        return torch.where(t.isnan(), 0.0, f - t).square().mean()

    there = torch.cat([x, torch.ones(6, 1).double()], 1)[~y.isnan()[:, 0]]
    H = tt.hessian(model, (x, y), loss)
    assert_close(H @ torch.eye(3).double(), 2 * there.T @ there / 6)


@pytest.mark.parametrize(
    "name", ["lenet", "conv2d-groups", "conv-transpose2d-groups", "conv3d", "sequence-outputs", "mlp"]
)
@pytest.mark.parametrize("kind", [tt.Dense, tt.Diagonal, tt.KFAC, tt.EKFAC, tt.QuasiDiagonal])
def test_cotangents_pulled_back_one_by_one(name: str, kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are stored in another order, which nothing may depend on."""
    model, x, _ = ZOO[name].build()
    expected = tt.fisher(model, (x, None), kind, likelihood="gaussian").dense()
    monkeypatch.setattr(Trace, "_loops", lambda *_: True)
    assert_close(tt.fisher(model, (x, None), kind, likelihood="gaussian").dense(), expected)


def test_many_samples_of_convolutions_are_pulled_back_one_by_one() -> None:
    model, x = nn.Sequential(nn.Conv2d(1, 8, 3), nn.Flatten(), nn.Linear(5408, 2)), torch.randn(64, 1, 28, 28)
    trace = Capture(model, None, None).trace(x)
    assert trace._loops(trace.units())
    assert not Capture(model, None, None).trace(x[:4])._loops(trace.units()[:, :4])


@pytest.mark.parametrize("kind", [tt.Diagonal, tt.EKFAC, tt.QuasiDiagonal])
def test_many_outputs_at_several_locations(kind: Any) -> None:
    """The trace of F, whose squares are summed over outputs by a product where these are many."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 9)).double(), torch.randn(3, 5, 3).double()
    expected = oracle.fisher(model, [(x, None)], "categorical", "exact")
    F = tt.fisher(model, (x, None), kind)
    assert_close(F.trace(), expected.trace())
    if kind is tt.Diagonal:
        assert_close(F.diag(), expected.diag())


def test_the_name_of_a_module_stands_for_all_that_is_in_it() -> None:
    """Also if it has a parameter of its own, as an encoder with positions has."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4))
    body.register_parameter("spare", nn.Parameter(torch.ones(2)))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = body, nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(x) * self.body.spare.prod())

    model, x = Net().double(), torch.randn(5, 3).double()
    F = tt.fisher(model, (x, None), {"body": tt.Dense, "*": tt.Diagonal})
    whole = tt.fisher(model, (x, None), tt.Dense).dense()
    inside = torch.tensor([name.startswith("body.") for name, p in model.named_parameters() for _ in range(p.numel())])
    kept = (inside[:, None] & inside) | torch.eye(len(inside), dtype=torch.bool)
    assert_close(F.dense(), whole * kept)
    assert_close(tt.fisher(model, (x, None), tt.Dense, params="body").dense(), whole[inside][:, inside])


# -------------------------------------------------------------------------------------- shapes of batches


class Two(nn.Module):
    """A parameter for the fallback, and two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.rand(3, 2) + 1)

    def forward(self, a: Tensor, b: Tensor, times: int = 1) -> Tensor:
        return times * ((a + b)[:, :, None] / self.w).sum(1)


@pytest.mark.parametrize("kind", ["tuple", "dict", "user dict", "loader", "with a number"])
def test_all_kinds_of_batches_are_vectorized(kind: str) -> None:
    """Without a warning of a loop over samples."""
    torch.manual_seed(0)
    model, a, b, y = Two().double(), *torch.randn(2, 8, 3, dtype=torch.float64), torch.randn(8, 2)
    data: Any = {
        "tuple": ((a, b), y),
        "dict": ({"a": a, "b": b}, y),
        "user dict": [(UserDict(a=a, b=b), y)],  # as tokenizers return them
        "loader": DataLoader([((p, q), t) for p, q, t in zip(a, b, y, strict=True)], batch_size=4),  # yields lists
        "with a number": ((a, b, 2), y),
    }[kind]
    J = oracle.jacobian(model, (a, b)) * (2 if kind == "with a number" else 1)
    F = tt.fisher(model, data, tt.Diagonal, likelihood="gaussian")
    assert_close(F.diag(), J.square().sum((0, 1)) / len(a))


class Target(NamedTuple):
    mean: Tensor
    weight: Tensor


def test_named_tuples_stay_what_they_are() -> None:
    x, y = torch.randn(6, 3).double(), Target(torch.zeros(6, 1).double(), torch.rand(6, 1).double())
    H = tt.hessian(nn.Linear(3, 1).double(), (x, y), lambda f, y: (y.weight * (f - y.mean) ** 2).mean())
    J = torch.cat([x, torch.ones(6, 1).double()], 1)
    assert_close(H.dense(), 2 / 6 * J.T @ (y.weight * J))


def test_implicit_products_do_not_warn_of_what_they_do_not_do() -> None:
    """No backward pass for each output, and no loop over samples."""
    model = nn.Sequential(nn.Linear(3, 600))
    F = tt.fisher(model, (torch.randn(4, 3), None), tt.Implicit)
    assert torch.isfinite(F @ torch.ones(F.size)).all()


def test_what_is_kept_for_a_second_pass_counts_inputs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_KEPT", 1 << 20)
    kept, bytes_of = [], source._bytes_of

    def counted(layers: Layers) -> int:
        kept.append(bytes_of(layers))
        return kept[-1]

    monkeypatch.setattr(source, "_bytes_of", counted)
    x = torch.randn(4, 1000, 300)  # 1.2 MB a batch, of which cotangents are 4 kB
    tt.fisher(nn.Linear(300, 1), [(part, None) for part in x], tt.EKFAC, likelihood="gaussian")
    assert len(kept) == 1  # after one batch there was too much
    assert kept[0] >= x[0].nbytes


def test_a_hessian_of_which_torch_is_wrong_is_refused() -> None:
    """torch's second derivative of its fused weight_norm is, on a CPU."""
    torch.manual_seed(0)
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 6))
    model = nn.Sequential(normed, nn.Tanh(), nn.Linear(6, 3)).double().eval()
    data = torch.randn(8, 4).double(), torch.randint(3, (8,))
    H = tt.hessian(model, data, nn.functional.cross_entropy)
    with pytest.raises(ValueError, match=r"not symmetric, by \d+%: .* weight_norm is on a CPU in 0\."):
        H @ torch.ones(H.size, dtype=torch.float64)
    alone = tt.hessian(model, data, nn.functional.cross_entropy, params="2.*")
    assert_close(alone.dense(), alone.dense().T)


class Positions(nn.Module):
    """A table of positions, the same for all samples."""

    def __init__(self, axes: int) -> None:
        super().__init__()
        self.words, self.places, self.axes = nn.Embedding(7, 4), nn.Embedding(8, 4), axes
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 7)

    def forward(self, t: Tensor) -> Tensor:
        place = torch.arange(t.shape[1])
        place = place if self.axes == 1 else place[None] if self.axes == 2 else place[None].expand(t.shape)
        return self.head(torch.tanh(self.body(self.words(t) + self.places(place))))


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("representation", [tt.KFAC, tt.EKFAC])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_batches_of_one_sample_have_factors_of_the_same_form(axes: int, representation: Any) -> None:
    model, x = Positions(axes).double(), torch.randint(7, (4, 5))
    whole = tt.fisher(model, (x, None), representation).dense()
    for sizes in ([1, 1, 1, 1], [1, 3], [3, 1]):
        found = tt.fisher(model, [(part, None) for part in x.split(sizes)], representation).dense()
        assert_close(found, whole)
