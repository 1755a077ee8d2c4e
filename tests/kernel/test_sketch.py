"""Sketches of the kernel against JJᵀ of the oracle: products, Nyström features, random projections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import oracle
import pytest
import torch
from cases import Case, every_case
from oracle import assert_close, relative_error
from torch import Tensor, nn

from torchtangent import spectrum
from torchtangent.kernel import columns, projection, sketch
from torchtangent.operators.product import product


def mlp(outputs: int = 3, width: int = 20) -> nn.Module:
    return nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, outputs)).double()


def conv() -> nn.Module:
    body = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Conv2d(4, 6, 3, stride=2, groups=2), nn.Tanh())
    return nn.Sequential(body, nn.Flatten(), nn.Linear(24, 2)).double()


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {"mlp": (mlp, (6,)), "conv": (conv, (2, 7, 7))}


@pytest.fixture(params=NETS)
def net(request: pytest.FixtureRequest) -> tuple[nn.Module, Tensor]:
    make, shape = NETS[request.param]
    return make(), torch.randn(24, *shape, dtype=torch.float64)


def gram(model: nn.Module, x: Any, reduce: str = "full") -> Tensor:
    """The kernel as one matrix, from the oracle's Jacobian."""
    J = oracle.jacobian(model, x)
    if reduce == "sum":
        J = J.sum(1)
    return torch.einsum("ncp,mcp->nm", J, J) if reduce == "trace" else J.flatten(0, -2) @ J.flatten(0, -2).T


def outer(features: sketch.Features) -> Tensor:
    return features.matrix @ features.matrix.T


# ------------------------------------------------------------------------------------------- the whole zoo


@every_case
@pytest.mark.usefixtures("silence")
def test_every_model(case: Case) -> None:
    """Products with few columns, each differentiated, and with many, for which J is formed; and projections."""
    model, x, output = case.build()
    J = oracle.jacobian_of(case).flatten(0, -2)
    K = sketch.operator(model, x, output=output)
    V = torch.randn(len(J), J.shape[0] + 1, dtype=torch.float64)
    assert_close(K @ V, J @ (J.T @ V))
    assert_close(K @ V[:, 0], J @ (J.T @ V[:, 0]))

    dimension = projection.BLOCK + 6
    features = sketch.project(model, x, dimension, seed=5, output=output)
    assert_close(features.matrix, J @ signs(model, dimension, seed=5) / dimension**0.5)
    assert features.trace_error == pytest.approx(float(1 - outer(features).trace() / J.square().sum()), abs=1e-10)


