"""Closed-form predictions against what they stand for: regression on the features themselves, gradient descent step by
step, the matrix exponential, and fits that really leave a sample out. All oracles are in float64 and on parameters."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import torchtangent.linear.predict.problem as inside
import torchtangent.linear.predict.regression as regression
from torchtangent import spectrum
from torchtangent.kernel import matrix
from torchtangent.kernel.sketch import Features
from torchtangent.linear import predict
from torchtangent.operators import DenseOperator, ImplicitOperator, LowRankOperator

N, M, P = 12, 5, 60


def assert_close(found: Tensor, expected: Tensor, rtol: float = 1e-10) -> None:
    assert found.shape == expected.shape
    gap = torch.linalg.vector_norm(found.double() - expected)
    assert gap <= rtol * torch.linalg.vector_norm(expected), f"{float(gap / expected.norm()):.1e}"


class Linear:
    """A linear model f = f₀ + Jw: Jacobians of training and test points, targets, and kernels in the library's form."""

    def __init__(
        self, outputs: int | None = None, targets: int | None = None, params: int = P, samples: int = N
    ) -> None:
        C = outputs or 1
        self.J, self.J_test = (torch.randn(n * C, params, dtype=torch.float64) for n in (samples, M))
        inner = () if outputs is None else (outputs,)
        self.form = (*inner, *(() if targets is None else (targets,)))
        self.y = torch.randn(samples, *self.form, dtype=torch.float64)
        self.f0, self.f0_test = (torch.randn(n, *inner, dtype=torch.float64) for n in (samples, M))
        self.outputs = outputs
        self.K, self.K_test = self._kernel(self.J), self._kernel(self.J_test)
        self.start = {"f0": self.f0, "f0_test": self.f0_test}

    def _kernel(self, rows: Tensor) -> Tensor:
        K = rows @ self.J.T
        return (
            K
            if self.outputs is None
            else K.unflatten(0, (-1, self.outputs)).unflatten(2, (-1, self.outputs)).transpose(1, 2)
        )

    @property
    def terms(self) -> int:
        return len(self.J)

    @property
    def residual(self) -> Tensor:
        """(rows, targets)."""
        f0 = self.f0.reshape(self.terms, 1)
        return self.y.reshape(self.terms, -1) - f0

    def at(self, w: Tensor, J: Tensor, f0: Tensor) -> Tensor:
        """Outputs for weights (P, targets), in the form of y."""
        return (f0.reshape(len(J), 1) + J @ w).reshape(len(f0), *self.form)

    def test(self, w: Tensor) -> Tensor:
        return self.at(w, self.J_test, self.f0_test)

    def train(self, w: Tensor) -> Tensor:
        return self.at(w, self.J, self.f0)

    def flowed(self, t: float) -> Tensor:
        """The weights at time t of dw/dt = −(2/n) Jᵀ(Jw − r), by the exponential of one augmented matrix."""
        P, k = self.J.shape[1], self.residual.shape[1]
        A = torch.zeros(P + k, P + k, dtype=torch.float64)
        A[:P, :P] = -2 / self.terms * self.J.T @ self.J
        A[:P, P:] = 2 / self.terms * self.J.T @ self.residual
        return torch.linalg.matrix_exp(A * t)[:P, P:]


SHAPES = [(None, None), (None, 4), (1, None), (3, None), (3, 4)]
shapes = pytest.mark.parametrize(("outputs", "targets"), SHAPES, ids=str)


def linear(outputs: int | None, targets: int | None, **sizes: int) -> Linear:
    """The case; y of a kernel (N, N, 1, 1) is (N,), as one output needs no axis."""
    case = Linear(outputs, targets, **sizes)
    if outputs == 1:
        case.y, case.form = case.y[:, 0], case.form[1:]
    return case


# ------------------------------------------------------------------------------------------------ ridge regression


@shapes
def test_ridge_is_ridge_regression_on_the_features(outputs: int | None, targets: int | None) -> None:
    case = linear(outputs, targets)
    lam = 0.3  # of the mean loss: ridge is λ times the number of samples
    A = case.J.T @ case.J + lam * N * torch.eye(P, dtype=torch.float64)
    w = torch.linalg.solve(A, case.J.T @ case.residual)
    assert_close(predict.ridge(case.K, case.y, case.K_test, ridge=lam * N, **case.start), case.test(w))
    assert_close(predict.ridge(case.K, case.y, ridge=lam * N, f0=case.f0), case.train(w))
    c = predict.coefficients(case.K, case.y, ridge=lam * N, f0=case.f0)
    assert c.shape == case.y.shape
    assert_close(case.J.T @ c.reshape(case.terms, -1), w)


@shapes
def test_without_a_ridge_it_is_the_interpolator_of_least_norm(outputs: int | None, targets: int | None) -> None:
    case = linear(outputs, targets)
    w = torch.linalg.pinv(case.J) @ case.residual
    assert_close(predict.ridge(case.K, case.y, case.K_test, **case.start), case.test(w), 1e-9)
    assert_close(predict.ridge(case.K, case.y, f0=case.f0), case.y, 1e-9)
    # Without f₀ it starts from zero.
    bare = (case.J_test @ torch.linalg.pinv(case.J) @ case.y.reshape(case.terms, -1)).reshape(M, *case.form)
    assert_close(predict.ridge(case.K, case.y, case.K_test), bare, 1e-9)


