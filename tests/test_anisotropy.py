"""Anisotropy directions against the dense mixed derivative, a closed form, and Stein's lemma."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from oracle import assert_close
from torch import Tensor, nn

import torchtangent as tt
from torchtangent import anisotropy
from torchtangent.anisotropy import MixedDerivative, directions

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's own, in forward mode


def mlp(activation: type[nn.Module] = nn.Tanh) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), activation(), nn.Linear(8, 5), activation(), nn.Linear(5, 1))


def conv() -> nn.Module:
    body = (nn.Conv2d(2, 3, 3, padding=1), nn.GELU(), nn.AvgPool2d(2), nn.Conv2d(3, 4, 2), nn.GELU(), nn.Flatten())
    return nn.Sequential(*body, nn.Linear(16, 1))


def normed() -> nn.Module:
    net = nn.Sequential(
        nn.Conv1d(2, 4, 2), nn.BatchNorm1d(4), nn.GELU(), nn.Flatten(), nn.LayerNorm(12), nn.Linear(12, 1)
    )
    net[1].running_mean.normal_()
    net[1].running_var.uniform_(0.5, 2)
    return net.eval()


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp, (6,)),
    "conv": (conv, (2, 6, 6)),
    "norms": (normed, (2, 4)),
    "more inputs than parameters": (lambda: nn.Sequential(nn.Conv1d(1, 2, 3), nn.Tanh(), nn.Conv1d(2, 1, 18)), (1, 20)),
}


@pytest.fixture(params=NETS)
def net(request: pytest.FixtureRequest) -> tuple[nn.Module, tuple[int, ...]]:
    make, shape = NETS[request.param]
    return make().double(), shape


def flat(result: Any) -> Tensor:
    return result.flatten()[0]


def dense(model: nn.Module, x: Tensor, pick: Callable[[Any], Tensor] = flat, names: tuple[str, ...] = ()) -> Tensor:
    """mean_n ∂²f(x_n)/∂θ∂x, (P, d), forward over reverse mode, each sample alone."""
    parameters = {n: p.detach() for n, p in model.named_parameters() if not names or n in names}

    def gradient(x: Tensor) -> Tensor:
        def f(values: dict[str, Tensor]) -> Tensor:
            return pick(torch.func.functional_call(model, values, x.unsqueeze(0)))

        return torch.cat([g.flatten() for g in torch.func.grad(f)(parameters).values()])

    return torch.stack([torch.func.jacfwd(gradient)(one).flatten(1) for one in x]).mean(0)


def check(found: anisotropy.Directions, M: Tensor, k: int, tolerance: float = 1e-8) -> None:
    """Values, and M's action on the vectors: orthogonal images of the right lengths, whatever the signs and ties."""
    values, vectors = found
    s = torch.linalg.svdvals(M)[:k]
    V = vectors.flatten(1).double()
    assert values.shape == (k,)
    assert ((values - s).abs() <= tolerance * s[0]).all()
    assert (values.diff() <= 0).all()
    assert (V @ V.T - torch.eye(k)).abs().max() <= tolerance
    assert ((M @ V.T).T @ (M @ V.T) - s.square().diag()).abs().max() <= tolerance * s[0] ** 2
    assert_close(found.alignments, values.square())


@pytest.mark.parametrize("samples", [None, 1, 5])
def test_all_directions(net: tuple[nn.Module, tuple[int, ...]], samples: int | None) -> None:
    model, shape = net
    x = None if samples is None else torch.randn(samples, *shape, dtype=torch.float64)
    M = dense(model, torch.zeros(1, *shape, dtype=torch.float64) if x is None else x)
    found = directions(model, shape, x=x)
    assert found.vectors.shape == (min(M.shape), *shape)
    check(found, M, min(M.shape))


def test_some_directions_span_the_right_space(net: tuple[nn.Module, tuple[int, ...]]) -> None:
    model, shape = net
    x = torch.randn(3, *shape, dtype=torch.float64)
    M = dense(model, x)
    found = directions(model, shape, 2, x=x)
    check(found, M, 2)
    V = torch.linalg.svd(M)[2][:2]
    assert_close(found.vectors.flatten(1).T @ found.vectors.flatten(1), V.T @ V, 1e-8)  # no tie in these networks


