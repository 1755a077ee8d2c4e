"""What the check on the first samples cannot see is checked when it can be seen."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import oracle
import pytest
import torch
from oracle import assert_close
from torch import Tensor, nn

import torchtangent as tt
from torchtangent.jacobians.rules import RULES, rule


class TimeFirst(nn.Module):
    """Its second layer is given (time · samples, features) behind a ReLU that is dead for small inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(3, 2), nn.Linear(2, 2), nn.Linear(2, 1)
        with torch.no_grad():
            self.first.weight.fill_(0.5)
            self.first.bias.zero_()
            self.second.weight.fill_(0.5)
            self.second.bias.fill_(-3.0)

    def forward(self, x: Tensor) -> Tensor:
        turned = self.first(x).transpose(0, 1)
        h = self.second(turned.flatten(0, 1)).unflatten(0, turned.shape[:2]).transpose(0, 1)
        return self.head(torch.relu(h))


@pytest.mark.parametrize("alive", [[2, 3, 4], [1, 2, 3, 4], [4], []])
def test_a_wrong_sample_axis_behind_dead_units(alive: list[int]) -> None:
    model = TimeFirst().double()
    x = -torch.ones(5, 4, 3, dtype=torch.float64)
    x[alive] = 3 + 3 * torch.rand(len(alive), 4, 3, dtype=torch.float64)
    J = oracle.jacobian(model, x)
    assert_close(tt.jacobian(model, x).dense(), J)
    K = torch.einsum("ncp,mep->nmce", J.flatten(1, -2), J.flatten(1, -2))
    assert_close(tt.ntk(model, x), K)
    F = torch.einsum("ncp,ncq->pq", J.flatten(1, -2), J.flatten(1, -2)) / len(x)
    batches = [(x[:2], None), (x[2:4], None), (x[4:], None)]
    assert_close(tt.fisher(model, batches, tt.Dense, likelihood="gaussian").dense(), F)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("outputs", [1, 3, 4])
def test_a_fallback_that_was_not_needed_at_the_check(outputs: int) -> None:
    """Torch's own rule for a batch of PReLUs is wrong, which two samples in their order do not show."""

    class Reversed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.prelu, self.head = nn.PReLU(), nn.Linear(3, outputs)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.prelu(x[turn(len(x))])[turn(len(x))])

    def turn(n: int) -> list[int]:
        return [*range(min(n, 2)), *reversed(range(2, n))]

    model, x = Reversed().double(), torch.randn(4, 3, dtype=torch.float64)
    assert_close(tt.jacobian(model, x).dense(), oracle.jacobian(model, x))


class Prototypes(nn.Module):
    """Distances to some points, of which torch's derivative is wrong for several cotangents at once."""

    def __init__(self, body: nn.Module, **options: Any) -> None:
        super().__init__()
        self.body, self.points, self.options = body, nn.Parameter(torch.randn(3, 4)), options

    def forward(self, x: Tensor) -> Tensor:
        return -torch.cdist(self.body(x), self.points, **self.options)


class Share(nn.Module):
    """A number that is no tensor's factor by itself, as in graph networks."""

    def __init__(self) -> None:
        super().__init__()
        self.eps, self.head = nn.Parameter(torch.tensor(0.3)), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((1 + self.eps) * x) / (2 - self.eps)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(
    "make",
    [
        lambda: Prototypes(nn.Identity()),
        lambda: Prototypes(nn.Linear(4, 4)),
        lambda: Prototypes(nn.Linear(4, 4), p=1.0),
        lambda: Prototypes(nn.Linear(4, 4), compute_mode="donot_use_mm_for_euclid_dist"),
        Share,
    ],
)
def test_what_torch_gets_wrong_for_several_cotangents(make: Callable[[], nn.Module]) -> None:
    model, x = make().double(), torch.randn(6, 4, dtype=torch.float64)
    J = oracle.jacobian(model, x)
    assert_close(tt.jacobian(model, x).dense(), J)
    assert_close(tt.ntk(model, x), torch.einsum("ncp,mep->nmce", J, J))
    F = torch.einsum("ncp,ncq->pq", J, J) / len(x)
    assert_close(tt.fisher(model, (x, None), tt.Dense, likelihood="gaussian").dense(), F)


