"""Conjugate gradients, block Lanczos iterations, and what they say when they fail."""

from __future__ import annotations

import dataclasses
import os
import re
import warnings
from typing import Any

import pytest
import torch
from contracts.operators import close, draw, eye, positive, spd
from torch import Tensor

from torchtangent.notice import TangentWarning
from torchtangent.operators import (
    ConvergenceWarning,
    DenseOperator,
    DiagonalOperator,
    ImplicitOperator,
    LowRankOperator,
    Place,
    krylov,
)
from torchtangent.operators.block import BlockOperator
from torchtangent.operators.lanczos import leading_pairs


def implicit(M: Tensor, **options: object) -> ImplicitOperator:
    return ImplicitOperator(lambda V: M @ V, len(M), M.dtype, M.device, **options)


@pytest.mark.skipif("TORCHTANGENT_SHAPES" in os.environ, reason="the shape checks would speak first")
def test_a_device_may_be_a_name() -> None:
    M = ImplicitOperator(lambda V: 2 * V, 3, torch.float64, "cpu")
    assert M.device == torch.device("cpu")
    assert torch.equal(M @ torch.ones(3, dtype=torch.float64), torch.full((3,), 2.0, dtype=torch.float64))
    assert dataclasses.replace(M, rtol=1e-3).device == torch.device("cpu")


def test_report_of_a_solve() -> None:
    M, b = spd(30), draw(30, 2)
    x, report = implicit(M, rtol=1e-8).cg(b, damping=0.1)
    residuals = torch.linalg.vector_norm(b - (M + 0.1 * eye(30)) @ x, dim=0) / torch.linalg.vector_norm(b, dim=0)
    assert report.converged
    assert 1 < report.iterations <= 30
    close(report.residuals, residuals, torch.float64, factor=1e6)
    assert float(residuals.max()) <= 2e-8


def test_a_solve_that_stops_short_warns() -> None:
    M, b = torch.diag(torch.logspace(0, 8, 50, dtype=torch.float64)), draw(50)
    operator = implicit(M, max_iter=5)
    with pytest.warns(ConvergenceWarning, match="5 iterations.*damping"):
        operator.solve(b)
    assert not operator.cg(b)[1].converged