def test_sign(net: tuple[nn.Module, tuple[int, ...]]) -> None:
    model, shape = net
    V = directions(model, shape).vectors.flatten(1)
    assert (V.gather(1, V.abs().argmax(1, keepdim=True)) > 0).all()


def test_float32() -> None:
    model = conv()
    found = directions(model, (2, 6, 6), 20)
    assert found.values.dtype == found.vectors.dtype == torch.float32
    check(found, dense(model.double(), torch.zeros(1, 2, 6, 6, dtype=torch.float64)), 20, 1e-5)


def test_small_singular_values_keep_their_digits() -> None:
    """The root of an eigenvalue of MᵀM would have four digits of the smallest."""
    Q = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64)).Q
    scale = torch.tensor([1.0, 1e-3, 1e-6], dtype=torch.float64)
    found = directions(nn.Sequential(Mapped(scale[:, None] * Q), nn.Linear(3, 1, bias=False).double()), (3,))
    assert (found.values / scale - 1).abs().max() <= 1e-8


class Mapped(nn.Module):
    """A x for a constant A."""

    def __init__(self, A: Tensor) -> None:
        super().__init__()
        self.A = A

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.A.T


def test_products_are_adjoint_and_dense(net: tuple[nn.Module, tuple[int, ...]]) -> None:
    model, shape = net
    x = torch.randn(4, *shape, dtype=torch.float64)
    M, mixed = dense(model, x), MixedDerivative(model, shape, x)
    V, W = (torch.randn(n, 3, dtype=torch.float64) for n in (M.shape[1], M.shape[0]))
    assert mixed.shape == M.shape
    assert_close(mixed.push(V), M @ V)
    assert_close(mixed.pull(W), M.T @ W)
    assert_close(W.T @ mixed.push(V), (V.T @ mixed.pull(W)).T)


def test_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = conv().double(), torch.randn(7, 2, 6, 6, dtype=torch.float64)
    whole = directions(model, (2, 6, 6), x=x)
    monkeypatch.setattr(anisotropy, "BUDGET", 0)
    mixed = MixedDerivative(model, (2, 6, 6), x)
    assert mixed._samples < 7
    assert mixed._columns < 72
    assert_close(directions(model, (2, 6, 6), x=x).values, whole.values)


def test_chosen_parameters_and_output() -> None:
    body = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    M = dense(body, torch.zeros(1, 5).double(), lambda f: f[0, 2], ("0.weight", "0.bias"))
    check(directions(body, (5,), params="0.*", output=lambda f: f[:, 2]), M, 5)


def test_linear_network_has_no_favourite() -> None:
    s, v = directions(nn.Linear(4, 1).double(), (4,))
    assert_close(s, torch.ones(4))
    assert_close(v @ v.T, torch.eye(4))