class Experts(nn.Module):
    """Each sample goes to its expert, which takes three only: the first, or the last."""

    def __init__(self, *, last: bool) -> None:
        super().__init__()
        self.experts, self.last = nn.ModuleList(nn.Linear(4, 3) for _ in range(2)), last

    def forward(self, x: Tensor) -> Tensor:
        chosen = (x[:, 0] > 0).long()
        order = [(chosen == k).flip(0).cumsum(0).flip(0) if self.last else (chosen == k).cumsum(0) for k in range(2)]
        rank = torch.stack(order, 1).gather(1, chosen[:, None])
        f = torch.stack([expert(x) for expert in self.experts], 1)[torch.arange(len(x)), chosen]
        return f * (rank <= 3)


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize(
    "ask", ["jacobian", "J v", "Jᵀu", "gradients", "ntk", "fisher", "implicit", "hessian", "a larger batch"]
)
def test_samples_that_interact_in_large_batches_only(ask: str, last: bool) -> None:
    model, x, y = Experts(last=last), torch.randn(20, 4), torch.zeros(20, 3)
    v = torch.randn(30)
    apart = x[torch.cat([(x[:, 0] > 0).nonzero()[:2, 0], (x[:, 0] <= 0).nonzero()[:2, 0]])]  # within the capacity
    asks = {
        "jacobian": lambda: tt.jacobian(model, x).dense(),
        "J v": lambda: tt.jacobian(model, x) @ v,
        "Jᵀu": lambda: tt.jacobian(model, x).T @ torch.ones(20, 3),
        "gradients": lambda: tt.gradients(model, (x, y), lambda f, y: (f - y).square().sum(1)) @ v,
        "ntk": lambda: tt.ntk(model, x),
        "fisher": lambda: tt.fisher(model, (x, None), tt.Diagonal),
        "implicit": lambda: tt.fisher(model, (x, None), tt.Implicit) @ v,
        "hessian": lambda: tt.hessian(model, (x, y), nn.functional.mse_loss) @ v,
        "a larger batch": lambda: tt.fisher(model, [(apart, None), (x, None)], tt.Diagonal),
    }
    with pytest.raises(ValueError, match=r"for a sample changes by .* in a batch of \d+, as where experts"):
        asks[ask]()


def test_little_mixing_in_float64() -> None:
    """Which has no kernels in 16 bits."""

    class Centered(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            h = super().forward(x)
            return h - 0.02 * h.mean(0) if len(x) > 2 else h

    with pytest.raises(ValueError, match="for a sample changes by"):
        tt.jacobian(Centered(3, 2).double(), torch.randn(6, 3).double()).dense()


class Offset(nn.Module):
    """Predicts years, as numbers around 2000: what happens in the network hardly shows in them."""

    def __init__(self, mix: Callable[[Tensor], Tensor], offset: float) -> None:
        super().__init__()
        self.body, self.head, self.mix, self.offset = nn.Linear(3, 16), nn.Linear(16, 2), mix, offset

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.mix(self.body(x).relu())) * torch.tensor([1.0, 1e-3]) + self.offset


@pytest.mark.parametrize("offset", [0.0, 500.0, 5000.0])
@pytest.mark.parametrize(
    "mix",
    [
        lambda h: nn.functional.dropout(h, 0.1),
        lambda h: h - h.mean(0),
        lambda h: torch.cat([h[:1], h[1:] - h[:-1]]),  # which spares the first sample
    ],
)
def test_mixing_and_chance_behind_a_large_constant(mix: Callable[[Tensor], Tensor], offset: float) -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 3)
    tt.jacobian(Offset(nn.Identity(), offset), x)
    with pytest.raises(ValueError, match="The model mixes samples or is random"):
        tt.jacobian(Offset(mix, offset), x)


