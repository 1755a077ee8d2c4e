"""J M Jᵀ sample by sample, beside the oracle's J and the matrix itself."""

from __future__ import annotations

import os
from typing import Any

import oracle
import pytest
import torch
from cases import ZOO, Case, every_case
from oracle import assert_close
from torch import Tensor, nn

import torchtangent as tt
from torchtangent.jacobians import covariance
from torchtangent.jacobians.factors import LayerJacobian, Lookup
from torchtangent.operators import (
    BlockOperator,
    DenseOperator,
    DiagonalOperator,
    EigenOperator,
    Identity,
    KroneckerOperator,
    Place,
    Segment,
)

REPRESENTATIONS = {
    "KFAC": tt.KFAC,
    "KFAC-reduce": tt.KFAC(sharing="reduce", rest=tt.BlockDiagonal),
    "EKFAC": tt.EKFAC,
    "Diagonal": tt.Diagonal,
    "BlockDiagonal": tt.BlockDiagonal,
    "QuasiDiagonal": tt.QuasiDiagonal,
    "LowRank": tt.LowRank,
    "Dense": tt.Dense,
}


def expected(J: Tensor, M: Tensor) -> Tensor:
    """Σ_pq J[n,a,p] M[p,q] J[n,b,q], with the axes of outputs in place of a and b."""
    rows = J.flatten(1, -2)
    return (rows @ M @ rows.mT).view(*J.shape[:-1], *J.shape[1:-1])


@every_case
@pytest.mark.usefixtures("quiet")
def test_every_model(case: Case) -> None:
    """With few samples for the matrix, bases are thin, and the inverse has what they leave."""
    model, x, output = case.build()
    J = oracle.jacobian_of(case)
    jacobian = tt.jacobian(model, x, output=output)
    few = oracle.take(x, slice(0, 2))
    errors = {}
    for name, representation in REPRESENTATIONS.items():
        F = tt.fisher(model, (few, None), representation, likelihood="gaussian", output=output)
        for what, M in {"F": F, "inverse": F.inverse(0.3), "both": (2 * F.damped(0.1)).inverse(0.2)}.items():
            errors[name, what] = oracle.relative_error(jacobian.covariance(M), expected(J, M.dense()))
    assert all(error <= 1e-10 for error in errors.values()), errors


@pytest.mark.parametrize("name", ["KFAC", "EKFAC", "Diagonal"])
def test_neither_the_jacobian_nor_products_are_formed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, _ = ZOO["lenet"].build()
    M = tt.fisher(model, (x, None), REPRESENTATIONS[name]).inverse(0.1)
    J = tt.jacobian(model, x)
    dense = expected(J.dense(), M.dense())
    small = min(p.numel() for p in model.parameters() if p.dim() > 1)
    rows = covariance._by_rows

    def only_small(layers: list[LayerJacobian], *functions: Any) -> Tensor:
        assert max(layer.shape.numel() for layer in layers) < small
        return rows(layers, *functions)

    monkeypatch.setattr(covariance, "_by_rows", only_small)
    assert_close(J.covariance(M), dense)


def test_pieces_of_samples_and_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, _ = ZOO["lenet"].build()
    J = tt.jacobian(model, x)
    for representation in (tt.EKFAC, tt.LowRank):
        M = tt.fisher(model, (x[:2], None), representation).inverse(0.1)
        whole = J.covariance(M)
        with monkeypatch.context() as patch:
            patch.setattr(covariance, "_FORMED", {"cpu": 1})
            patch.setattr(tt.jacobians.capture.Capture, "samples_within", lambda *_: 2)
            assert_close(J.covariance(M), whole)


def test_sequences_and_gradients() -> None:
    """Outputs (N, T, C) give (N, T, C, T, C); the gradients of losses one number for each sample."""
    model, x, output = ZOO["sequence-outputs"].build()
    J = tt.jacobian(model, x, output=output)
    M = tt.fisher(model, (x, None), tt.KFAC, output=output).inverse(1.0)
    N, T, C = J.shape[:3]
    assert J.covariance(M).shape == (N, T, C, T, C)
    assert_close(J.covariance(M), expected(J.dense(), M.dense()))

    model, x, _ = ZOO["mlp"].build()
    y = torch.zeros(len(x), dtype=torch.long)
    G = tt.gradients(model, (x, y), lambda f, y: nn.functional.cross_entropy(f, y, reduction="none"))
    M = tt.fisher(model, (x, y), tt.EKFAC, kind="empirical").inverse(0.1)
    found = G.covariance(M)
    assert found.shape == (len(x),)
    assert_close(found, torch.einsum("np,pq,nq->n", G.dense(), M.dense(), G.dense()))