def signs(model: nn.Module, dimension: int, seed: int) -> Tensor:
    """The columns that are meant: outer products of signs, parameter by parameter."""
    columns = []
    for place, p in enumerate(oracle.trainable(model).values()):
        rows = p.shape[0] if p.ndim else 1
        starts = range(0, dimension, projection.BLOCK)
        drawn = torch.cat([projection.signs_of((seed, place, i), rows + p.numel() // rows) for i in starts], 1).double()
        columns.append(torch.einsum("rk,sk->rsk", drawn[:rows], drawn[rows:]).flatten(0, 1)[:, :dimension])
    return torch.cat(columns)


# ------------------------------------------------------------------------------------------------ products


def test_products_in_pieces(net: tuple[nn.Module, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = net
    x = x[:10]
    expected = gram(model, x)
    monkeypatch.setattr(columns, "BUDGET", 0)
    monkeypatch.setattr(columns, "_COLUMN_BYTES", 7 * 8 * sum(p.numel() for p in model.parameters()))
    K = sketch.operator(model, x)
    assert sum(1 for _ in columns.batches(K.matmat.capture, K.matmat.samples)) > 1
    assert_close(K.dense(), expected)
    assert_close(K @ torch.ones(len(expected), dtype=torch.float64), expected.sum(1))


def test_products_for_some_parameters_of_a_data_set(net: tuple[nn.Module, Tensor]) -> None:
    model, x = net
    head = list(model.named_parameters())[-2:]
    J = oracle.jacobian(model, x, keep=lambda name, p: name in dict(head)).flatten(0, 1)
    K = sketch.operator(model, list(x), params=[name for name, _ in head])
    assert_close(K.dense(), J @ J.T)


def test_solves_with_the_kernel(net: tuple[nn.Module, Tensor]) -> None:
    model, x = net
    K = gram(model, x)
    b = torch.randn(len(K), dtype=torch.float64)
    found = sketch.operator(model, x).solve(b, damping=1.0)
    assert_close(found, torch.linalg.solve(K + torch.eye(len(K)), b), 1e-5)


def test_half_precision_models_multiply_in_float32() -> None:
    model, x = mlp().bfloat16(), torch.randn(5, 6, dtype=torch.bfloat16)
    K = sketch.operator(model, x)
    assert K.dtype == torch.float32
    assert relative_error(K.dense(), gram(mlp_like(model), x.double())) < 0.05
    assert (K @ torch.ones(15)).dtype == torch.float32


def mlp_like(model: nn.Module) -> nn.Module:
    same = mlp()
    same.load_state_dict(model.state_dict())
    return same


# ------------------------------------------------------------------------------------------------- Nyström


@pytest.mark.parametrize("reduce", ["full", "trace", "sum"])
def test_all_landmarks_give_the_kernel(net: tuple[nn.Module, Tensor], reduce: str) -> None:
    model, x = net
    features = sketch.nystrom(model, x, len(x), reduce=reduce)
    assert_close(outer(features), gram(model, x, reduce), 1e-8)
    assert features.error < 1e-8
    assert abs(features.trace_error) < 1e-8


def test_landmarks_that_span_give_the_kernel() -> None:
    """A linear model with four parameters for each output: four samples know everything."""
    model, x = nn.Linear(3, 2).double(), torch.randn(40, 3, dtype=torch.float64)
    features = sketch.nystrom(model, x, [3, 9, 20, 31, 33], reduce="full")
    assert features.matrix.shape == (80, 8)
    assert_close(outer(features), gram(model, x), 1e-8)
    assert features.error < 1e-8


@pytest.mark.parametrize("reduce", ["full", "trace", "sum"])
def test_nystrom_is_the_formula(net: tuple[nn.Module, Tensor], reduce: str) -> None:
    model, x = net
    K = gram(model, x, reduce)
    C = len(K) // len(x)
    marks = torch.tensor([5, 0, 17, 11])
    rows = (marks[:, None] * C + torch.arange(C)).flatten()
    expected = K[:, rows] @ torch.linalg.pinv(K[rows][:, rows], hermitian=True) @ K[rows]
    features = sketch.nystrom(model, x, marks, reduce=reduce, probes=len(x))
    assert_close(outer(features), expected, 1e-8)
    assert_close(features @ torch.ones(len(K), dtype=torch.float64), expected.sum(1), 1e-8)
    # With all other columns as probes the error is no estimate.
    assert features.error == pytest.approx(relative_error(expected, K), rel=1e-6)
    assert features.trace_error == pytest.approx(float(1 - expected.trace() / K.trace()), rel=1e-6)
    assert 0.001 < features.error <= features.trace_error * float(K.trace() / K.norm())


def test_nystrom_error_from_few_columns() -> None:
    """Unbiased in its square: right on average over seeds, and never far off."""
    model, x = mlp(), torch.randn(60, 6, dtype=torch.float64)
    K, ratios = gram(model, x, "trace"), []
    for seed in range(20):
        features = sketch.nystrom(model, x, 12, probes=8, seed=seed)
        ratios.append(features.error / relative_error(outer(features), K))
    assert all(0.5 < r < 2 for r in ratios)
    assert 0.85 < sum(ratios) / len(ratios) < 1.15


def test_more_landmarks_explain_more(net: tuple[nn.Module, Tensor]) -> None:
    model, x = net
    missing = [sketch.nystrom(model, x, n).trace_error for n in (2, 6, 12, 20)]
    assert missing == sorted(missing, reverse=True)
    assert missing[0] > 3 * missing[-1]


def test_cutoff_drops_directions(net: tuple[nn.Module, Tensor]) -> None:
    model, x = net
    values = torch.linalg.eigvalsh(gram(model, x, "trace")[:9, :9])
    features = sketch.nystrom(model, x, range(9), cutoff=float((values[4] + values[5]) / 2 / values[-1]))
    assert features.matrix.shape == (24, 4)


def test_features_of_other_inputs(net: tuple[nn.Module, Tensor]) -> None:
    model, x = net
    both = torch.cat([x[:10], torch.randn_like(x[:6])])
    whole = sketch.nystrom(model, both, range(10), reduce="full")
    part = sketch.nystrom(model, list(both[:10]), 10, reduce="full")
    C = len(whole.matrix) // 16
    assert_close(part(both[10:]) @ part.matrix.T, outer(whole)[10 * C :, : 10 * C], 1e-8)

    projected = sketch.project(model, both, 50)
    assert_close(sketch.project(model, both[:10], 50)(both), projected.matrix)


def test_features_in_float32() -> None:
    model, x = mlp(), torch.randn(24, 6, dtype=torch.float64)
    K = gram(model, x, "trace")
    features = sketch.nystrom(model.float(), x.float(), 24)
    assert features.matrix.dtype == torch.float32
    assert relative_error(outer(features), K) < 1e-5


def test_features_belong_to_one_point(net: tuple[nn.Module, Tensor]) -> None:
    model, x = net
    made = [sketch.nystrom(model, x, 4), sketch.project(model, x, 4)]
    operator = sketch.operator(model, x)
    with torch.no_grad():
        next(model.parameters()).add_(1)
    for features in made:
        with pytest.raises(RuntimeError, match="changed since"):
            features(x)
    with pytest.raises(RuntimeError, match="changed since"):
        operator @ torch.ones(operator.size, dtype=torch.float64)


# --------------------------------------------------------------------------------------------- projections


def test_projection_error_is_known_and_falls(net: tuple[nn.Module, Tensor]) -> None:
    model, x = net
    K = gram(model, x)
    errors = {}
    for dimension in (64, 1024):
        found = [sketch.project(model, x, dimension, seed=seed) for seed in range(12)]
        true = torch.tensor([relative_error(outer(f), K) for f in found])
        said = torch.tensor([f.error for f in found])
        assert ((said / true).log2().abs() < 1).all(), "within a factor of two, each time"
        errors[dimension] = float(true.square().mean().sqrt())
        assert float(said.mean()) == pytest.approx(errors[dimension], rel=0.25)
    assert errors[64] / errors[1024] == pytest.approx(4, rel=0.25)


def test_projections_are_unbiased(net: tuple[nn.Module, Tensor]) -> None:
    model, x = net
    x = x[:8]
    found = torch.stack([outer(sketch.project(model, x, 256, seed=seed)) for seed in range(40)])
    z = (found.mean(0) - gram(model, x)) / (found.std(0) / 40**0.5)
    assert z.abs().max() < 6
    assert float(z.square().mean()) == pytest.approx(1, rel=0.5)


def test_projections_do_not_depend_on_pieces(net: tuple[nn.Module, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = net
    whole = sketch.project(model, x, 100).matrix
    assert_close(sketch.project(model, x, 70).matrix * 70**0.5, whole[:, :70] * 100**0.5)
    monkeypatch.setattr(columns, "BUDGET", 0)
    assert_close(sketch.project(model, x, 100).matrix, whole)
    assert relative_error(sketch.project(model, x, 100, seed=1).matrix, whole) > 0.5


WIDE: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "grouped": (lambda: nn.Conv2d(8, 12, 3, groups=2), (8, 4, 4)),
    "transposed": (lambda: nn.ConvTranspose2d(16, 24, 2), (16, 2, 2)),
    "transposed and grouped": (lambda: nn.ConvTranspose2d(16, 24, 2, groups=2), (16, 2, 2)),
    "sequence": (lambda: nn.Linear(30, 20), (3, 30)),
}


@pytest.mark.parametrize("name", WIDE)
def test_projections_by_factors(name: str) -> None:
    """Layers with many weights and few locations are projected without forming J."""
    make, shape = WIDE[name]
    x = torch.randn(5, *shape, dtype=torch.float64)
    body = nn.Sequential(make(), nn.Tanh(), nn.Flatten()).double()
    model = nn.Sequential(body, nn.Linear(body(x).shape[1], 3).double())
    J = oracle.jacobian(model, x).flatten(0, 1)
    assert_close(sketch.project(model, x, 100).matrix, J @ signs(model, 100, seed=0) / 10)


def test_too_few_columns_admit_it() -> None:
    """Two columns cannot tell the size of K from their own spread."""
    model, x = mlp(1, 50), torch.randn(30, 6, dtype=torch.float64)
    assert sketch.project(model, x, 2, seed=1).error > 0.5


# ---------------------------------------------------------------------------------------------- eigenpairs


def test_top_eigenpairs_through_each(net: tuple[nn.Module, Tensor]) -> None:
    model, x = net
    expected = torch.linalg.eigvalsh(gram(model, x)).flip(0)[:5]
    exact = [sketch.operator(model, x), sketch.nystrom(model, x, len(x), reduce="full")]
    for K in exact:
        assert_close(spectrum.top(K, 5).values, expected, 1e-8)
    projected = sketch.project(model, x, 4096)
    lam, phi = spectrum.top(projected, 5)
    assert_close(outer(projected) @ phi, phi * lam, 1e-8)
    assert relative_error(lam, expected) < 0.1


def test_top_eigenpairs_of_many_samples() -> None:
    """By iterations, not by a whole decomposition."""
    model, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double(), torch.randn(1100, 3).double()
    J = oracle.jacobian(model, x).flatten(0, 1)
    expected = torch.linalg.eigvalsh(J.T @ J).flip(0)[:10]
    for K in (sketch.operator(model, x), sketch.nystrom(model, x, 40, reduce="full")):
        found = spectrum.top(K, 10)
        assert found.values.shape == (10,)
        assert_close(found.values, expected, 1e-8)


# -------------------------------------------------------------------------------------------------- errors


def test_bad_arguments_are_named() -> None:
    model, x = mlp(), torch.randn(8, 6, dtype=torch.float64)
    for landmarks in (0, 9):
        with pytest.raises(ValueError, match="between 1 and the 8 samples"):
            sketch.nystrom(model, x, landmarks)
    with pytest.raises(ValueError, match="different samples"):
        sketch.nystrom(model, x, [1, 1])
    with pytest.raises(ValueError, match=r"indices of the 8 samples, got 3 to 8"):
        sketch.nystrom(model, x, [3, 8])
    with pytest.raises(ValueError, match=r"'trace', 'sum' or 'full', got 'diag'"):
        sketch.nystrom(model, x, 3, reduce="diag")
    with pytest.raises(ValueError, match="probes"):
        sketch.nystrom(model, x, 3, probes=0)
    with pytest.raises(ValueError, match="at least 2"):
        sketch.project(model, x, 1)
    holed = x.clone()
    holed[2, 1] = float("nan")
    products = (
        lambda: sketch.operator(model, holed) @ torch.ones(24, dtype=torch.float64),
        lambda: sketch.nystrom(model, holed, 3),
        lambda: sketch.project(model, holed, 8),
    )
    for each in products:
        with pytest.raises(ValueError, match="NaN or infinity, first in sample 2"):
            each()


def test_landmarks_of_numpy_and_empty_parameters() -> None:
    x, model = torch.randn(6, 3), nn.Linear(3, 1)
    assert torch.equal(sketch.nystrom(model, x, np.int64(4)).matrix, sketch.nystrom(model, x, 4).matrix)
    with pytest.raises(ValueError, match="landmarks must be a number or a list of different samples"):
        sketch.nystrom(model, x, torch.tensor([0.7, 3.9]))
    model.none = nn.Parameter(torch.empty(0, 4))
    with pytest.warns(UserWarning, match="do not influence"):
        assert sketch.project(model, x, 8).matrix.shape == (6, 8)
    assert repr(sketch.project(model, x, 8, params="weight")).startswith("Features(6 × 8, error=")


def test_features_are_the_same_under_autocast() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(5, 40), nn.Tanh(), nn.Linear(40, 1)), torch.randn(30, 5)
    features = sketch.nystrom(model, x, 10)
    with torch.autocast("cpu", torch.bfloat16):
        again = sketch.nystrom(model, x, 10)
        extended = features(x)
    assert again.error == features.error
    assert again.matrix.equal(features.matrix)
    torch.testing.assert_close(extended, features.matrix)


def test_nystrom_features_are_products_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the user chose for products; on a GPU TF32 would show in the features and their errors."""
    found: list[str] = []

    def watched(*args: Tensor) -> Tensor:
        found.append(torch.backends.cuda.matmul.fp32_precision)
        return product(*args)

    monkeypatch.setattr(sketch, "product", watched)
    model, x = mlp().float(), torch.randn(9, 6)
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        features = sketch.nystrom(model, x, 4)
        made = len(found)
        features(x)
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
    assert len(found) > made > 0
    assert set(found) == {"ieee"}


def test_parameters_may_come_from_a_generator() -> None:
    model, x = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1)), torch.randn(6, 5)
    chosen = sketch.nystrom(model, x, 3, params=(name for name in ["2.*"]))
    assert chosen.matrix.equal(sketch.nystrom(model, x, 3, params="2.*").matrix)