@pytest.mark.parametrize(("dtype", "offset"), [(torch.float32, 1e6), (torch.float64, 1e9)])
def test_mixing_below_the_rounding_of_a_constant(dtype: torch.dtype, offset: float) -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 3, dtype=dtype)
    tt.jacobian(Offset(nn.Identity(), offset).to(dtype), x)
    with pytest.raises(ValueError, match="The model mixes samples or is random"):
        tt.jacobian(Offset(lambda h: h - h.mean(0), offset).to(dtype), x)


class Narrow(nn.Module):
    """Computes in float32 what is said to need it, whatever the dtype of the model, as models of others do."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.h = nn.Linear(16, 33), nn.Linear(33, 33), nn.Linear(33, 3)
        self.scale = nn.Parameter(torch.randn(16))

    def forward(self, x: Tensor) -> Tensor:
        h = self.a((x.float() * (1 + self.scale.float())).to(x.dtype))
        h = (h.float() @ self.b.weight.float()).to(h.dtype)
        return self.h(self.b(h.softmax(1, dtype=torch.float32).to(h.dtype)))


def test_float32_inside_of_a_network_in_float64() -> None:
    """No warning of a slower way, no parameter without its rule."""
    torch.manual_seed(0)
    model, x = Narrow().double(), torch.randn(7, 16).double()
    J, v = oracle.jacobian(model, x), torch.randn(oracle.jacobian(model, x).shape[-1], dtype=torch.float64)
    assert_close(tt.jacobian(model, x) @ v, J @ v, 1e-5)
    assert_close(tt.ntk(model, x, reduce="trace"), torch.einsum("ncp,mcp->nm", J, J), 1e-5)
    lin = tt.linearize(model)
    oracle.move(lin, v)
    assert_close(lin(x) - model(x), J @ v, 1e-5)
    kfac = tt.KFAC(rest=tt.BlockDiagonal)
    wide = tt.fisher(model, (x, None), kfac).trace()
    assert_close(wide, tt.fisher(model.float(), (x.float(), None), kfac).trace().double(), 1e-4)


@pytest.mark.parametrize("error", [AssertionError, KeyError, NotImplementedError])
def test_models_for_one_sample_at_a_time(error: type[Exception]) -> None:
    class Single(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if len(x) != 1:
                raise error
            return super().forward(x)

    model, x = Single(4, 3).double(), torch.randn(1, 4).double()
    J = oracle.jacobian(model, x)[0]
    for kind in (tt.Dense, tt.KFAC):
        assert_close(tt.fisher(model, (x, None), kind, likelihood="gaussian").dense(), J.T @ J)


class Timed(nn.Module):
    """A network that is also given a time, and perhaps a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.h = nn.Linear(3, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor, t: float = 1.0, mask: Tensor | None = None) -> Tensor:
        h = (self.a(x) * t).tanh()
        return self.h(h if mask is None else h * mask)


def test_batches_that_differ_in_more_than_samples() -> None:
    """The first samples come again in the second batch, with another time or a mask."""
    torch.manual_seed(0)
    model, x = Timed().double(), 3 * torch.randn(4, 3).double()
    mask = torch.rand(4, 1).double()
    for one, other in (
        ((x[:2], 0.1), (x, 3.0)),
        ({"x": x[:2]}, {"x": x, "mask": mask}),
        ({"x": x[:2], "mask": mask[:2]}, {"x": x}),
    ):
        found = tt.fisher(model, [(one, None), (other, None)], tt.Diagonal, likelihood="gaussian").diag()
        parts = [tt.fisher(model, (inputs, None), tt.Diagonal, likelihood="gaussian").diag() for inputs in (one, other)]
        assert_close(found, (2 * parts[0] + 4 * parts[1]) / 6)


class Positions(nn.Module):
    """A layer that all samples share, of (1, T, d)."""

    def __init__(self) -> None:
        super().__init__()
        self.pos = nn.Parameter(torch.randn(1, 5, 4))
        self.shared, self.own, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((self.own(x) + self.shared(self.pos)).tanh().mean(1))