def test_the_norm_of_the_weights_is_the_norm_in_the_kernels_space() -> None:
    """‖θ − θ₀‖² = Σ_j (u_jᵀr)² / λ_j for the interpolator of least norm."""
    case = Linear()
    c = predict.coefficients(case.K, case.y, f0=case.f0)
    values, U = torch.linalg.eigh(case.J @ case.J.T)
    expected = ((U.T @ case.residual).square()[:, 0] / values).sum()
    assert_close((case.J.T @ c).square().sum(), expected)


def test_the_covariance_of_a_gaussian_process() -> None:
    """That of Bayesian linear regression, Φ (ΦᵀΦ/σ² + 1)⁻¹ Φᵀ, from kernels alone."""
    torch.manual_seed(0)
    X, new, noise = torch.randn(N, 4).double(), torch.randn(M, 4).double(), 0.3
    truth = new @ torch.linalg.inv(X.T @ X / noise + torch.eye(4).double()) @ new.T
    K, K_test, K_new = X @ X.T, new @ X.T, new @ new.T
    assert_close(K_new - predict.ridge(K, K_test.T, K_test, ridge=noise), truth)


def test_f0_of_each_target_or_of_all() -> None:
    case = Linear(outputs=3, targets=4)
    shared = case.f0[..., None].expand(-1, -1, 4)
    shared_test = case.f0_test[..., None].expand(-1, -1, 4)
    expected = predict.ridge(case.K, case.y, case.K_test, ridge=1.0, **case.start)
    assert_close(predict.ridge(case.K, case.y, case.K_test, ridge=1.0, f0=shared, f0_test=shared_test), expected)
    logits = Linear()  # a network's (N, 1) beside targets (N,)
    expected = predict.ridge(logits.K, logits.y, f0=logits.f0, ridge=1.0)
    assert_close(predict.ridge(logits.K, logits.y, f0=logits.f0[:, None].requires_grad_(), ridge=1.0), expected)


def test_float32_kernels_are_solved_in_float64() -> None:
    """Of a float32 kernel with condition number 10⁶ float32's own Cholesky would lose most digits."""
    case = Linear(targets=3, params=N)
    U, _, Vt = torch.linalg.svd(case.J)
    J = U * torch.logspace(0, -3, N, dtype=torch.float64) @ Vt
    K, K_test = (J @ J.T).float(), (case.J_test @ J.T).float()
    found = predict.ridge(K, case.y, K_test)
    assert found.dtype == torch.float32
    c = torch.linalg.solve(K.double(), case.y)
    assert_close(found, K_test.double() @ c, 1e-5)
    assert_close(predict.ridge(K, case.y), case.y, 1e-5)
    single = K_test @ torch.linalg.solve(K, case.y.float())
    assert (single - K_test.double() @ c).norm() > 1e-3 * (K_test.double() @ c).norm()


# ---------------------------------------------------------------------------------------------------- leave one out


@pytest.mark.parametrize("ridge", [0.0, 0.7])
@shapes
def test_leave_one_out_is_what_leaving_one_out_gives(outputs: int | None, targets: int | None, ridge: float) -> None:
    case = linear(outputs, targets)
    C = outputs or 1
    expected = []
    for n in range(N):
        rest = torch.cat([torch.arange(n * C), torch.arange((n + 1) * C, N * C)])
        J, r = case.J[rest], case.residual[rest]
        w = J.T @ torch.linalg.solve(J @ J.T + ridge * torch.eye(len(J)), r)
        expected.append(case.at(w, case.J[n * C : (n + 1) * C], case.f0[n : n + 1])[0])
    assert_close(predict.leave_one_out(case.K, case.y, ridge=ridge, f0=case.f0), torch.stack(expected), 1e-8)


# --------------------------------------------------------------------------------------------------- classification


@pytest.mark.parametrize("outputs", [None, 4])
def test_classes_are_those_of_the_largest_score(outputs: int | None) -> None:
    case = Linear(outputs, samples=30)
    y = torch.arange(30) % 4
    onehot = torch.eye(4, dtype=torch.float64)[y]
    A = case.J @ case.J.T + 5 * torch.eye(case.terms)
    Y = onehot if outputs is None else onehot.reshape(-1, 1)
    scores = (case.J_test @ case.J.T @ torch.linalg.solve(A, Y)).reshape(M, 4)
    found = predict.classify(case.K, y, case.K_test, ridge=5.0)
    assert found.dtype == torch.int64
    assert torch.equal(found, scores.argmax(1))
    several = torch.stack([y, y.flip(0), (y + 1) % 4], 1)
    many = predict.classify(case.K, several, case.K_test, ridge=5.0)
    for i in range(3):
        assert torch.equal(many[:, i], predict.classify(case.K, several[:, i], case.K_test, ridge=5.0))
    assert torch.equal(many[:, 0], found)
    interpolated = Linear(outputs, samples=12)
    assert torch.equal(predict.classify(interpolated.K, y[:12]), y[:12])


