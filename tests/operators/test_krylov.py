"""Conjugate gradients, block Lanczos iterations, and what they say when they fail."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from contracts.operators import close, draw, eye, positive, spd
from torch import Tensor

from torchtangent.operators import (
    ConvergenceWarning,
    DenseOperator,
    DiagonalOperator,
    ImplicitOperator,
    LowRankOperator,
    Place,
)
from torchtangent.operators.block import BlockOperator


def implicit(M: Tensor, **options: object) -> ImplicitOperator:
    return ImplicitOperator(lambda V: M @ V, len(M), M.dtype, M.device, **options)


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