@pytest.mark.usefixtures("quiet")  # which parameters have Kronecker factors
@pytest.mark.parametrize("kind", [tt.KFAC, tt.EKFAC])
@pytest.mark.parametrize("sizes", [[1, 1, 1, 1], [1, 3], [3, 1], [2, 2]])
def test_shared_layers_whatever_the_batches(kind: Any, sizes: list[int]) -> None:
    torch.manual_seed(0)
    model, x = Positions().double(), torch.randn(4, 5, 4).double()
    whole = tt.fisher(model, (x, None), kind, likelihood="gaussian").dense()
    parts = [(part, None) for part in x.split(sizes)]
    assert_close(tt.fisher(model, parts, kind, likelihood="gaussian").dense(), whole)


def replaced(function: Callable[[Tensor], Tensor]) -> nn.Module:
    """A network whose first layer got another forward, as quantization libraries do it."""
    torch.manual_seed(0)
    layer = nn.Linear(8, 16)
    layer.forward = lambda x: nn.functional.linear(function(x), layer.weight, layer.bias)  # type: ignore[method-assign]
    return nn.Sequential(layer, nn.Tanh(), nn.AdaptiveAvgPool2d((1, None)), nn.Flatten(), nn.Linear(16, 3))


@pytest.mark.parametrize("function", [torch.round, lambda x: x.roll(1, 1), lambda x: x.clamp(-3, 3)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.bfloat16, 0.05)])
def test_a_layer_with_another_forward(
    function: Callable[[Tensor], Tensor], dtype: torch.dtype, tolerance: float
) -> None:
    """What it does to its input may not show in the first and last sample, or drown in rounding."""
    model, x = replaced(function).to(dtype), torch.randn(5, 64, 8).to(dtype)
    x[2] *= 20
    J = oracle.jacobian(replaced(function).double(), x.double())
    assert (tt.jacobian(model, x).dense().double() - J).norm() < tolerance * J.norm()


@pytest.mark.parametrize("scale", [1e-24, 1e20])
def test_the_check_where_squares_leave_the_range_of_float32(scale: float) -> None:
    class Doubled(nn.Linear):
        pass

    @rule(Doubled)
    def wrong(module: nn.Linear, x: Tensor, d: Tensor) -> dict[str, Any]:
        return RULES[nn.Linear](module, 2 * x, d)

    try:
        model, x = nn.Sequential(Doubled(3, 4), nn.Tanh(), nn.Linear(4, 2)), torch.randn(5, 3)
        f = tt.jacobian(model, x, output=lambda f: f * scale)
        J = oracle.jacobian(copy.deepcopy(model).double(), x.double())
        assert (f.dense() / scale - J).norm() < 1e-5 * J.norm()
    finally:
        del RULES[Doubled]


def chaotic(depth: int) -> nn.Module:
    """A network that doubles every difference between its inputs, layer by layer."""
    torch.manual_seed(0)
    layers = [nn.Linear(100, 100) for _ in range(depth)]
    for layer in layers:
        nn.init.normal_(layer.weight, std=0.3)
    return nn.Sequential(*[module for layer in layers for module in (layer, nn.Tanh())], nn.Linear(100, 2))


def test_rounding_in_deep_networks_is_told_from_mixed_samples() -> None:
    x = torch.randn(6, 100)
    with pytest.warns(tt.TangentWarning, match=r"In float32 rounding alone changes the outputs .* chaotic"):
        K = tt.ntk(chaotic(32), x, reduce="trace")
    exact = tt.ntk(chaotic(32).double(), x.double(), reduce="trace")
    assert float((K - exact).norm() / exact.norm()) < 0.05
    with pytest.raises(ValueError, match=r"In float32 rounding alone .* Pass model.double\(\)"):
        tt.ntk(chaotic(60), x)
    tt.ntk(chaotic(60).double(), x.double())
    with pytest.raises(ValueError, match=r"In float32 rounding alone .* Pass model.double\(\)"):  # with more axes, too
        tt.hessian(nn.Sequential(chaotic(60), nn.Unflatten(1, (2, 1, 1))), (x, x), lambda f, y: f.square().mean())


