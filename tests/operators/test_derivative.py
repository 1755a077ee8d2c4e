"""Products with operators that autograd cannot look into have derivatives in the vector all the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from oracle import assert_close
from torch import Tensor, nn

import torchtangent as tt
from torchtangent.operators import DenseOperator, DiagonalOperator, LowRankOperator

torch.manual_seed(0)
NET = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
X, Y = torch.randn(6, 3, dtype=torch.float64), torch.tensor([0, 1, 1, 0, 1, 0])
FISHERS = [tt.Dense, tt.Diagonal, tt.BlockDiagonal, tt.KFAC, tt.EKFAC, tt.LowRank, tt.Implicit]
OPERATORS: dict[str, Any] = {
    **{r.__name__: lambda r=r: tt.fisher(NET, (X, Y), r) for r in FISHERS},
    "hessian": lambda: tt.hessian(NET, (X, Y), nn.functional.cross_entropy),
    "sum": lambda: tt.fisher(NET, (X, Y), tt.Implicit) + 2 * tt.fisher(NET, (X, Y), tt.Diagonal),
    "kernel": lambda: tt.sketch.operator(NET, X),
    "inverse": lambda: tt.fisher(NET, (X, Y), tt.Implicit).inverse(0.5),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_quad_product_and_solve(name: str) -> None:
    M = OPERATORS[name]()
    dense = M.dense()
    v = torch.randn(M.size, dtype=torch.float64, requires_grad=True)
    w = torch.randn(M.size, dtype=torch.float64)
    (g,) = torch.autograd.grad(M.quad(v), v)
    near = {"rtol": 1e-5, "atol": 1e-5} if name == "inverse" else {"rtol": 1e-9, "atol": 1e-12}  # by iterations
    torch.testing.assert_close(g, 2 * dense @ v.detach(), **near)
    (g,) = torch.autograd.grad(w @ (M @ v), v)
    torch.testing.assert_close(g, dense @ w, **near)
    if name != "hessian":  # which may be indefinite
        (g,) = torch.autograd.grad(w @ M.solve(v, damping=0.5), v)
        exact = torch.linalg.solve(dense + 0.5 * torch.eye(M.size, dtype=torch.float64), w)
        torch.testing.assert_close(g, exact, rtol=1e-5, atol=1e-6)


def test_second_derivatives() -> None:
    F = tt.fisher(NET, (X, Y), tt.Implicit)
    v = torch.randn(F.size, dtype=torch.float64, requires_grad=True)
    H = torch.autograd.functional.hessian(lambda v: F.quad(v), v)
    torch.testing.assert_close(H, 2 * F.dense(), rtol=1e-9, atol=1e-12)


def test_a_penalty_on_parameters() -> None:
    """Elastic weight consolidation: the derivative of ½ (θ − θ₀)ᵀ F (θ − θ₀), of a dict."""
    F = tt.fisher(NET, (X, Y), tt.Implicit)
    change = {name: torch.randn_like(p).requires_grad_() for name, p in NET.named_parameters()}
    grads = torch.autograd.grad(0.5 * F.quad(change), list(change.values()))
    flat = torch.cat([c.detach().flatten() for c in change.values()])
    torch.testing.assert_close(torch.cat([g.flatten() for g in grads]), F.dense() @ flat, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("columns", [None, 3])
def test_jacobian_and_its_transpose(columns: int | None) -> None:
    J = tt.jacobian(NET, X)
    dense = J.dense().flatten(0, 1)
    more = () if columns is None else (columns,)
    v = torch.randn(dense.shape[1], *more, dtype=torch.float64, requires_grad=True)
    u = torch.randn(6, 2, *more, dtype=torch.float64, requires_grad=True)
    target = torch.randn(6, 2, *more, dtype=torch.float64)
    (g,) = torch.autograd.grad(((J @ v) * target).sum(), v)
    torch.testing.assert_close(g, dense.T @ target.flatten(0, 1), rtol=1e-9, atol=1e-12)
    weights = torch.randn_like(v)
    (g,) = torch.autograd.grad(((J.T @ u) * weights).sum(), u)
    torch.testing.assert_close(g.flatten(0, 1), dense @ weights, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("damping", "message"),
    [
        (torch.ones(3), r"damping is one number, got \(3,\)\. .*DiagonalOperator"),
        (torch.tensor(torch.inf), "damping must be a finite number >= 0 in float64, got inf"),
        (torch.tensor(-1.0), "damping must be a finite number >= 0 in float64, got -1"),
    ],
)
def test_dampings_that_are_no_numbers(damping: Tensor, message: str) -> None:
    F = tt.fisher(NET, (X, Y), tt.KFAC)
    for use in (F.solve, F.logdet, F.inverse):
        arguments = (torch.ones(F.size, dtype=torch.float64),) if use == F.solve else ()
        with pytest.raises(ValueError, match=message):
            use(*arguments, damping)


def test_solves_are_not_differentiable_in_the_damping() -> None:
    F, damping = tt.fisher(NET, (X, Y), tt.KFAC), torch.tensor(1.0, requires_grad=True)
    with pytest.raises(ValueError, match="Only logdet is differentiable with respect to the damping"):
        F.solve(torch.ones(F.size, dtype=torch.float64), damping)


@pytest.mark.parametrize("kind", [tt.Dense, tt.Diagonal, tt.BlockDiagonal, tt.KFAC, tt.EKFAC, tt.LowRank, tt.Implicit])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_log_determinants_are_differentiable_in_the_damping(kind: Any, shape: tuple[int, ...]) -> None:
    F, damping = tt.fisher(NET, (X, Y), kind), torch.full(shape, 0.3, dtype=torch.float64, requires_grad=True)
    values = torch.linalg.eigvalsh(F.dense())
    found = 2 * F.logdet(damping)
    torch.testing.assert_close(found, 2 * (values + 0.3).log().sum())
    (slope,) = torch.autograd.grad(found.sum(), damping, create_graph=True)
    torch.testing.assert_close(slope.detach(), 2 * (1 / (values + 0.3)).sum().expand(shape))
    with pytest.raises(RuntimeError, match=r"once_differentiable|does not require grad"):
        torch.autograd.grad(slope.sum(), damping)


def test_dampings_beyond_the_dtype() -> None:
    F = tt.fisher(NET, (X, Y), tt.LowRank).to(torch.float32)
    with pytest.raises(ValueError, match=r"damping must be a finite number >= 0 in float32, got 1e\+39"):
        F.solve(torch.ones(F.size), 1e39)


def test_log_determinants_by_the_matrix_and_the_damping_together() -> None:
    """As kernel and noise of a Gaussian process are learned."""
    A = torch.randn(4, 4, dtype=torch.float64)
    A = (A @ A.T + torch.eye(4)).requires_grad_()
    s = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    DenseOperator(A).logdet(s).backward()
    inverse = torch.linalg.inv(A.detach() + 0.3 * torch.eye(4, dtype=torch.float64))
    assert A.grad is not None
    assert s.grad is not None
    assert_close((A.grad + A.grad.T) / 2, inverse)
    assert_close(s.grad, inverse.trace())


@pytest.mark.parametrize("quiet", [torch.no_grad, torch.inference_mode])
def test_what_was_computed_without_gradients_is_not_kept_for_later(quiet: Any) -> None:
    rows, v = torch.randn(2, 4, dtype=torch.float64, requires_grad=True), torch.ones(4, dtype=torch.float64)
    M = LowRankOperator(rows)
    with quiet():
        M.solve(v, 0.1)
        M.inverse(0.1).diag()
    for damping in (0.1, 0.2):  # one after the other
        (found,) = torch.autograd.grad(v @ M.solve(v, damping) + M.logdet(damping), rows)
        A = rows.T @ rows + damping * torch.eye(4, dtype=torch.float64)
        (wanted,) = torch.autograd.grad(v @ torch.linalg.solve(A, v) + torch.logdet(A), rows)
        assert_close(found, wanted)
    fixed, u = DenseOperator(torch.eye(4)).inverse(0.1), torch.ones(4, requires_grad=True)
    with quiet():
        fixed @ u.detach()
    (fixed @ u).sum().backward()


def test_eigenvalues_that_repeat_have_no_derivatives_by_eigenvectors() -> None:
    """Those of torch are wrong there, or NaN."""
    rows = torch.eye(6, dtype=torch.float64)[:3].clone().requires_grad_()
    found = LowRankOperator(rows).solve(torch.randn(6, dtype=torch.float64), 0.5)
    with pytest.raises(RuntimeError, match="Some eigenvalues of a matrix are equal"):
        found.sum().backward()


def test_eigenvalues_of_matrices_of_low_rank_have_derivatives() -> None:
    A = torch.randn(10, 3, dtype=torch.float64)

    def through(A: Tensor) -> Tensor:
        return DenseOperator(A @ A.T).eigh(k=2).values.square().sum() + DenseOperator(A @ A.T).logdet(s)

    s = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(through, A.requires_grad_())
    (slope,) = torch.autograd.grad(through(A.detach()), s)
    assert_close(slope, torch.linalg.inv(A @ A.T + 0.3 * torch.eye(10, dtype=torch.float64)).trace().detach())


@pytest.mark.parametrize("rest", [[1.0, 1.0, 0.0, 0.0], [1.0, 0.9, 0.3, 0.1]])
def test_eigenvectors_of_eigenvalues_that_do_not_repeat_have_derivatives(rest: list[float]) -> None:
    Q = torch.linalg.qr(torch.randn(5, 5, dtype=torch.float64)).Q
    A = (Q * torch.tensor([3.0, *rest], dtype=torch.float64)) @ Q.T

    def projector(A: Tensor) -> Tensor:
        q = DenseOperator((A + A.T) / 2).eigh(k=1).vectors.dense()
        return q @ q.T

    assert torch.autograd.gradcheck(projector, A.requires_grad_(), atol=1e-5)


@pytest.mark.parametrize("kind", [tt.Dense, tt.KFAC, tt.Implicit])
def test_eigenvalues_by_iterations_have_derivatives(kind: Any) -> None:
    F, d = tt.fisher(NET, (X, Y), kind), torch.rand(26, dtype=torch.float64, requires_grad=True)
    M = F + DiagonalOperator(d)
    values, vectors = M.eigh(k=2)
    found, wanted = (torch.autograd.grad(v.sum(), d)[0] for v in (values, M.eigh().values[:2]))
    assert_close(found, wanted, 1e-6)
    with pytest.raises(RuntimeError, match="found by iterations have no derivatives"):
        vectors.dense().square()[0].sum().backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_low_rank_operators_of_long_rows_with_zeros_have_derivatives(dtype: torch.dtype) -> None:
    """As those of a table of which few rows are used."""
    rows = torch.randn(3, 40_000, dtype=dtype)
    rows[:, :20_000] = 0
    v = torch.randn(40_000, dtype=dtype)
    rows.requires_grad_()
    M = LowRankOperator(rows)
    found = torch.autograd.grad(M.logdet(1.0) + v @ M.solve(v, 1.0), rows)[0]
    exact, w = rows.detach().double().requires_grad_(), v.double()
    inner = exact @ exact.T + torch.eye(3)
    (wanted,) = torch.autograd.grad(inner.logdet() - w @ exact.T @ torch.linalg.solve(inner, exact @ w), exact)
    assert_close(found.double(), wanted, 1e-5 if dtype == torch.float32 else 1e-10)


def test_numbers_whose_gradient_would_be_lost() -> None:
    s = torch.tensor(2.0, requires_grad=True)
    for ask in (lambda: s * DenseOperator(torch.eye(2)), lambda: DenseOperator(torch.eye(2)).damped(s)):
        with pytest.raises(ValueError, match="requires a gradient, which an operator would lose"):
            ask()