def test_many_inputs_by_iteration() -> None:
    """f = aᵀφ(Wx + b) at the origin: MᵀM = Σ(aφ')² · I + Σ((aφ'')² + φ'²) wwᵀ, above the size that is formed."""
    d = 2050
    model = nn.Sequential(nn.Linear(d, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    W, b, a, _ = (p.detach() for p in model.parameters())
    first = 1 - b.tanh() ** 2
    second = -2 * b.tanh() * first
    R = ((a[0] * second) ** 2 + first**2).sqrt()[:, None] * W
    expected = (torch.linalg.svdvals(R) ** 2 + ((a[0] * first) ** 2).sum()).sqrt()
    found = directions(model, (d,), 3)
    assert_close(found.values, expected[:3], 1e-8)
    assert_close((found.vectors @ R.T).norm(dim=1), torch.linalg.svdvals(R)[:3], 1e-8)


class Square(torch.autograd.Function):
    """x² with a backward pass that no vmap can run: it looks at numbers."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * g if float(g.sum()) > 0 else x * g * 2


class Cube(torch.autograd.Function):
    """x³, whose second derivative goes through `Square`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 3 * Square.apply(ctx.saved_tensors[0]) * g


class Cubic(nn.Module):
    """w·(Ax)³, by torch or by `Cube`."""

    def __init__(self, own: bool) -> None:
        super().__init__()
        self.inner, self.outer, self.own = nn.Linear(3, 4), nn.Linear(4, 1), own

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x)
        return self.outer(Cube.apply(h) if self.own else h**3)


@pytest.mark.usefixtures("quiet")
def test_what_torch_cannot_vectorize_is_done_one_by_one() -> None:
    model, same = Cubic(own=True).double(), Cubic(own=False).double()
    same.load_state_dict(model.state_dict())
    x = torch.randn(2, 3, dtype=torch.float64)
    M, mixed = dense(same, x), MixedDerivative(model, (3,), x)
    assert_close(mixed.push(torch.eye(3).double()), M)
    assert not mixed._batched
    check(directions(model, (3,), x=x), M, 3)


def lemma(activation: type[nn.Module], samples: int = 20_000) -> tuple[Tensor, Tensor, Tensor]:
    """s of the directions, ‖E[⟨v,x⟩∇f]‖ of Lemma 1, and the standard error of E[⟨v,x⟩∇f] − Mv, for Gaussian x."""
    model = nn.Sequential(nn.Linear(3, 4), activation(), nn.Linear(4, 1)).double()
    parameters = {n: p.detach() for n, p in model.named_parameters()}
    x = torch.randn(samples, 3, dtype=torch.float64)

    def gradient(x: Tensor) -> Tensor:
        found = torch.func.grad(lambda v: torch.func.functional_call(model, v, x[None]).sum())(parameters)
        return torch.cat([g.flatten() for g in found.values()])

    found = directions(model, (3,), x=x)
    V = found.vectors
    terms = torch.einsum("nd,kd,np->nkp", x, V, torch.vmap(gradient)(x))
    mixed = torch.einsum("npd,kd->nkp", torch.vmap(torch.func.jacfwd(gradient))(x), V)
    error = (terms - mixed).square().sum((0, 2)).sqrt() / samples
    return found.values, terms.mean(0).norm(dim=1), error


def test_alignment_of_linear_functions() -> None:
    """Theorem 1: √α(g_v) of Lemma 1 is s, within three standard errors, which are small."""
    s, root, error = lemma(nn.GELU)
    assert ((root - s).abs() <= 3 * error).all()
    assert (error <= 0.05 * s).all()


def test_alignment_needs_a_smooth_activation() -> None:
    with pytest.warns(tt.TangentWarning, match=r"^ReLU '1' is not smooth.* such as GELU"):
        s, root, error = lemma(nn.ReLU)
    assert ((root - s).abs() > 5 * error).any()


@pytest.mark.parametrize("activation", [nn.LeakyReLU, nn.PReLU, nn.Hardtanh, nn.Hardswish, nn.SELU])
def test_kinks_are_said(activation: type[nn.Module]) -> None:
    model = nn.Sequential(nn.Linear(3, 4), activation(), nn.Linear(4, 1))
    with pytest.warns(tt.TangentWarning, match=f"^{activation.__name__} '1' is not smooth"):
        directions(model, 3)


def test_of_several_kinks_one_is_named() -> None:
    model = nn.Sequential(nn.Conv1d(1, 3, 3), nn.MaxPool1d(2), nn.ReLU(), nn.Flatten(), nn.Linear(6, 1))
    with pytest.warns(tt.TangentWarning, match="^MaxPool1d '1' is not smooth") as said:
        directions(model, (1, 6), 2)
    assert len(said) == 1


def test_the_model_is_left_alone() -> None:
    model = normed()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    random = torch.get_rng_state()
    directions(model, (2, 4), 3)
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert not any(m._forward_hooks for m in model.modules())
    assert torch.equal(torch.get_rng_state(), random)


def test_errors() -> None:
    net = mlp()
    with pytest.raises(ValueError, match=r"k must be between 1 and min\(d, P\) = min\(6, 107\) = 6, got 7"):
        directions(net, (6,), 7)
    with pytest.raises(ValueError, match=r"k must be between 1 and .* got 0"):
        directions(net, (6,), 0)
    with pytest.raises(ValueError, match=r"inputs of shape \(N, 6\), got \(2, 5\) of torch.float32"):
        directions(net, (6,), x=torch.zeros(2, 5))
    with pytest.raises(ValueError, match=r"floating-point inputs of shape \(N, 6\), got \(2, 6\) of torch.int64"):
        directions(net, (6,), x=torch.zeros(2, 6, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"outputs of shape \(3,\), but directions belong to one of them. Pick it by"):
        directions(nn.Linear(6, 3), (6,))
    with pytest.raises(ValueError, match="BatchNorm1d '1' is in training mode"):
        directions(normed().train(), (2, 4))
    with pytest.raises(ValueError, match=r"shape=\(2, -4\) should hold the sizes of a single input"):
        directions(net, (2, -4))


def test_a_shape_that_the_model_does_not_take() -> None:
    for shape in (5, (5,), (6, 5)):
        with pytest.raises(ValueError, match=r"failed on .* inputs of shape \(N, .*5\) \(.* as x.shape\[1:\]"):
            directions(mlp(), shape)
    words = nn.Sequential(nn.Embedding(6, 3), nn.Flatten(), nn.Linear(6, 1))
    with pytest.raises(ValueError, match="A model of tokens has no directions: pass what follows its embedding"):
        directions(words, (2,))


def test_a_number_is_a_shape() -> None:
    model = mlp()
    found, expected = directions(model, 6, 2), directions(model, (6,), 2)
    assert found.vectors.shape == (2, 6)
    assert torch.equal(found.vectors, expected.vectors)


@pytest.mark.skipif("TORCHTANGENT_SHAPES" in os.environ, reason="the shape checks would speak first")
def test_what_a_shape_may_be() -> None:
    model = mlp()
    expected = directions(model, (6,), 2)
    for shape in (np.int64(6), np.array([6]), [np.int32(6)], torch.Size([6])):
        assert torch.equal(directions(model, shape, 2).vectors, expected.vectors)
    for shape in (6.0, (2, 0.5), "6", None):
        with pytest.raises(ValueError, match=r"shape=.* should hold the sizes of a single input"):
            directions(model, shape)
    with pytest.raises(ValueError, match=r"should hold the sizes of a single input") as caught:
        directions(model, [0.5] * 10_000)
    assert len(str(caught.value)) < 200


@pytest.mark.skipif("TORCHTANGENT_SHAPES" in os.environ, reason="the shape checks would speak first")
def test_data_in_the_place_of_a_shape() -> None:
    """Said in a line, without the data."""
    x, net = torch.randn(100, 6, requires_grad=True), mlp()
    said = (
        r"^shape= is the shape of a single input, such as x\.shape\[1:\], but got a (Tensor|ndarray) of shape \(.*\)\. "
    )
    for data in (x, x.detach().numpy(), x[0], torch.randint(9, (100, 6)), torch.zeros(100, 6, dtype=torch.bool)):
        with pytest.raises(ValueError, match=said + r"Data go to x=: directions\(model, x\.shape\[1:\], x=x\)\.$"):
            directions(net, data)


@pytest.mark.skipif("TORCHTANGENT_SHAPES" in os.environ, reason="the shape checks would speak first")
def test_inputs_are_a_tensor_or_an_array() -> None:
    model, x = mlp(), torch.randn(3, 6, dtype=torch.float64)
    found = directions(model, 6, x=x.numpy()[::-1])
    expected = directions(model, 6, x=x.to(next(model.parameters()).dtype))
    torch.testing.assert_close(found.values, expected.values)
    for other in ((x,), {"x": x}, x.tolist()):
        with pytest.raises(TypeError, match=rf"x should be .* inputs of shape \(N, 6\), .* {type(other).__name__}"):
            directions(model, 6, x=other)


def test_relu_at_the_origin() -> None:
    net = nn.Sequential(nn.Linear(6, 8, bias=False), nn.ReLU(), nn.Linear(8, 1, bias=False))
    with pytest.raises(ValueError, match=r"exactly zero at the origin, so it has no directions.* such as GELU"):
        directions(net, (6,))
    with pytest.raises(ValueError, match="exactly zero at the inputs"):
        directions(net, (6,), x=torch.zeros(2, 6))


class Root(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.abs().sqrt()


def test_a_kink_is_named() -> None:
    with pytest.raises(ValueError, match=r"has NaN or infinity although f is finite .* Pass inputs x="):
        directions(nn.Sequential(Root(), nn.Linear(3, 1)), (3,))