def test_outputs_as_long_as_the_longest_sample_are_told() -> None:
    class Cropped(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x[:, : int(x[:, :, 0].ne(0).sum(1).max())])

    x = torch.randn(5, 4, 3)
    x[[0, 4], 2:] = 0
    with pytest.raises(ValueError, match=r"\(4, 2\) in a batch of 5, and \(2, 2\) in a smaller one.* pad all samples"):
        tt.jacobian(Cropped(3, 2), x).dense()


def test_rows_that_are_partly_of_another_sample() -> None:
    """Constant rows that two samples share, in a batch that is not the first of its kind."""

    class Codes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.generate = nn.Linear(3, 2)
            self.register_buffer("codes", torch.randn(4, 3))

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(self.generate(self.codes))[x[:, 0].long()] * x[:, 1:2]

    model = Codes().double()
    a, b = (torch.tensor([[i, 1.0] for i in index], dtype=torch.float64) for index in ([0, 1, 2, 3], [0, 0, 2, 3]))
    b[1, 1] = 0.1
    J = torch.cat([oracle.jacobian(model, x) for x in (a, b)])
    F = tt.fisher(model, [(a, None), (b, None)], tt.Dense, likelihood="gaussian").dense()
    assert_close(F, torch.einsum("ncp,ncq->pq", J, J) / len(J))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_batch_norm_in_half_precision(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    model(torch.randn(20, 4))
    model, x = model.eval().to(dtype), torch.randn(6, 4).to(dtype)
    J = oracle.jacobian(copy.deepcopy(model).double(), x.double())
    assert (tt.jacobian(model, x).dense() - J).norm() < 0.05 * J.norm()


@pytest.mark.parametrize("samples", [1, 2, 5])
def test_random_models_are_noticed_also_by_one_sample(samples: int) -> None:
    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(30, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(nn.functional.dropout(x, 0.5))

    for seed in range(3):
        torch.manual_seed(seed)
        with pytest.raises(ValueError, match="mixes samples or is random"):
            tt.ntk(Dropped(), torch.ones(samples, 30))


class Behind(nn.Module):
    """An operation before a head whose weights are still zero, so that outputs tell nothing about it."""

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.change, self.body, self.head = change, nn.Linear(3, 4), nn.Linear(4, 2)
        for p in self.head.parameters():
            nn.init.zeros_(p)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.change(self.body(x).tanh()))


@pytest.mark.parametrize("change", [lambda h: h - h.mean(0), lambda h: nn.functional.dropout(h, 0.3)])
def test_mixing_and_chance_before_a_head_of_zeros(change: Callable[[Tensor], Tensor]) -> None:
    model, x = Behind(change).double(), torch.randn(5, 3, dtype=torch.float64)
    with pytest.raises(ValueError, match="gradient of a sample's output by 'head"):
        tt.jacobian(model, x)
    with pytest.raises(ValueError, match="gradient of a sample's output by 'head"):
        tt.jacobian(Behind(lambda h: h - 0.01 * change(h)), x.float())
    plain = Behind(torch.sin).double()
    assert_close(tt.jacobian(plain, x).dense(), oracle.jacobian(plain, x))


@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_a_wrong_rule_is_noticed_in_half_precision_when_norms_overflow(scale: float) -> None:
    layer = nn.Linear(40_000, 2, bias=False)  # patched, since a subclass would not be taken for one that has a rule
    layer.__dict__["forward"] = lambda x: nn.functional.linear(2 * x, layer.weight)
    x = (scale * torch.rand(3, 40_000)).half()
    torch.testing.assert_close(tt.jacobian(layer.half(), x).dense()[:, 0, :40_000], 2 * x.float())


@pytest.mark.parametrize("samples", [1, 2])
def test_layers_are_those_of_the_model_as_it_is_now(samples: int) -> None:
    """Nothing of the first look at a model stands for a later result."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.scale = nn.Linear(3, 2), 1.0

        def forward(self, x: Tensor) -> Tensor:
            return self.scale * self.layer(x)

    model, x = Scaled(), torch.ones(samples, 3)
    J = tt.jacobian(model, x)
    model.scale = 5.0
    assert J.layers["layer.bias"].dense().max() == J.dense().max() == 5.0
