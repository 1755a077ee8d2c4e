"""gauss_newton() against JᵀΛJ with Λ by autograd, sample by sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import oracle
import pytest
import torch
from cases import ZOO
from oracle import assert_close, take
from torch import Tensor, nn
from torch.nn import functional

import torchtangent as tt

Loss = Callable[[Tensor, Tensor], Tensor]


def smoothed(f: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(f, y, label_smoothing=0.1)


def weighted(f: Tensor, y: Tensor) -> Tensor:
    return ((1 + y) * functional.cross_entropy(f, y, reduction="none")).mean()


def coupled(f: Tensor, y: Tensor) -> Tensor:
    """Terms of a sample depend on each other."""
    return (f.flatten(1).logsumexp(1) + (f.flatten(1) - y.flatten(1)).pow(4).sum(1)).mean()


def classes(f: Tensor) -> Tensor:
    return torch.randint(f.shape[-1], f.shape[:-1])


LOSSES: dict[str, tuple[Loss, Callable[[Tensor], Tensor]]] = {
    "smoothed": (smoothed, classes),
    "weighted": (weighted, classes),
    "coupled": (coupled, torch.randn_like),
    "poisson": (functional.poisson_nll_loss, lambda f: torch.randint(5, f.shape).to(f)),
    "binary": (functional.binary_cross_entropy_with_logits, torch.rand_like),
    "huber": (functional.huber_loss, lambda f: 2 * torch.randn_like(f)),  # zero second derivatives for some
}
CASES = [
    *(("mlp", name) for name in LOSSES),
    *(("sequence-outputs", name) for name in ("coupled", "poisson", "huber")),
    *(("single-output", name) for name in ("coupled", "binary")),
    ("lenet", "weighted"),
]


def setting(case: str, name: str) -> tuple[nn.Module, Any, Tensor, Loss]:
    model, x, _ = ZOO[case].build()
    torch.manual_seed(1)
    loss, draw = LOSSES[name]
    return model, x, draw(oracle.outputs(model, x)), loss


def expected(model: nn.Module, x: Any, y: Tensor, loss: Loss) -> Tensor:
    """(1/N) Σ J_nᵀ ∇²ℓ_n J_n."""
    f, J = oracle.outputs(model, x), oracle.jacobian(model, x)
    J = J.reshape(len(f), -1, J.shape[-1])
    total = torch.zeros(J.shape[-1], J.shape[-1], dtype=J.dtype)
    for n in range(len(f)):
        one, target = f[n : n + 1], y[n : n + 1]
        curvature = torch.autograd.functional.hessian(lambda g, target=target: loss(g, target), one)
        total += J[n].T @ curvature.reshape(one.numel(), one.numel()) @ J[n]
    return total / len(f)


@pytest.mark.parametrize(("case", "name"), CASES)
def test_exact_representations(case: str, name: str) -> None:
    model, x, y, loss = setting(case, name)
    wanted = expected(model, x, y, loss)
    assert_close(tt.gauss_newton(model, (x, y), loss, tt.Dense).dense(), wanted)
    assert_close(tt.gauss_newton(model, (x, y), loss, tt.Diagonal).diag(), wanted.diagonal())
    assert_close(tt.gauss_newton(model, (x, y), loss, tt.LowRank).dense(), wanted)
    V = torch.randn(len(wanted), 2, dtype=torch.float64)
    G = tt.gauss_newton(model, (x, y), loss, tt.Implicit)
    for _ in range(5):  # the fourth product keeps graphs
        assert_close(G @ V, wanted @ V)


def test_batches_of_other_sizes_give_the_same() -> None:
    model, x, y, loss = setting("mlp", "smoothed")
    wanted = expected(model, x, y, loss)
    loader = [(take(x, part), y[part]) for part in (slice(0, 1), slice(1, 4), slice(4, 6))]
    assert sum(len(part) for _, part in loader) == len(y)
    assert_close(tt.gauss_newton(model, loader, loss, tt.Dense).dense(), wanted)
    ones = torch.ones(len(wanted), dtype=torch.float64)
    assert_close(tt.gauss_newton(model, loader, loss, tt.Implicit) @ ones, wanted @ ones)


@pytest.mark.parametrize(
    "representation", [tt.Diagonal, tt.QuasiDiagonal, tt.KFAC, tt.KFAC(sharing="reduce"), tt.EKFAC]
)
def test_of_the_cross_entropy_it_is_the_fisher_matrix(representation: Any) -> None:
    """Also in representations that are no function of the whole matrix."""
    model, x, _ = ZOO["lenet"].build()
    y = classes(oracle.outputs(model, x))
    F = tt.fisher(model, (x, y), representation)
    assert_close(tt.gauss_newton(model, (x, y), functional.cross_entropy, representation).diag(), F.diag(), 1e-8)


def test_of_a_model_that_is_linear_in_its_parameters_it_is_the_hessian() -> None:
    model, x, _ = ZOO["linear-alone"].build()
    y = torch.randn_like(oracle.outputs(model, x))
    H = tt.hessian(model, (x, y), functional.huber_loss)
    assert_close(tt.gauss_newton(model, (x, y), functional.huber_loss, tt.Dense).dense(), H.dense())


@pytest.mark.parametrize("targets", [(6,), (6, 1)])
@pytest.mark.parametrize("representation", [tt.Dense, tt.Implicit])
def test_the_loss_sees_outputs_as_the_model_gives_them(targets: tuple[int, ...], representation: Any) -> None:
    """(N,) outputs, which count as one output, are not (N, 1) for a loss that would broadcast them."""
    torch.manual_seed(0)
    layers = [nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)] + ([nn.Flatten(0)] if len(targets) == 1 else [])
    model, x = nn.Sequential(*layers).double(), torch.randn(6, 2, dtype=torch.float64)
    y = torch.randint(2, targets).double()
    seen = []

    def loss(f: Tensor, y: Tensor) -> Tensor:
        seen.append(f.dim())
        return functional.binary_cross_entropy_with_logits(f, y)

    G = tt.gauss_newton(model, (x, y), loss, representation)
    assert_close(G.dense(), expected(model, x, y, functional.binary_cross_entropy_with_logits))
    assert set(seen) == {len(targets)}


def test_float32() -> None:
    model, x, y, loss = setting("mlp", "smoothed")
    wanted = expected(model, x, y, loss)
    G = tt.gauss_newton(model.float(), (x.float(), y), loss, tt.Dense)
    assert G.dtype == torch.float32
    assert oracle.relative_error(G.dense().double(), wanted) < 1e-5


def test_targets_may_be_more_than_a_tensor() -> None:
    model, x, y, _ = setting("mlp", "huber")
    weights = torch.rand(len(y), dtype=torch.float64)

    def loss(f: Tensor, targets: dict[str, Tensor]) -> Tensor:
        return (targets["w"] * (f - targets["y"]).square().sum(1)).mean()

    found = tt.gauss_newton(model, (x, {"y": y, "w": weights}), loss, tt.Dense)
    J = oracle.jacobian(model, x)
    assert_close(found.dense(), 2 / len(y) * torch.einsum("n,ncp,ncq->pq", weights, J, J))


@pytest.mark.parametrize("loss", [lambda f, y: (f * y).mean(), functional.l1_loss])
def test_a_loss_without_curvature_gives_zero_and_says_so(loss: Loss) -> None:
    model, x, y, _ = setting("mlp", "huber")
    with pytest.warns(tt.TangentWarning, match="The Gauss-Newton matrix is zero"):
        G = tt.gauss_newton(model, (x, y), loss, tt.Diagonal)
    assert not G.diag().any()
    assert not (tt.gauss_newton(model, (x, y), loss, tt.Implicit) @ torch.ones_like(G.diag())).any()


@pytest.mark.parametrize(
    ("loss", "error", "message"),
    [
        (lambda f, y: -f.square().mean(), ValueError, "not convex in the outputs"),
        (lambda f, y: f.square().sum(), ValueError, 'Use reduction="mean"'),
        (lambda f, y: f.square(), ValueError, "should be one number"),
        (lambda f, y: (f[:, 0].mean() - 1).square(), ValueError, "not a mean of one loss per sample"),
        (lambda f, y: functional.cross_entropy(f, (y[:, 0] > 0).long(), torch.tensor([1.0, 9.0, 1.0]).double()),
         ValueError, "weights"),
        (nn.MSELoss, TypeError, "loss should be a function, got a type"),
    ],
)  # fmt: skip
def test_losses_that_will_not_do(loss: Any, error: type[Exception], message: str) -> None:
    model, x, y, _ = setting("mlp", "huber")
    with pytest.raises(error, match=message):
        tt.gauss_newton(model, (x, y), loss, tt.Dense)


def test_implicit_products_take_no_root() -> None:
    """With many outputs: for a few hundred, an eigendecomposition for each sample would take a minute."""
    torch.manual_seed(0)
    model, x = nn.Linear(3, 600).double(), torch.randn(50, 3, dtype=torch.float64)
    y = torch.randint(600, (50,))
    v = torch.randn(2400, dtype=torch.float64)
    counted = []

    def loss(f: Tensor, y: Tensor) -> Tensor:
        counted.append(f)
        return functional.cross_entropy(f, y)

    p = model(x).softmax(1).detach()
    w = torch.cat([x, torch.ones(50, 1).double()], 1) @ torch.cat([v[:1800].view(600, 3), v[1800:, None]], 1).T
    u = p * (w - (p * w).sum(1, keepdim=True)) / 50
    expected = torch.cat([(u.T @ x).flatten(), u.sum(0)])
    assert_close(tt.gauss_newton(model, (x, y), loss, tt.Implicit) @ v, expected)
    assert_close(tt.fisher(model, (x, y), tt.Implicit) @ v, expected)
    assert len(counted) < 20


def test_a_loss_that_is_not_convex_has_products() -> None:
    model, x, y, _ = setting("mlp", "huber")
    G = tt.gauss_newton(model, (x, y), lambda f, y: (f - y).sin().sum(1).mean(), tt.Implicit)
    J, f = oracle.jacobian(model, x), oracle.outputs(model, x)
    assert_close(G.dense(), torch.einsum("ncp,nc,ncq->pq", J, -(f - y).sin(), J) / len(x))


@pytest.mark.parametrize("call", ["hessian", "gauss_newton"])
def test_outputs_of_many_axes(call: str) -> None:
    """Classes of pixels, (N, C, H, W), as the loss takes them."""
    torch.manual_seed(0)
    model, x, y = nn.Conv2d(1, 3, 2).double(), torch.randn(4, 1, 3, 3).double(), torch.randint(3, (4, 2, 2))
    found = {
        "hessian": lambda: tt.hessian(model, (x, y), functional.cross_entropy),
        "gauss_newton": lambda: tt.gauss_newton(model, (x, y), functional.cross_entropy, tt.Dense),
    }[call]()
    J, f = oracle.jacobian(model, x, lambda f: f.flatten(1)), oracle.outputs(model, x)
    curvature = torch.autograd.functional.hessian(lambda f: functional.cross_entropy(f, y), f).reshape(48, 48)
    assert_close(found.dense(), J.flatten(0, 1).T @ curvature @ J.flatten(0, 1))


def test_many_outputs_are_said_to_be_slow() -> None:
    model, x, y = nn.Linear(2, 300), torch.randn(3, 2), torch.randint(300, (3,))
    with pytest.warns(tt.TangentWarning, match=r"takes 300 backward passes .* tt\.Implicit does without"):
        tt.gauss_newton(model, (x, y), functional.cross_entropy, tt.Diagonal)