def test_an_indefinite_matrix_is_not_reported_as_solved() -> None:
    M = torch.diag(torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64))
    with pytest.warns(ConvergenceWarning):
        implicit(M).solve(torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("least", [0.0, -1e-9, -1e-5])
def test_what_does_not_converge_is_the_best_iterate_of_each_column(dtype: torch.dtype, least: float) -> None:
    """The iterates of the first column grow to a norm of 1e8 … 1e17: its equation has no solution. The second has."""
    Q = torch.linalg.qr(draw(200, 200)).Q
    values = torch.cat([torch.logspace(2, -4, 50, dtype=torch.float64), torch.full((150,), least)])
    M = (Q * values @ Q.T).to(dtype)
    b = torch.stack([draw(200).to(dtype), M @ draw(200).to(dtype)], 1)
    x, report = implicit(M).cg(b)
    residuals = torch.linalg.vector_norm(b - M @ x, dim=0) / torch.linalg.vector_norm(b, dim=0)
    torch.testing.assert_close(report.residuals, residuals, rtol=1e-2, atol=1e-6)
    assert not report.converged
    assert residuals[0] < 10
    assert residuals[1] < 1e-5
    assert 0 < torch.linalg.vector_norm(x, dim=0).max() < 1e5
    for iterations in (1, 2, 5, 20):  # none of the first ones is much better, not counting zero
        steps = implicit(M, max_iter=iterations).cg(b)[1].residuals
        assert (residuals <= (10.001 * steps).clamp(min=1e-5)).all()
    with pytest.warns(ConvergenceWarning, match=re.escape(f"relative residual of {float(residuals.max()):.2e} ")):
        implicit(M).solve(b)


def test_iterations_that_are_cut_off_give_the_last_iterate() -> None:
    """Of a positive definite matrix it is the best by the norm of A, also where its residual is a little larger."""
    A, b = torch.diag(torch.logspace(0, 4, 100, dtype=torch.float64)), draw(100)

    def objective(iterations: int) -> float:
        x = implicit(A, max_iter=iterations).cg(b)[0]
        return float(x @ A @ x / 2 - b @ x)

    assert sorted((objective(n) for n in range(1, 8)), reverse=True) == [objective(n) for n in range(1, 8)]


def test_a_preconditioner_saves_iterations() -> None:
    values = torch.logspace(0, 6, 60, dtype=torch.float64)
    M, b = torch.diag(values) + 0.01 * spd(60), draw(60)
    plain = implicit(M, rtol=1e-10)
    preconditioned = dataclasses.replace(plain, preconditioner=DiagonalOperator(values).inverse())
    x, report = preconditioned.cg(b)
    close(x, torch.linalg.solve(M, b), torch.float64, factor=100)
    assert report.iterations < plain.cg(b)[1].iterations / 3


def test_zero_right_hand_side() -> None:
    x, report = implicit(spd(5)).cg(torch.zeros(5, dtype=torch.float64))
    assert report.converged
    assert torch.equal(x, torch.zeros(5, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_leading_eigenpairs_without_the_matrix(dtype: torch.dtype) -> None:
    """Eigenvalues with multiplicities and clusters, and negative ones larger in size."""
    values = torch.cat([torch.tensor([5.0, 4.0, 4.0, 4.0, 3.99, 3.0, -9.0]), torch.linspace(-1, 1, 293)]).double()
    Q = torch.linalg.qr(draw(300, 300)).Q
    M = (Q * values @ Q.T).to(dtype)
    found, vectors = implicit(M).eigh(k=6)
    close(found, values[:6], dtype)
    U = vectors.dense().double()
    close(vectors.dense().T @ vectors.dense(), eye(6), dtype)
    assert torch.linalg.vector_norm(M.double() @ U - U * found.double(), dim=0).max() <= 1e-4
    assert torch.equal(implicit(M).eigh(k=6).values, found), "the same seed, the same answer"


@pytest.mark.parametrize("k", [2, 5, 30])
def test_small_eigenvalues_beside_a_large_one(k: int) -> None:
    """Residuals are held against each pair's own eigenvalue: against the largest, any would do."""
    values = torch.cat([torch.tensor([100.0]), 1 / torch.arange(1.0, 300)]).double()
    Q = torch.linalg.qr(draw(300, 300)).Q
    for dtype in (torch.float32, torch.float64):
        found = implicit((Q * values @ Q.T).to(dtype)).eigh(k=k).values
        assert ((found.double() - values[:k]).abs() <= 1e-4 * values[:k]).all()


def test_what_rounding_leaves_of_small_eigenvalues_is_said() -> None:
    values = torch.cat([torch.tensor([1e4]), torch.linspace(1, 0.01, 299)]).double()
    Q = torch.linalg.qr(draw(300, 300)).Q
    M = Q * values @ Q.T
    with pytest.warns(ConvergenceWarning, match=r"4 of the 5 .* the largest, 1.0e\+04, leaves no more of float32"):
        implicit(M.float()).eigh(k=5)
    assert ((implicit(M).eigh(k=5).values - values[:5]).abs() <= 1e-10 * values[:5]).all()


def test_clustered_eigenvalues() -> None:
    values = torch.cat([1 + torch.linspace(1e-3, 0, 60), torch.linspace(0.5, 0, 140)]).double()
    Q = torch.linalg.qr(draw(200, 200)).Q
    found = implicit(Q * values @ Q.T).eigh(k=5).values
    assert ((found - values[:5]).abs() <= 1e-10).all()


def test_eigenvalues_repeated_more_often_than_a_block_is_wide() -> None:
    values = torch.cat([torch.full((12,), 4.0), torch.linspace(3.9, -5, 188)]).double()
    Q = torch.linalg.qr(draw(200, 200)).Q
    close(implicit(Q * values @ Q.T).eigh(k=14).values, values[:14], torch.float64)


def test_leading_eigenpairs_take_few_products() -> None:
    columns: list[int] = []
    values = 1 / torch.arange(1, 3001, dtype=torch.float64)

    def product(V: Tensor) -> Tensor:
        columns.append(V.shape[1])
        return values[:, None] * V

    operator = ImplicitOperator(product, 3000, torch.float64, torch.device("cpu"))
    close(operator.eigh(k=1).values, values[:1], torch.float64)
    assert sum(columns) <= 60


def test_nothing_is_made_up_where_there_are_no_numbers() -> None:
    M, b = spd(5), draw(5, 2)
    b[1, 1] = torch.nan
    with pytest.warns(ConvergenceWarning, match="NaN or infinity"):
        x = implicit(M).solve(b)
    close(x[:, 0], torch.linalg.solve(M, b[:, 0]), torch.float64, factor=1e5)
    assert bool(x[:, 1].isnan().all())
    with pytest.warns(ConvergenceWarning, match="NaN or infinity"):
        x = implicit(M * torch.nan).solve(b[:, 0])
    assert bool(x.isnan().all())


def test_leading_eigenpairs_of_what_has_none() -> None:
    skew = torch.tril(torch.ones(50, 50, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"size=50.* is not symmetric"):
        implicit(skew).eigh(k=2)
    with pytest.raises(ValueError, match="NaN or infinity"):
        implicit(skew * float("nan")).eigh(k=2)


def hasty(*args: Any, **options: Any) -> Any:
    return leading_pairs(*args, **options | {"max_restarts": 2})


def test_leading_eigenpairs_that_do_not_converge_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(krylov, "leading_pairs", hasty)
    values = torch.linspace(1, 0, 1000, dtype=torch.float64)
    operator = ImplicitOperator(lambda V: values[:, None] * V, 1000, torch.float64, torch.device("cpu"))
    with pytest.warns(ConvergenceWarning, match=r"of the 3 leading eigenpairs.*did not converge.*spectrum.top"):
        operator.eigh(k=3)


def test_leading_eigenpairs_of_a_composition_with_products_only() -> None:
    M = spd(60)
    blocks = BlockOperator([(Place.flat(2, 60), implicit(M))], size=70)
    expected = torch.linalg.eigvalsh(M).flip(0)[:2]
    close(blocks.eigh(k=2).values, expected, torch.float64)
    close((2 * implicit(M)).eigh(k=2).values, 2 * expected, torch.float64)


def test_low_rank_matrix_has_fewer_directions_than_asked() -> None:
    """The Krylov space is exhausted at once; what is left is orthonormal and has eigenvalue zero."""
    rows = draw(2, 80)
    values, vectors = implicit(rows.T @ rows).eigh(k=4)
    assert values[2:].abs().max() < 1e-10
    close(vectors.dense().T @ vectors.dense(), eye(4), torch.float64)


def test_large_implicit_operators_refuse_what_takes_too_many_products() -> None:
    operator = implicit(spd(30), exact_limit=20)
    with pytest.raises(ValueError, match=r"30 products.*estimate_trace"):
        operator.trace()
    with pytest.raises(ValueError, match="estimate_diag"):
        operator.diag()
    with pytest.raises(ValueError, match="exact_limit"):
        operator.frobenius()
    with pytest.raises(ValueError, match="k largest"):
        operator.eigh()


def test_function_of_the_wrong_shape_is_named() -> None:
    operator = ImplicitOperator(lambda V: V[:, 0], 3, torch.float32, torch.device("cpu"))
    with pytest.raises(ValueError, match=r"turned \(3, 1\) into \(3,\)"):
        operator @ torch.ones(3)


def test_large_sums_are_solved_by_conjugate_gradients() -> None:
    d, rows, b = positive(5000), draw(3, 5000), draw(5000)
    total = DiagonalOperator(d) + LowRankOperator(rows)
    x = total.solve(b, damping=0.1)
    close(total @ x + 0.1 * x, b, torch.float64)
    with pytest.raises(ValueError, match="dense matrix"):
        total.frobenius()
    leading = total.eigh(k=2)
    U = leading.vectors.dense()
    close(total @ U, U * leading.values, torch.float64)


def test_standard_errors_shrink_and_are_honest() -> None:
    M = DenseOperator(spd(40))
    few, many = M.estimate_trace(probes=50, seed=0), M.estimate_trace(probes=5000, seed=0)
    assert many.standard_error < few.standard_error / 5
    assert abs(many.value - M.trace()) < 4 * many.standard_error


@pytest.mark.parametrize("size", [1e-23, 1e-30, 1e25])
def test_right_hand_sides_of_any_size(size: float) -> None:
    M, B = spd(20), draw(20, 2) * torch.tensor([size, 1.0])
    X, report = implicit(M.float()).cg(B.float())
    assert report.converged
    exact = torch.linalg.solve(M, B)
    for found, wanted in zip(X.T, exact.T, strict=True):
        close(found, wanted, torch.float32)


def test_a_solve_that_falls_short_says_why() -> None:
    b = draw(50)
    hard = torch.diag(torch.logspace(0, 8, 50, dtype=torch.float64))
    with pytest.warns(
        ConvergenceWarning, match=r"the limit: raise damping, or give .*dataclasses\.replace\(F, max_iter"
    ):
        implicit(hard, max_iter=5).solve(b)
    with pytest.warns(ConvergenceWarning, match="not positive definite: raise damping"):
        implicit(-hard).solve(b)
    with pytest.warns(ConvergenceWarning, match=r"float32 cannot do better.*model\.double"):
        implicit(spd(50).float(), rtol=1e-12).solve(b.float())


def test_a_sum_that_falls_short_says_what_can_be_done() -> None:
    values = torch.logspace(0, 12, 5000, dtype=torch.float64)
    total = DiagonalOperator(values) + LowRankOperator(draw(3, 5000))
    with pytest.warns(ConvergenceWarning, match=r"the limit: raise damping\.$"):
        total.solve(draw(5000))


def test_leading_eigenpairs_are_constants() -> None:
    M = spd(60).requires_grad_()
    values, vectors = implicit(M).eigh(k=2)
    assert not values.requires_grad
    assert not vectors.dense().requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e-33, 1e-23, 1.0, 1e20, 1e35])
def test_leading_eigenpairs_of_matrices_of_any_size(size: float, dtype: torch.dtype) -> None:
    """Squares of such numbers are no float32."""
    factor = draw(60, 60)
    M = (factor @ factor.T / 60 * size).to(dtype)
    wanted = torch.linalg.eigvalsh(M.double() / size).flip(0)[:3] * size
    other = DiagonalOperator(torch.zeros(60, dtype=dtype))
    for operator in (implicit(M), DenseOperator(M) + other):
        values, vectors = operator.eigh(3)
        close(values, wanted, dtype)
        Q = vectors.dense().double()
        residuals = torch.linalg.vector_norm(M.double() @ Q - Q * wanted, dim=0)
        assert float(residuals.max()) <= 1e-3 * float(wanted[0])


def test_leading_eigenpairs_of_zero() -> None:
    assert torch.equal(implicit(torch.zeros(50, 50)).eigh(2).values, torch.zeros(2))


@pytest.mark.parametrize("size", [1e-23, 1e20])
def test_what_does_not_converge_is_said_at_any_size(size: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(krylov, "leading_pairs", hasty)
    values = (torch.linspace(1, 0, 1000, dtype=torch.float64) * size).float()
    operator = ImplicitOperator(lambda V: values[:, None] * V, 1000, torch.float32, torch.device("cpu"))
    with pytest.warns(ConvergenceWarning, match="3 of the 3 leading eigenpairs"):
        operator.eigh(3)


def test_what_does_not_converge_is_silenced_with_the_librarys_other_warnings() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TangentWarning)
        ImplicitOperator(lambda V: spd(30) @ V, 30, torch.float64, torch.device("cpu"), max_iter=1).solve(draw(30))