def test_matrices_of_ones_own() -> None:
    """Blocks that are not layers, a basis of all parameters, parts that no block covers."""
    model, x, _ = ZOO["mlp"].build()
    J = tt.jacobian(model, x)
    P = J.space.size
    torch.manual_seed(0)
    Q = torch.linalg.qr(torch.randn(P, P, dtype=torch.float64)).Q
    values = torch.rand(1, P, dtype=torch.float64)
    half = P // 2 + 1  # in the middle of a weight
    first = EigenOperator(Identity(1), torch.linalg.qr(Q[:half, :9]).Q, values[:, :9])
    matrices = [
        EigenOperator(Identity(1), Q, values),
        EigenOperator(Identity(1), Q[:, :7].contiguous(), values[:, :7]).inverse(0.5),
        BlockOperator(
            [(Place.flat(0, half), first), (Place.flat(half, P - half), DiagonalOperator(values[0, half:]))], P
        ),
        KroneckerOperator(DenseOperator(Q[:1, :1] + 2), DenseOperator(Q + Q.T)),
        BlockOperator([(Place.flat(half, P - half), DiagonalOperator(values[0, half:]))], P),
        BlockOperator([(Place.flat(half, P - half), DiagonalOperator(values[0, half:]))], P).inverse(0.7),
        DenseOperator(Q + Q.T) + DiagonalOperator(values[0]),
    ]
    for M in matrices:
        assert_close(J.covariance(M), expected(J.dense(), M.dense()))


def test_blocks_in_a_layers_place_with_another_form() -> None:
    """A block of a whole weight that is not a product of rows and columns."""
    torch.manual_seed(0)
    model, x = nn.Linear(3, 4, bias=False).double(), torch.randn(5, 3).double()
    Q, values = torch.linalg.qr(torch.randn(12, 5).double()).Q, torch.rand(1, 5).double()
    J = tt.jacobian(model, x)
    place = Place((Segment(0, (4, 3), (0, 1)),))
    whole = BlockOperator([(place, EigenOperator(Identity(1), Q, values))], 12)
    two, six = (DenseOperator(A @ A.T) for A in (torch.randn(2, 2).double(), torch.randn(6, 6).double()))
    for M in (whole, whole.inverse(0.1), KroneckerOperator(two, six), KroneckerOperator(two, six).inverse(0.2)):
        assert_close(J.covariance(M), expected(J.dense(), M.dense()))


@pytest.mark.parametrize("representation", [tt.KFAC, tt.EKFAC, tt.Diagonal])
def test_tables_read_only_their_rows(representation: Any) -> None:
    model, x, output = ZOO["embedding"].build()
    table = next(p for p in model.parameters())
    J = tt.jacobian(model, x, output=output)
    M = tt.fisher(model, (oracle.take(x, slice(0, 1)), None), representation, output=output, likelihood="gaussian")
    dense = J.dense()
    for matrix in (M, M.inverse(0.1)):
        wanted = expected(dense, matrix.dense())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Lookup, "dense", lambda layer: pytest.fail(f"formed {tuple(table.shape)}"))
            assert_close(J.covariance(matrix), wanted)


def test_linear_regression() -> None:
    """The variances of Bayesian linear regression, σ² = xᵀ(XᵀX + δ)⁻¹x, from its formula."""
    torch.manual_seed(0)
    X, new = torch.randn(20, 4, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)
    model = nn.Linear(4, 1, bias=False).double()
    posterior = (20 * tt.fisher(model, (X, None), tt.KFAC, likelihood="gaussian")).inverse(0.5)
    truth = (new @ torch.linalg.inv(X.T @ X + 0.5 * torch.eye(4, dtype=torch.float64)) * new).sum(1)
    assert_close(tt.jacobian(model, new).covariance(posterior).flatten(), truth)


def test_float32_does_not_cancel() -> None:
    """Far from the data the prior is left, near it almost nothing: 1/δ − (1/δ − 1/(λ + δ)) in float32."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 20), nn.Tanh(), nn.Linear(20, 2))
    x = torch.randn(8, 30)
    for representation in (tt.KFAC, tt.EKFAC, tt.LowRank):
        found = tt.jacobian(model, x).covariance((1e4 * tt.fisher(model, (x, None), representation)).inverse(1e-2))
        double = model.double()
        F = tt.fisher(double, (x.double(), None), representation)
        M = (1e4 * F).inverse(1e-2)
        assert oracle.relative_error(found, tt.jacobian(double, x.double()).covariance(M)) < 1e-3
        model.float()


def test_long_sums_in_float32() -> None:
    """Over two million entries of a weight, with few outputs: one after the other they lose two digits."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv1d(512, 512, 9, bias=False), nn.Flatten(), nn.Linear(1024, 2, bias=False))
    x = torch.rand(2, 512, 10)
    scale = torch.rand(sum(p.numel() for p in net.parameters()))
    found = tt.jacobian(net, x).covariance(DiagonalOperator(scale))
    J = tt.jacobian(net.double(), x.double())
    assert oracle.relative_error(found, J.covariance(DiagonalOperator(scale.double()))) < 1e-6


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda F: DiagonalOperator(torch.ones(3, dtype=torch.float64)), "is on 3 parameters"),
        (lambda F: F.to(torch.float32), "The matrix is torch.float32"),
    ],
)
def test_errors(make: Any, message: str) -> None:
    model, x, _ = ZOO["mlp"].build()
    F = tt.fisher(model, (x, None), tt.KFAC)
    with pytest.raises(ValueError, match=message):
        tt.jacobian(model, x).covariance(make(F))


@pytest.mark.skipif("TORCHTANGENT_SHAPES" in os.environ, reason="the shape checks would speak first")
def test_a_matrix_is_no_operator() -> None:
    model, x, _ = ZOO["mlp"].build()
    with pytest.raises(TypeError, match=r"DenseOperator\(matrix\)"):
        tt.jacobian(model, x).covariance(torch.eye(3))