@pytest.mark.parametrize("outputs", [None, 4])
def test_only_classes_that_were_seen_are_predicted(outputs: int | None) -> None:
    """Elsewhere the score of a class without samples, zero, may be the largest."""
    case = Linear(outputs, samples=30)
    K_test = torch.cat([case.K_test, -case.K_test])
    seen = torch.tensor([1, 3])[torch.arange(30) % 2]
    found = predict.classify(case.K, seen, K_test, ridge=5.0)
    A = case.J @ case.J.T + 5 * torch.eye(case.terms)
    Y = (seen[:, None] == torch.arange(4)).double()
    T = torch.cat([case.J_test, -case.J_test]) @ case.J.T
    scores = (T @ torch.linalg.solve(A, Y if outputs is None else Y.reshape(-1, 1))).reshape(2 * M, 4)
    assert bool((scores.argmax(1) != 1).logical_and(scores.argmax(1) != 3).any())  # or this could not fail
    assert torch.equal(found, torch.tensor([1, 3])[scores[:, [1, 3]].argmax(1)])
    several = torch.stack([seen, torch.arange(30) % 4, 2 * (seen // 2)], 1)  # each with classes of its own
    many = predict.classify(case.K, several, K_test, ridge=5.0)
    for i in range(3):
        assert torch.equal(many[:, i], predict.classify(case.K, several[:, i], K_test, ridge=5.0))
    assert torch.equal(many[:, 0], found)


def test_two_classes_are_the_sign_of_a_regression() -> None:
    case = Linear()
    y = (case.y > 0).long()
    signs = predict.ridge(case.K, 2 * y - 1, case.K_test, ridge=1.0)
    assert torch.equal(predict.classify(case.K, y, case.K_test, ridge=1.0), (signs > 0).long())


def test_bad_labels_are_named() -> None:
    case = Linear(outputs=3)
    y = torch.arange(N) % 3
    with pytest.raises(ValueError, match=r"integer classes.*float64.*\(12, 3\)"):
        predict.classify(case.K, case.y)
    with pytest.raises(ValueError, match=r"integer classes.*bool"):
        predict.classify(case.K, y > 0)
    with pytest.raises(ValueError, match=r"classify takes .* 0 to 2, as K has 3 outputs; y has 3 \(sample 3\)\.$"):
        predict.classify(case.K, torch.arange(N) % 4)
    with pytest.raises(ValueError, match=r"y has 3 \(sample 2\)\. Classes that are counted from 1 .* by y - 1"):
        predict.classify(case.K, y + 1)
    with pytest.raises(ValueError, match=r"classes from 0; y has -1 \(sample 0\)\. Labels -1 and 1.*\(y \+ 1\) // 2"):
        predict.classify(Linear().K, 2 * (y > 0).long() - 1)
    with pytest.raises(ValueError, match=r"y has -1 \(sample 0\)\.$"):
        predict.classify(Linear().K, y - 1)
    for K in (case.K, Linear().K):  # with outputs, and without
        with pytest.raises(ValueError, match=r"y is one-hot, but classify takes classes.*pass classes: y\.argmax\(1\)"):
            predict.classify(K, torch.eye(3).long()[y])
        assert predict.classify(K, 1 - torch.eye(3).long()[y], ridge=1.0).shape == (N, 3)
    with pytest.raises(ValueError, match="constant"):
        predict.classify(case.K, 0 * y)
    with pytest.raises(ValueError, match=r"12 samples.*\(12,\).*got"):
        predict.classify(Linear().K, y[:7])


# ------------------------------------------------------------------------------------- gradient descent and flow


@pytest.mark.parametrize("params", [P, 7], ids=["full rank", "rank 7"])
@pytest.mark.parametrize("part", [0.3, 0.9], ids=["slow", "overshooting"])
@shapes
def test_descent_is_gradient_descent(outputs: int | None, targets: int | None, part: float, params: int) -> None:
    """Step by step on the weights, with autograd's gradient of torch's loss; at 0.9 of the limit modes overshoot."""
    case = linear(outputs, targets, params=params)
    lr = part * case.terms / float(torch.linalg.matrix_norm(case.J, 2) ** 2)
    k = case.residual.shape[1]
    w = torch.zeros(params, k, dtype=torch.float64, requires_grad=True)
    train, test = [], []
    for step in range(41):
        if step in (0, 1, 5, 40):
            train.append(case.train(w.detach()))
            test.append(case.test(w.detach()))
        loss = k * torch.nn.functional.mse_loss(case.train(w), case.y)  # the targets do not share a mean
        (gradient,) = torch.autograd.grad(loss, w)
        w = (w - lr * gradient).detach().requires_grad_()
    steps = [0, 1, 5, 40]
    assert_close(predict.descent(case.K, case.y, steps, lr, f0=case.f0), torch.stack(train))
    assert_close(predict.descent(case.K, case.y, steps, lr, case.K_test, **case.start), torch.stack(test))
    assert_close(predict.descent(case.K, case.y, 5, lr, case.K_test, **case.start), test[2])


def test_descent_of_each_mode() -> None:
    """f_t = y + (I − ηK)^t (f₀ − y) with η = 2·lr/n, and along eigenvector j the error is (1 − ηλ_j)^t."""
    case = Linear()
    lr, t = 0.4 * N / float(torch.linalg.matrix_norm(case.K, 2)), 9
    decay = torch.linalg.matrix_power(torch.eye(N) - 2 * lr / N * case.K, t)
    found = predict.descent(case.K, case.y, t, lr, f0=case.f0)
    assert_close(found, case.y + decay @ (case.f0 - case.y))
    values, U = torch.linalg.eigh(case.K)
    assert_close(predict.descent(case.K, U, t, lr) - U, -((1 - 2 * lr / N * values) ** t) * U)


def test_modes_that_have_hardly_moved_keep_their_digits() -> None:
    """1 − (1 − x)^t of x = 10⁻¹² by subtraction would have four digits."""
    K = torch.diag(torch.tensor([1.0, 1e-12], dtype=torch.float64))
    found = predict.descent(K, torch.ones(2), 3, lr=0.5, K_test=torch.ones(1, 2, dtype=torch.float64))
    assert_close(found, torch.tensor([1 - 0.5**3 + 3 * 0.5], dtype=torch.float64), 1e-11)
    found = predict.flow(K, torch.ones(2), 1.0)
    assert found[1].item() == pytest.approx(1e-12, rel=1e-10)


@pytest.mark.parametrize("params", [P, 7], ids=["full rank", "rank 7"])
@shapes
def test_flow_is_the_matrix_exponential(outputs: int | None, targets: int | None, params: int) -> None:
    case = linear(outputs, targets, params=params)
    scale = case.terms / float(torch.linalg.matrix_norm(case.J, 2) ** 2)
    times = [0.0, 0.1 * scale, 2 * scale, 50 * scale]
    weights = [case.flowed(t) for t in times]
    found = predict.flow(case.K, case.y, times, case.K_test, **case.start)
    assert_close(found, torch.stack([case.test(w) for w in weights]), 1e-9)
    found = predict.flow(case.K, case.y, torch.tensor(times, dtype=torch.float64), f0=case.f0)
    assert_close(found, torch.stack([case.train(w) for w in weights]), 1e-9)
    # In the end it is the least squares solution of least norm: what K cannot reach is left alone.
    end = torch.linalg.pinv(case.J) @ case.residual
    assert_close(predict.flow(case.K, case.y, math.inf, case.K_test, **case.start), case.test(end), 1e-9)
    assert_close(predict.flow(case.K, case.y, math.inf, f0=case.f0), case.train(end), 1e-9)


def test_small_steps_of_descent_are_flow() -> None:
    case = Linear()
    t = float(N / torch.linalg.matrix_norm(case.K, 2))
    coarse, fine = (predict.descent(case.K, case.y, steps, t / steps) for steps in (1_000, 100_000))
    flow = predict.flow(case.K, case.y, t)
    assert (fine - flow).norm() < 1e-4 * flow.norm()
    assert (coarse - flow).norm() / (fine - flow).norm() == pytest.approx(100, rel=0.02)  # Euler's method: first order


@pytest.mark.parametrize("outputs", [None, 3])
def test_time_to_is_when_the_loss_is_reached(outputs: int | None) -> None:
    case = Linear(outputs, targets=4, params=9)
    n, r = case.terms, case.residual
    start = r.square().mean(0)
    rest = (r - case.J @ torch.linalg.pinv(case.J) @ r).square().mean(0)
    goal = float((0.3 * start + 0.7 * rest).max())
    times = predict.time_to(case.K, case.y, goal, f0=case.f0)
    assert times.shape == (4,)
    for j, t in enumerate(times.tolist()):
        if goal >= start[j]:
            assert t == 0
        elif goal <= rest[j]:
            assert t == math.inf
        else:
            decay = torch.linalg.matrix_exp(-2 * t / n * case.J @ case.J.T)
            assert (decay @ r[:, j]).square().mean().item() == pytest.approx(goal, rel=1e-9)
    assert torch.isfinite(times).any()
    assert (times > 0).any()
    alone = predict.time_to(case.K, case.y[..., 1], goal, f0=case.f0)
    assert alone.shape == ()
    assert alone.item() == pytest.approx(times[1].item(), rel=1e-12)
    assert predict.time_to(case.K, case.y, float(start.max()), f0=case.f0).min() == 0
    assert predict.time_to(case.K, case.y, float(rest.min()) * 0.99, f0=case.f0).tolist() == [math.inf] * 4
    assert predict.time_to(case.K, case.y, 0.0, f0=case.f0).tolist() == [math.inf] * 4


def test_time_to_over_many_orders_of_magnitude() -> None:
    """e^(−4λt/n) = loss for a single mode, however slow it is beside the others."""
    values = torch.logspace(0, -12, 5, dtype=torch.float64)
    times = predict.time_to(torch.diag(values), math.sqrt(5) * torch.eye(5, dtype=torch.float64), loss=0.01)
    assert_close(times, 5 / (4 * values) * math.log(100), 1e-12)


# ------------------------------------------------------------------------------------------------ kernels of any kind


class Products:
    """Something that only multiplies."""

    def __init__(self, K: Tensor) -> None:
        self.K, self.shape, self.dtype = K, tuple(K.shape), K.dtype

    def __matmul__(self, V: Tensor) -> Tensor:
        return self.K @ V


CALLS: dict[str, Callable[..., Any]] = {
    "ridge": lambda K, y, T: predict.ridge(K, y, T, ridge=0.5),
    "ridge at training points": lambda K, y, T: predict.ridge(K, y, ridge=0.5),
    "coefficients": lambda K, y, T: predict.coefficients(K, y, ridge=0.5),
    "leave one out": lambda K, y, T: predict.leave_one_out(K, y, ridge=0.5),
    "classify": lambda K, y, T: predict.classify(K, y.argmax(1), T, ridge=0.5).double(),
    "descent": lambda K, y, T: predict.descent(K, y, [2, 7], 0.05, T),
    "flow": lambda K, y, T: predict.flow(K, y, [0.3, math.inf], T),
    "time": lambda K, y, T: predict.time_to(K, y, 0.9 * y.square().mean().item()),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("rank", [7, 80], ids=["low rank", "full rank"])
def test_every_kind_of_kernel_gives_the_same(call: str, rank: int, tmp_path: Path) -> None:
    case = Linear(outputs=3, params=rank)
    J = case.J
    K = J @ J.T
    np.save(tmp_path / "K.npy", case.K.contiguous().numpy())
    np.save(tmp_path / "T.npy", case.K_test.contiguous().numpy())
    products = ImplicitOperator(lambda V: K @ V, len(K), K.dtype, K.device, rtol=1e-13)
    expected = CALLS[call](case.K, case.y, case.K_test)
    flat = case.J_test @ J.T
    kinds: dict[str, tuple[Any, Any]] = {
        "file": (np.load(tmp_path / "K.npy", mmap_mode="r"), np.load(tmp_path / "T.npy", mmap_mode="r")),
        "matrix": (K, flat),
        "factor": (LowRankOperator(J.T), flat),
        "features": (Features(J, 0.0, 0.0, lambda x: x), flat),
        "operator": (products, case.K_test),
        "float32 factor": (LowRankOperator(J.T.float()), flat),
        "float32": (case.K.float(), case.K_test.float()),
    }
    for kind, (given, test) in kinds.items():
        found = CALLS[call](given, case.y, test)
        assert found.shape == expected.shape, kind
        assert_close(found, expected, 2e-4 if "float32" in kind else 1e-9)
    iterated = call in ("ridge", "ridge at training points", "coefficients")  # to a residual of 1e-6
    assert_close(CALLS[call](Products(K), case.y, flat), expected, 1e-5 if iterated else 1e-9)


@pytest.mark.parametrize("call", [c for c in CALLS if c not in ("classify", "time")])
def test_many_targets_are_as_one_by_one(call: str) -> None:
    for case in (Linear(targets=4), Linear(outputs=3, targets=4)):
        many = CALLS[call](case.K, case.y, case.K_test)
        for i in range(4):
            assert_close(many[..., i], CALLS[call](case.K, case.y[..., i], case.K_test))


def test_kernels_are_read_in_blocks_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Linear(outputs=3)
    expected = predict.ridge(case.K, case.y, case.K_test, ridge=1.0)
    monkeypatch.setattr(matrix, "_BLOCK_BYTES", 8 * 36 * 4)
    assert_close(predict.ridge(case.K.float(), case.y, case.K_test, ridge=1.0).double(), expected, 1e-5)


def test_integer_targets_and_arrays() -> None:
    case = Linear()
    signs = case.y.sign()
    expected = predict.ridge(case.K, signs, case.K_test, ridge=1.0)
    for y in (signs.long(), signs.numpy(), signs.tolist(), signs.float()):
        assert_close(predict.ridge(case.K, y, case.K_test, ridge=1.0), expected)


# ---------------------------------------------------------------------------------------------------- what is refused


def duplicated(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """A kernel in which the last two samples are the same."""
    case = Linear()
    J = torch.cat([case.J[:-1], case.J[-2:-1]])
    return (J @ J.T).to(dtype), case.y


def advised(error: pytest.ExceptionInfo[ValueError]) -> float:
    """The ridge that an error says to pass."""
    return float(re.search(r"a ridge of at least ([\d.e+-]+\d)", str(error.value)).group(1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("rank", [7, None], ids=["rank 7", "a sample twice"])
def test_a_singular_kernel_says_its_condition_number(dtype: torch.dtype, rank: int | None) -> None:
    K, y = duplicated(dtype)
    if rank:
        J = Linear(params=rank).J
        K = (J @ J.T).to(dtype)
    for call in (predict.ridge, predict.coefficients, predict.leave_one_out):
        with pytest.raises(
            ValueError, match=r"singular to rounding.*condition number of at least .*flow\(K, y, math.inf\)"
        ) as error:
            call(K, y)
        said = float(re.search(r"at least ([\d.e+]+)", str(error.value)).group(1))
        assert said > 1e6
        assert ("compute K in float64" in str(error.value)) == (dtype == torch.float32)
        assert torch.isfinite(call(K, y, ridge=advised(error))).all()  # the advice works
    assert torch.isfinite(predict.flow(K, y, math.inf)).all()


def test_the_condition_number_is_about_right() -> None:
    """The target lies along the smallest eigenvalue: there a condition number of 10¹² costs the solution its digits."""
    U = torch.linalg.qr(torch.randn(50, 50, dtype=torch.float64)).Q

    def kernel(condition: float) -> Tensor:
        K = U * torch.logspace(0, -math.log10(condition), 50, dtype=torch.float64) @ U.T
        return (K + K.T) / 2

    assert_close(predict.ridge(kernel(1e8), U[:, -1]), U[:, -1], 1e-6)
    with pytest.raises(ValueError, match="singular to rounding") as error:
        predict.ridge(kernel(1e12), U[:, -1])
    said = float(re.search(r"at least ([\d.e+]+)", str(error.value)).group(1))
    assert 0.5e12 < said < 1.1e12


def test_an_indefinite_kernel_is_no_kernel() -> None:
    K = torch.diag(torch.tensor([1.0, 2.0, -0.5]))
    y = torch.arange(3.0)
    with pytest.raises(ValueError, match=r"^K is not positive definite: its smallest eigenvalue is -5.0e-01,") as error:
        predict.ridge(K, y)
    assert 0.5 < advised(error) < 0.6
    with pytest.raises(ValueError, match=r"^K \+ ridge·I is not .* is -2.0e-01, .* ridge of at least 0.53"):
        predict.ridge(K, y, ridge=0.3)
    assert torch.isfinite(predict.ridge(K, y, ridge=0.53)).all()
    for call in (
        lambda: predict.flow(K, y, 1.0),
        lambda: predict.descent(K, y, 1, 0.1),
        lambda: predict.time_to(K, y, 0.1),
    ):
        with pytest.raises(ValueError, match=r"from -5.0e-01 to 2.0e\+00: it is no kernel"):
            call()


def test_a_low_rank_operator_without_a_ridge_is_singular() -> None:
    J = Linear(params=7).J
    for call in (predict.ridge, predict.leave_one_out):
        with pytest.raises(ValueError, match=r"from 0.0e\+00 .*condition number of infinity"):
            call(LowRankOperator(J.T), torch.arange(12.0))


def operators(J: Tensor, dtype: torch.dtype) -> dict[str, Any]:
    """K = JJᵀ in the ways of which a part is known."""
    K = (J @ J.T).to(dtype)
    n = len(K)
    return {
        "dense": DenseOperator(K),
        "low rank": LowRankOperator(J.T.to(dtype)),
        "features": Features(J.to(dtype), 0.0, 0.0, lambda x: x),
        "products": ImplicitOperator(lambda V: K @ V, n, dtype, K.device),
        "anything": Products(K),
    }


@pytest.mark.filterwarnings("ignore::torchtangent.operators.ConvergenceWarning")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("kind", ["dense", "low rank", "features", "products", "anything"])
def test_operators_that_are_singular_are_refused(kind: str, dtype: torch.dtype) -> None:
    case = Linear(params=7, samples=30)
    K = operators(case.J, dtype)[kind]
    with_products = kind in ("products", "anything")
    for call in (predict.ridge, predict.coefficients, predict.leave_one_out):
        with pytest.raises(ValueError, match=r"singular to rounding.*flow\(K, y, math.inf\)") as error:
            call(K, case.y)
        assert ("conjugate gradients left" in str(error.value)) == (with_products and call is not predict.leave_one_out)
        more = advised(error)
        found, expected = (call(k, case.y, ridge=more) for k in (K, (case.J @ case.J.T).to(dtype)))
        assert_close(found, expected.double(), 1e-5 if dtype == torch.float64 else 0.05)  # the advice works
    # Nearly singular, which is as bad: a condition number above 10¹⁴, or above 10⁷ in float32.
    U = torch.linalg.qr(torch.randn(30, 30, dtype=torch.float64)).Q
    J = U * torch.logspace(0, -7.2 if dtype == torch.float64 else -3.8, 30, dtype=torch.float64)
    with pytest.raises(ValueError, match="singular to rounding"):
        predict.ridge(operators(J, dtype)[kind], case.y)


def test_a_large_singular_kernel_is_not_decomposed_to_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regression, "DENSE_LIMIT", 11)
    monkeypatch.setattr(torch.linalg, "eigvalsh", lambda K: pytest.fail("all eigenvalues"))
    K = torch.ones(12, 12, dtype=torch.float64) - 1e-9 * torch.eye(12, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"not positive definite: its smallest eigenvalue is -1.0e-09"):
        predict.ridge(K, torch.arange(12.0))
    K = torch.ones(12, 12, dtype=torch.float64) - 1e-15 * torch.eye(12, dtype=torch.float64)
    with pytest.raises(
        ValueError, match=r"singular to rounding: its eigenvalues go from (0.0e\+00|-\d.\de-15) to 1.2e\+01"
    ):
        predict.ridge(K, torch.arange(12.0))


def test_an_operator_by_products_is_decomposed_only_if_small(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Linear()
    monkeypatch.setattr(inside, "EXACT_LIMIT", 11)
    for call in (lambda K: predict.flow(K, case.y, 1.0), lambda K: predict.leave_one_out(K, case.y, ridge=1.0)):
        with pytest.raises(ValueError, match=r"products only.*all 12 columns.*up to 11.*tt.sketch.nystrom"):
            call(Products(case.K))
        assert torch.isfinite(call(LowRankOperator(case.J.T))).all()
    assert torch.isfinite(predict.ridge(Products(case.K), case.y, ridge=1.0)).all()


def test_bad_learning_rates_steps_and_times_are_named() -> None:
    case = Linear()
    limit = float(N / torch.linalg.matrix_norm(case.K, 2))
    for lr in (limit * 1.0001, 1e9, 0.0, -1.0, float("nan"), math.inf):
        with pytest.raises(ValueError, match=rf"does not converge.*less than N·C/λ₁ = {limit:.4g}"):
            predict.descent(case.K, case.y, 3, lr)
    assert torch.isfinite(predict.descent(case.K, case.y, 10**6, limit * 0.9999)).all()
    for steps in (-1, [1, -2], 1.5, [], [[1]]):
        with pytest.raises(ValueError, match="whole numbers of at least 0"):
            predict.descent(case.K, case.y, steps, 0.1 * limit)
    for t in (-1.0, float("nan"), [], [1.0, -1.0]):
        with pytest.raises(ValueError, match="time of at least 0"):
            predict.flow(case.K, case.y, t)
    for loss in (-0.1, math.inf, float("nan")):
        with pytest.raises(ValueError, match="loss must be"):
            predict.time_to(case.K, case.y, loss)
    for call in (predict.ridge, predict.coefficients, predict.leave_one_out):
        for ridge in (-1.0, math.nan, math.inf):
            with pytest.raises(ValueError, match=f"ridge must be a finite number >= 0, got {ridge}"):
                call(case.K, case.y, ridge=ridge)


@pytest.mark.filterwarnings("ignore::torchtangent.operators.ConvergenceWarning")
@pytest.mark.parametrize("limit", [2048, 3])
@pytest.mark.parametrize("kind", [lambda K: K, DenseOperator, Products], ids=["matrix", "dense", "products"])
def test_kernels_that_are_zero_or_negative_are_named(
    kind: Callable[[Tensor], Any], limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regression, "DENSE_LIMIT", limit)
    y = torch.randn(60)
    with pytest.raises(ValueError, match=r"^K is zero"):
        predict.ridge(kind(torch.zeros(60, 60)), y)
    assert torch.equal(predict.ridge(kind(torch.zeros(60, 60)), y, ridge=1.0), torch.zeros(60))
    for K, smallest in (-torch.eye(60), "-1.0e+00"), (torch.diag(torch.linspace(-3, 1, 60)), "-3.0e+00"):
        with pytest.raises(ValueError, match=rf"^K is not positive definite: .* is {re.escape(smallest)}") as error:
            predict.ridge(kind(K), y)
        assert torch.isfinite(predict.ridge(kind(K), y, ridge=advised(error))).all()


def test_a_zero_kernel_learns_nothing() -> None:
    K, y = torch.zeros(4, 4), torch.arange(4.0)
    assert torch.equal(predict.flow(K, y, math.inf), torch.zeros(4))
    assert torch.equal(predict.descent(K, y, 5, 100.0), torch.zeros(4))
    assert predict.time_to(K, y, 0.1).item() == math.inf


def test_features_of_rank_0_are_a_zero_kernel() -> None:
    y, features = torch.arange(4.0), Features(torch.zeros(4, 0), error=0.0, trace_error=0.0, extend=lambda x: x)
    for ask in (
        lambda K: predict.ridge(K, y, ridge=1.0),
        lambda K: predict.ridge(K, y, torch.zeros(2, 4), ridge=1.0),
        lambda K: predict.coefficients(K, y, ridge=2.0),
        lambda K: predict.leave_one_out(K, y, ridge=1.0),
        lambda K: predict.leave_one_out(K, y.view(2, 2), ridge=1.0),
        lambda K: predict.flow(K, y, [1.0, math.inf]),
        lambda K: predict.descent(K, y, 5, 100.0),
        lambda K: predict.time_to(K, y, 0.1),
        lambda K: predict.classify(K, y.long() % 2, ridge=1.0),
    ):
        assert torch.equal(ask(features), ask(torch.zeros(4, 4)))
    for ask in (predict.ridge, predict.leave_one_out):
        with pytest.raises(ValueError, match=r"^K is zero"):
            ask(features, y)
    for K in (features, torch.zeros(4, 4)):
        with pytest.raises(ValueError, match="All eigenvalues of K are zero: it has no effective rank"):
            spectrum.effective_rank(K)


@pytest.mark.parametrize("scale", [1e-300, 1e-200, 1e-100, 1e100])
def test_the_scale_of_a_kernel_does_not_matter(scale: float) -> None:
    case = Linear()
    assert_close(predict.ridge(case.K * scale, case.y, case.K_test * scale), predict.ridge(case.K, case.y, case.K_test))
    assert_close(predict.coefficients(case.K * scale, case.y) * scale, torch.linalg.solve(case.K, case.y))
    assert_close(predict.leave_one_out(case.K * scale, case.y), predict.leave_one_out(case.K, case.y))
    with pytest.raises(ValueError, match="K is singular to rounding"):
        predict.ridge(torch.ones_like(case.K) * scale, case.y)


@pytest.fixture
def warn_always() -> Iterator[None]:
    """Torch says most things once."""
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(False)


@pytest.mark.usefixtures("warn_always")
def test_kernels_with_a_graph() -> None:
    """They are differentiated as the formula is, and torch has nothing to complain about."""
    case = Linear()
    K, y, eye = case.K.clone().requires_grad_(), case.y, torch.eye(N, dtype=torch.float64)
    (found,) = torch.autograd.grad(predict.ridge(K, y, case.K_test, ridge=0.5).sum(), K)
    (expected,) = torch.autograd.grad((case.K_test @ torch.linalg.solve(K + 0.5 * eye, y)).sum(), K)
    assert_close(found + found.T, expected + expected.T)  # K is symmetric
    for ask in (
        predict.ridge,
        predict.coefficients,
        predict.leave_one_out,
        lambda K, y: predict.flow(K, y, 1.0),
        lambda K, y: predict.descent(K, y, 3, 1e-3),
        lambda K, y: predict.time_to(K, y, 0.1),
        lambda K, y: predict.classify(K, (y > 0).long()),
    ):
        assert torch.equal(ask(K, y).detach(), ask(case.K, y))
    with pytest.raises(ValueError, match="does not converge"):
        predict.descent(K, y, 3, 1e9)


@pytest.mark.parametrize("outputs", [1, 2])
def test_derivatives_with_respect_to_kernel_and_targets(outputs: int) -> None:
    """All of them, along one direction of both together, against differences."""
    case = Linear(outputs=outputs)
    A = torch.randn(case.K.shape, dtype=torch.float64)
    K0, D = case.K.detach(), A + (A.T if A.dim() == 2 else A.permute(1, 0, 3, 2))
    y0, d = case.y, torch.randn(case.y.shape, dtype=torch.float64)
    for ask in (
        lambda K, y: predict.ridge(K, y, ridge=0.5),
        lambda K, y: predict.ridge(K, y, case.K_test, ridge=0.5),
        lambda K, y: predict.coefficients(K, y, ridge=0.5),
        lambda K, y: predict.leave_one_out(K, y, ridge=0.5),
        lambda K, y: predict.flow(K, y, 0.1),
        lambda K, y: predict.descent(K, y, 3, 1e-3),
        lambda K, y: predict.time_to(K, y, 0.1),
    ):
        for both in (True, False):

            def value(t: Any, ask: Callable = ask, both: bool = both) -> Tensor:
                return ask(K0 + t * D if both else K0, y0 + t * d).sum()

            step, h = torch.zeros((), dtype=torch.float64, requires_grad=True), 1e-5
            found = torch.autograd.grad(value(step), step)[0]
            assert float(found) == pytest.approx(float(value(h) - value(-h)) / (2 * h), rel=1e-4)


CLOSED: dict[str, Callable[..., Any]] = {
    "ridge": lambda K, y, **more: predict.ridge(K, y, ridge=1.0, **more),
    "descent": lambda K, y, **more: predict.descent(K, y, 1, 1e-3, **more),
    "flow": lambda K, y, **more: predict.flow(K, y, 1.0, **more),
}


@pytest.mark.parametrize("call", CLOSED.values(), ids=CLOSED)
def test_bad_shapes_and_numbers_are_named(call: Callable[..., Any]) -> None:
    case = Linear(outputs=3)
    for y in (case.y[:, 0], case.y[:, :2], case.y[:-1], case.y.T):
        with pytest.raises(ValueError, match=r"12 samples with 3 outputs.* y of shape \(12, 3\)"):
            call(case.K, y)
    with pytest.raises(ValueError, match=r"Classes are passed one-hot, F.one_hot\(y, 3\), or to tt.predict.classify\."):
        call(case.K, torch.arange(N) % 3)
    holed = case.y.clone()
    holed[4, 1] = float("nan")
    with pytest.raises(ValueError, match="y has NaN or infinity, first in sample 4"):
        call(case.K, holed)
    K = case.K.clone()
    K[2, 3, 0, 1] = float("inf")
    with pytest.raises(ValueError, match="K has NaN or infinity"):
        call(K, case.y)
    with pytest.raises(ValueError, match=r"K is not symmetric: .* two sets of inputs will not do") as error:
        call(case.K + torch.ones_like(case.K).triu(), case.y)
    assert "spectrum" not in str(error.value)
    with pytest.raises(ValueError, match=r"square matrix.*\(36, 15\)"):
        call(case.K[:, :5], case.y)
    with pytest.raises(ValueError, match=r"K_test must be the kernel of other samples.*got shape \(12, 5, 3, 3\)"):
        call(case.K, case.y, K_test=case.K_test.transpose(0, 1))
    with pytest.raises(ValueError, match=r"36 columns.* 3 rows for each sample; got shape \(14, 36\)"):
        call(case.K, case.y, K_test=torch.ones(14, 36, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"f0 must have shape \(12, 3\).*got \(3, 12\)"):
        call(case.K, case.y, f0=case.f0.T)
    with pytest.raises(ValueError, match=r"f0_test must have shape \(5, 3\).*got \(12, 3\)"):
        call(case.K, case.y, K_test=case.K_test, f0=case.f0, f0_test=case.f0)
    with pytest.raises(ValueError, match="f0 has NaN"):
        call(case.K, case.y, f0=case.f0 / 0)
    y = case.y[..., None].expand(-1, -1, 4)  # as many numbers, in another order
    with pytest.raises(ValueError, match=r"f0 must have shape \(12, 3\), or \(12, 3, 4\).*got \(12, 4, 3\)"):
        call(case.K, y, f0=y.transpose(1, 2))
    with pytest.raises(ValueError, match="so f0_test, the network's outputs on the other samples, is needed"):
        call(case.K, case.y, K_test=case.K_test, f0=case.f0)
    with pytest.raises(ValueError, match="f0_test is given, but training had none"):
        call(case.K, case.y, K_test=case.K_test, f0_test=case.f0_test)
    with pytest.raises(ValueError, match="f0_test is given without K_test"):
        call(case.K, case.y, f0_test=case.f0_test)


def test_never_may_mean_that_float32_cannot_tell() -> None:
    torch.manual_seed(0)
    x = torch.randn(60, 2)
    K = torch.exp(-torch.cdist(x.double(), x.double()).square() / 8)
    y = torch.sin(5 * x[:, 0])
    with pytest.warns(UserWarning, match="eigenvalues are below the rounding of torch.float32 and count as zero"):
        assert predict.time_to(K.float(), y, 1e-3) == math.inf
    assert predict.time_to(K, y, 1e-3) < math.inf


def test_a_row_of_labels_is_no_sample() -> None:
    with pytest.raises(ValueError, match=r"needs y of shape \(4,\)"):
        predict.leave_one_out(torch.eye(4), torch.arange(4.0)[None])


def test_arrays_with_negative_strides() -> None:
    found = predict.flow(torch.eye(4), np.arange(4.0)[::-1], 1.0)
    torch.testing.assert_close(found, predict.flow(torch.eye(4), [3.0, 2.0, 1.0, 0.0], 1.0))
