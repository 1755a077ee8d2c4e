"""jacobian() against the oracle, for every model of the zoo."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any

import oracle
import pytest
import torch
from cases import ZOO, Case, every_case
from oracle import assert_close, take
from torch import Tensor, nn

import torchtangent as tt
from torchtangent.jacobians import inputs


def mlp() -> tuple[nn.Module, Tensor]:
    model, x, _ = ZOO["mlp"].build()
    return model, x


# ---------------------------------------------------------------------------------------------- the zoo


@every_case
@pytest.mark.usefixtures("silence")
def test_every_model(case: Case) -> None:
    """The whole, each parameter alone (so that no small block hides behind a large one), and the products."""
    model, x, output = case.build()
    expected = oracle.jacobian_of(case)
    J = tt.jacobian(model, x, output=output)
    assert_close(J.dense(), expected)

    assert list(J.layers) == list(oracle.trainable(model))
    for name, place in oracle.positions(model).items():
        block = expected.flatten(1, -2)[..., place]  # (N, C, *shape), or (N, T·C, *shape)
        actual = J.layers[name].dense()
        assert actual.shape == block.shape, name
        # Some blocks vanish only up to rounding (a bias in front of a normalization).
        assert (actual - block).norm() <= 1e-10 * block.norm() + 1e-14 * expected.norm(), name

    v = torch.randn(expected.shape[-1], dtype=torch.float64)
    u = torch.randn(expected.shape[:-1], dtype=torch.float64)
    assert_close(J @ v, expected @ v)
    assert_close(J.T @ u, torch.einsum("nr,nrp->p", u.flatten(1), expected.flatten(1, -2)))


@every_case
@pytest.mark.usefixtures("silence")
def test_float32(case: Case) -> None:
    """In float32 too, against the float64 oracle of the same function."""
    model, x, output = case.build(torch.float32)
    J = tt.jacobian(model, x, output=output).dense()
    assert J.dtype == torch.float32
    assert_close(J, oracle.jacobian_of(case), 1e-5)


@every_case
@pytest.mark.usefixtures("silence")
def test_one_sample_alone(case: Case) -> None:
    """The Jacobian of a batch is made of the Jacobians of its samples, also of the last one."""
    model, x, output = case.build()
    last = take(x, slice(oracle.count(x) - 1, None))
    alone = tt.jacobian(model, last, output=output).dense()
    expected = oracle.jacobian_of(case)  # which runs every sample alone
    assert alone.shape == expected[-1:].shape
    assert (alone - expected[-1:]).norm() <= 1e-10 * expected.norm()


# ------------------------------------------------------------------------------------------- identities


@pytest.mark.parametrize("name", ["mlp", "lenet", "residual-gelu", "sequence-outputs", "scalar-gate"])
@pytest.mark.usefixtures("quiet")
def test_adjoint_identity(name: str) -> None:
    """⟨J v, u⟩ = ⟨v, Jᵀ u⟩."""
    model, x, output = ZOO[name].build()
    J = tt.jacobian(model, x, output=output)
    v = torch.randn(J.dense().shape[-1], dtype=torch.float64)
    u = torch.randn(J.dense().shape[:-1], dtype=torch.float64)
    left, right = ((J @ v) * u).sum(), v @ (J.T @ u)
    assert abs(left - right) <= 1e-12 * v.norm() * u.norm() * J.dense().norm()


@pytest.mark.parametrize("name", ["mlp", "lenet", "vision-transformer", "lstm", "spectral-norm"])
@pytest.mark.usefixtures("quiet")
def test_finite_differences(name: str) -> None:
    """J v is the slope of the outputs along v: a check that shares nothing with autograd."""
    model, x, output = ZOO[name].build()
    parameters = oracle.trainable(model)
    start = {key: p.detach().clone() for key, p in parameters.items()}
    v = {key: torch.randn_like(p) for key, p in parameters.items()}
    slope = tt.jacobian(model, x, output=output) @ v

    def moved(step: float) -> Tensor:
        with torch.no_grad():
            for key, p in parameters.items():
                p.copy_(start[key] + step * v[key])
        return oracle.outputs(model, x, output)

    h = 1e-5
    assert_close(slope, (moved(h) - moved(-h)) / (2 * h), 1e-6)


@pytest.mark.parametrize("name", ["mlp", "lenet", "attention", "lstm", "samples-and-time-merged"])
@pytest.mark.usefixtures("quiet")
def test_batch_size_invariance(name: str) -> None:
    """Batches of uneven size, put together, are the whole."""
    model, x, output = ZOO[name].build()
    whole = tt.jacobian(model, x, output=output).dense()
    pieces = [tt.jacobian(model, take(x, part), output=output).dense() for part in (slice(0, 1), slice(1, None))]
    assert_close(torch.cat(pieces), whole)


def test_order_invariance() -> None:
    model, x = mlp()
    order = torch.randperm(len(x))
    assert_close(tt.jacobian(model, x[order]).dense(), tt.jacobian(model, x).dense()[order])


def test_moved_parameters_are_refused() -> None:
    """A Jacobian is at the point where it was taken: used after the parameters moved, it says so."""
    model, x = mlp()
    J = tt.jacobian(model, x)
    before = J.dense()
    v = torch.randn(before.shape[-1], dtype=torch.float64)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3)
    for use in (J.dense, lambda: J @ v, lambda: J.T @ (before @ v), lambda: J.layers):
        with pytest.raises(RuntimeError, match="parameters changed"):
            use()


def test_does_not_carry_a_graph() -> None:
    model, x = mlp()
    J = tt.jacobian(model, x)
    assert not J.dense().requires_grad
    assert not (J @ torch.ones(J.dense().shape[-1], dtype=torch.float64)).requires_grad
    assert not (J.T @ torch.ones(J.dense().shape[:-1], dtype=torch.float64)).requires_grad


def test_works_under_no_grad() -> None:
    model, x = mlp()
    with torch.no_grad():
        inside = tt.jacobian(model, x).dense()
    assert_close(inside, oracle.jacobian(model, x))


def test_works_in_training_mode_when_that_changes_nothing() -> None:
    model, x = mlp()
    assert_close(tt.jacobian(model.train(), x).dense(), oracle.jacobian(model, x))
    assert model.training


def test_inputs_that_require_grad() -> None:
    model, x = mlp()
    tracked = x.clone().requires_grad_(True)
    assert_close(tt.jacobian(model, tracked).dense(), oracle.jacobian(model, x))
    assert tracked.grad is None


# --------------------------------------------------------------------------------------- vector formats


def formats(model: nn.Module, v: Tensor) -> dict[str, object]:
    """The same vector as a flat tensor, a dict and a list."""
    as_dict = {name: v[place] for name, place in oracle.positions(model).items()}
    return {"flat": v, "dict": as_dict, "list": list(as_dict.values()), "tuple": tuple(as_dict.values())}


@pytest.mark.parametrize("kind", ["flat", "dict", "list"])
def test_vector_formats(kind: str) -> None:
    model, x = mlp()
    expected = oracle.jacobian(model, x)
    v = torch.randn(expected.shape[-1], dtype=torch.float64)
    assert_close(tt.jacobian(model, x) @ formats(model, v)[kind], expected @ v)


def test_dict_in_another_order() -> None:
    model, x = mlp()
    expected = oracle.jacobian(model, x)
    v = torch.randn(expected.shape[-1], dtype=torch.float64)
    backwards = dict(reversed(formats(model, v)["dict"].items()))
    assert_close(tt.jacobian(model, x) @ backwards, expected @ v)


# ------------------------------------------------------------------------------- a subset of parameters

SUBSETS = {
    "pattern": ("0.0.*", lambda name: name.startswith("0.0.")),
    "one-name": ("3.bias", lambda name: name == "3.bias"),
    "biases": ("*.bias", lambda name: name.endswith(".bias")),
    "list": (["3.*", "0.0.weight"], lambda name: name.startswith("3.") or name == "0.0.weight"),
    "overlapping": (["0.*", "*.weight"], lambda name: name.startswith("0.") or name.endswith(".weight")),
    "predicate-name": (lambda name, p: "2" in name, lambda name: "2" in name),
    "predicate-shape": (lambda name, p: p.ndim == 2, lambda name: name.endswith("weight")),
}


@pytest.mark.parametrize("subset", SUBSETS)
def test_params(subset: str) -> None:
    """Columns of the chosen parameters, in `named_parameters()` order whatever the order of patterns."""
    params, chosen = SUBSETS[subset]
    model, x = mlp()
    J = tt.jacobian(model, x, params=params)
    names = [name for name in oracle.trainable(model) if chosen(name)]
    assert 0 < len(names) < len(oracle.trainable(model))
    assert list(J.layers) == names
    expected = oracle.jacobian(model, x, keep=lambda name, p: chosen(name))
    assert_close(J.dense(), expected)
    v = torch.randn(expected.shape[-1], dtype=torch.float64)
    u = torch.randn(expected.shape[:-1], dtype=torch.float64)
    assert_close(J @ v, expected @ v)
    assert_close(J.T @ u, torch.einsum("nc,ncp->p", u, expected))


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("vision-transformer", "token"),
        ("vision-transformer", ["places", "norm?.weight", "mlp.2.*"]),
        ("lstm", "cell.weight_hh_l0"),
        ("attention", "attention.in_proj_*"),
        ("tied-linears", "0.weight"),
        ("tied-linears", "2.*"),
        ("inplace-relu", "1.weight"),
        ("weight-norm", "0.parametrizations.weight.original0"),
        ("language-model", "words.*"),
        ("frozen-layer", "4.*"),
        ("conv2d-groups", "0.weight"),
    ],
)
@pytest.mark.usefixtures("quiet")
def test_params_across_the_zoo(name: str, pattern: str | list[str]) -> None:
    from fnmatch import fnmatchcase

    model, x, output = ZOO[name].build()
    patterns = [pattern] if isinstance(pattern, str) else pattern
    expected = oracle.jacobian(model, x, output, keep=lambda key, p: any(fnmatchcase(key, pat) for pat in patterns))
    assert_close(tt.jacobian(model, x, params=pattern, output=output).dense(), expected)


# -------------------------------------------------------------------------------------------- fallbacks


def test_slow_loop_is_announced() -> None:
    """vmap cannot decide by the values of one sample: the loop over samples is exact, and said."""

    class Decides(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.Parameter(torch.randn(3, 2, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return (x.unsqueeze(2) / (self.cell**2 if bool(x.isfinite().all()) else self.cell)).sum(1)

    model, x = Decides(), torch.randn(4, 3, dtype=torch.float64)
    with pytest.warns(tt.TangentWarning, match=r"(?i)cell.*(loop|slow|one by one|sample)"):
        J = tt.jacobian(model, x).dense()
    assert_close(J, oracle.jacobian(model, x))


def test_a_loop_where_torch_is_wrong_is_announced() -> None:
    """What torch computes for the distances of several samples at once is wrong by a third."""

    class Distances(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.centres, self.head = nn.Parameter(torch.randn(6, 3)), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.exp(-torch.cdist(x, self.centres)))

    model, x = Distances().double(), torch.randn(4, 3, dtype=torch.float64)
    with pytest.warns(tt.TangentWarning, match="centres is computed sample by sample"):
        J = tt.jacobian(model, x).dense()
    assert_close(J, oracle.jacobian(model, x))


def test_parameters_without_influence_are_announced_and_zero() -> None:
    model, x, output = ZOO["unused-layer"].build()
    with pytest.warns(tt.TangentWarning, match="idle") as record:
        J = tt.jacobian(model, x, output=output)
    text = " ".join(str(w.message) for w in record)
    assert "probe.weight" in text
    assert "stem" not in text
    for name in ("idle", "probe.weight", "probe.bias"):
        assert not J.layers[name].dense().any()


def test_models_that_return_the_same_tensor_they_keep() -> None:
    """A model that stores its own activations keeps them as it made them."""

    class Keeper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(3, 2).double()

        def forward(self, x: Tensor) -> Tensor:
            self.last = self.lin(x)
            return self.last

    model, x = Keeper(), torch.randn(4, 3, dtype=torch.float64)
    assert_close(tt.jacobian(model, x).dense(), oracle.jacobian(model, x))


def test_jt_of_several_cotangents() -> None:
    model, x, output = ZOO["sequence-outputs"].build()
    J = tt.jacobian(model, x, output=output)
    V = torch.randn(J.shape[-1], 3, dtype=torch.float64)
    dense = J.dense().flatten(0, -2)
    assert_close(J.T @ (J @ V), dense.T @ dense @ V)


def test_vectors_of_another_dtype_and_lists_are_refused() -> None:
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    J = tt.jacobian(model, x)
    with pytest.raises(ValueError, match=r"The vector is torch.float64 on cpu, the model torch.float32"):
        J @ torch.ones(8, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"The inputs are a list. Pass samples as one tensor"):
        tt.jacobian(model, list(x))


def test_layers_are_printed_in_a_line() -> None:
    J = tt.jacobian(nn.Linear(3, 2), torch.randn(4, 3))
    assert repr(J.layers["weight"]) == "Outer(shape=(2, 3), samples=4, outputs=2)"
    assert repr(J.T) == "Transposed(Jacobian(4, 2, 8) of Linear)"


class GraphLayer(nn.Module):
    """A graph's adjacency matrix times a linear layer's outputs at its nodes."""

    def __init__(self, adjacency: Tensor) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("adjacency", adjacency)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.adjacency @ self.layer(x))


def test_what_all_samples_share_is_no_input() -> None:
    """The error says where it belongs, and there it works."""
    adjacency, x = torch.rand(5, 5, dtype=torch.float64), torch.randn(1, 5, 3, dtype=torch.float64)
    model = GraphLayer(adjacency).double()
    with pytest.raises(ValueError, match=r"\(1, 5, 3\), \(5, 5\).*belongs into a buffer.*one sample.*\(1, T, C\)"):
        tt.jacobian(model, (x, adjacency))
    assert_close(tt.jacobian(model, x).dense(), oracle.jacobian(model, x))


@pytest.mark.parametrize(("n", "size", "sizes"), [(9, 8, [5, 4]), (8, 8, [8]), (64, 28, [22, 22, 20]), (3, 1, [1] * 3)])
def test_pieces_are_even(n: int, size: int, sizes: list[int]) -> None:
    x = torch.arange(n)
    pieces = list(inputs.split(x, size))
    assert [len(part) for _, part in pieces] == sizes
    assert torch.cat([part for _, part in pieces]).equal(x)
    assert all(x[index].equal(part) for index, part in pieces)


def test_products_inside_forward_mode() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double(), torch.randn(5, 3).double()
    J = tt.jacobian(model, x)
    v, t = torch.randn(2, J.shape[-1]).double()
    assert_close(J @ v, J.dense() @ v)
    value, slope = torch.func.jvp(lambda v: J @ v, (v,), (t,))
    assert_close(value, J.dense() @ v)
    assert_close(slope, J.dense() @ t)
    found = torch.func.jvp(lambda u: J.T @ u, (value,), (slope,))
    for part, u in zip(found, (value, slope), strict=True):
        assert_close(part, torch.einsum("ncp,nc->p", J.dense(), u))


def test_sums_over_samples_are_not_taken_in_half_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """In bfloat16 a sum of ones ends at 256."""
    model = nn.Linear(2, 1).bfloat16()
    x = torch.ones(1000, 2, dtype=torch.bfloat16)
    J = tt.jacobian(model, x)
    monkeypatch.setattr(type(J._capture), "samples_within", lambda *_: 1)
    u = torch.ones(1000, 1, dtype=torch.bfloat16)
    torch.testing.assert_close(J.T @ u, torch.full((3,), 1000.0, dtype=torch.bfloat16))


class Automatic(nn.Module):
    """A network that casts itself."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.hidden, self.head = (
            nn.Conv1d(2, 3, 3),
            nn.LayerNorm(6),
            nn.Linear(6, 5),
            nn.Linear(5, 3),
        )
        self.enabled = True

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.enabled):
            return self.head(self.hidden(self.norm(self.conv(x).mean(1))).tanh()).float()


def test_autocast_inside_of_a_model_is_no_error() -> None:
    """Its rounding is that of bfloat16; no layer falls back, which would be a warning."""
    torch.manual_seed(0)
    model, x = Automatic(), torch.randn(20, 2, 8)
    found = []
    for model.enabled in (True, False):
        J = tt.jacobian(model, x)
        v, u = torch.ones(J.shape[-1]), torch.ones(20, 3)
        fishers = [tt.fisher(model, (x, None), kind) @ v for kind in (tt.Dense, tt.KFAC, tt.EKFAC, tt.Implicit)]
        found.append([J.dense(), J @ v, J.T @ u, tt.ntk(model, x), *fishers])
    for rounded, exact in zip(*found, strict=True):
        assert rounded.dtype == torch.float32
        assert 1e-5 < float((rounded - exact).norm() / exact.norm()) < 2e-2


@pytest.mark.filterwarnings("ignore:`torch.jit.script", "ignore:The Jacobian of .* is computed sample by sample")
def test_scripted_models() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double(), torch.randn(4, 4).double()
    assert_close(tt.jacobian(torch.jit.script(model), x).dense(), tt.jacobian(model, x).dense())


@pytest.mark.filterwarnings("ignore:The Jacobian of .* is computed sample by sample", "ignore:These parameters do not")
@pytest.mark.filterwarnings("ignore:J @ v takes")
def test_a_model_that_differentiates_in_its_forward() -> None:
    """As one whose outputs are forces, the gradient of an energy; it does not switch gradients on by itself."""

    class Forces(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.energy = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

        def forward(self, x: Tensor) -> Tensor:
            x = x.detach().requires_grad_()
            return -torch.autograd.grad(self.energy(x).sum(), x, create_graph=True)[0]

    torch.manual_seed(0)
    model, x = Forces().double(), torch.randn(4, 3).double()
    J = oracle.jacobian(model, x)
    P = J.shape[-1]
    v, gram = torch.randn(P).double(), torch.einsum("ncp,ncq->pq", J, J) / 4
    with torch.no_grad():
        found = tt.jacobian(model, x)
        assert_close(found.dense(), J)
        assert_close(found @ v, J @ v)
        assert_close(tt.ntk(model, x, reduce="trace"), torch.einsum("ncp,mcp->nm", J, J))
        assert_close(tt.fisher(model, (x, None), tt.Implicit, likelihood="gaussian") @ v, gram @ v)
    assert_close(tt.lazy(model, alpha=10.0)(x), model(x))
    probe = tt.TangentProbe(model, x, torch.randn(4, 3).double())
    assert probe.log(0)["complexity/feature_norm"] == pytest.approx(float(J.square().sum() / 4) ** 0.5)


def test_a_name_with_brackets_is_chosen_by_that_name() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.ParameterDict({"0": torch.ones(2), "[0]": 2 * torch.ones(3)})

        def forward(self, x: Tensor) -> Tensor:
            return x * self.w["0"] * self.w["[0]"].prod()

    model, x = Net().double(), torch.randn(4, 2).double()
    for chosen in ("w.0", "w.[0]"):
        J = tt.jacobian(model, x, params=chosen)
        assert J.space.names == (chosen,)
        assert_close(J.dense(), oracle.jacobian(model, x, keep=lambda name, p, chosen=chosen: name == chosen))


def test_parameters_of_two_dtypes() -> None:
    """J has the wider one, formed or not."""

    class Widened(nn.Module):
        def forward(self, h: Tensor) -> Tensor:
            return h.double().tanh()

    model = nn.Sequential(nn.Linear(3, 2), Widened(), nn.Linear(2, 2).double())
    x = torch.randn(4, 3)
    J = tt.jacobian(model, x)
    assert J.dense().dtype == (J @ torch.ones(14, dtype=torch.float64)).dtype == torch.float64
    F = tt.fisher(model, (x, None), tt.Implicit)
    torch.testing.assert_close(F.dense(), tt.fisher(model, (x, None), tt.Dense).dense(), rtol=1e-5, atol=1e-7)


class Clipped(nn.Module):
    """Clips its features as a quantized network does, and lets gradients pass; small features it leaves alone."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.body, self.head, self.how = nn.Linear(3, 4), nn.Linear(4, 2), how

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        if self.how == "data":
            return self.head(h + (h.clamp(-2, 2) - h).data)
        if self.how == "late" and not bool((h.abs() > 2).any()):
            return self.head(h)
        if self.how == "written":
            with torch.no_grad():
                h[h > 2] = 2.0
            return self.head(h)
        if self.how == "several":
            with torch.no_grad():
                largest = h.max(1, keepdim=True).values
            return self.head(h / largest.clamp(min=3))
        with torch.no_grad():
            change = h.clamp(-2, 2) - h
        return self.head(h + change)


def padded_rows(index: Tensor, table: Tensor) -> Tensor:
    return nn.functional.embedding(index, table, padding_idx=0)


@cache
def scripted() -> Any:
    return torch.jit.script(padded_rows)


class Table(nn.Module):
    """A table with a padding row, outside of a module."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.table, self.head, self.how = nn.Parameter(torch.randn(6, 3)), nn.Linear(3, 2), how

    def forward(self, t: Tensor) -> Tensor:
        if self.how == "padding later" and bool((t > 0).all()):
            return self.head(self.table[t].tanh().mean(1))
        if self.how.startswith("padding"):
            rows = nn.functional.embedding(t, self.table, padding_idx=0)
        elif self.how == "scripted":
            rows = scripted()(t, self.table)
        else:
            rows = {"torch.embedding": torch.embedding, "aten.embedding": torch.ops.aten.embedding}[self.how](
                self.table, t, 0
            )
        return self.head(rows.tanh().mean(1))


def left_out(how: str) -> tuple[nn.Module, Tensor]:
    """A model, and a batch in whose first samples nothing is left out."""
    if how.startswith("padding") or "embedding" in how or how == "scripted":
        x = torch.randint(1, 6, (5, 4))
        x[2:, 2:] = 0
        return Table(how).double(), x
    x = 0.1 * torch.randn(5, 3, dtype=torch.float64)
    x[2:] *= 100
    return Clipped(how).double(), x


LEFT_OUT = pytest.mark.parametrize(
    "how",
    [
        *("no_grad", "late", "data", "written", "several"),
        *("padding", "padding later", "torch.embedding", "aten.embedding", "scripted"),
    ],
)


@pytest.mark.usefixtures("quiet")
@LEFT_OUT
def test_what_reverse_mode_leaves_out_behind_the_first_samples(how: str) -> None:
    """Forward mode agrees with it on the samples that are looked at first."""
    model, x = left_out(how)
    D = oracle.jacobian(model, x)
    J, v = tt.jacobian(model, x), torch.randn(D.shape[-1], dtype=torch.float64)
    assert_close(J @ v, D @ v)
    F = tt.fisher(model, (x, None), tt.Implicit, likelihood="gaussian")
    for _ in range(5):
        assert_close(F @ v, torch.einsum("ncp,nc->p", D, D @ v) / len(x))


@pytest.mark.usefixtures("quiet")
@LEFT_OUT
def test_what_reverse_mode_leaves_out_of_later_batches_of_a_linearized_network(how: str) -> None:
    model, x = left_out(how)
    lin, D = tt.linearize(model), oracle.jacobian(model, x)
    v = 0.1 * torch.randn(D.shape[-1], dtype=torch.float64)
    oracle.move(lin, v)
    for _ in range(3):
        lin(x[:2])
    by_sample = torch.vmap(lambda sample: lin(sample[None])[0])
    if how == "scripted":  # which forward mode cannot be kept from differentiating
        with pytest.raises(RuntimeError, match=r"inside torch\.func only in forward mode"):
            by_sample(x)
    elif how not in ("late", "written", "padding later"):  # vmap allows no decision that depends on the data
        assert_close(by_sample(x) - model(x), D @ v)
    assert_close(lin(x) - model(x), D @ v)


@pytest.mark.skipif("TORCHTANGENT_SHAPES" in os.environ, reason="the compiler does not take the shape checks")
def test_inside_of_what_is_compiled() -> None:
    model, x = left_out("no_grad")
    D = oracle.jacobian(model, x)
    v = 0.1 * torch.randn(D.shape[-1], dtype=torch.float64)
    J, F = tt.jacobian(model, x), tt.fisher(model, (x, None), tt.Implicit, likelihood="gaussian")
    for times in (lambda v: J @ v, lambda v: J.T @ (D @ v), lambda v: F @ v):
        assert_close(torch.compile(times, backend="eager")(v), times(v))
    lin = tt.linearize(model)
    oracle.move(lin, v)
    lin(x[:2])
    assert_close(torch.compile(lin, backend="eager")(x) - model(x), D @ v)


@pytest.mark.skipif("TORCHTANGENT_SHAPES" in os.environ, reason="the compiler does not take the shape checks")
@pytest.mark.filterwarnings("ignore")  # the compiler's, of all that it breaks its graph at
def test_made_inside_of_what_is_compiled() -> None:
    model, x = left_out("no_grad")
    made = torch.compile(lambda x: tt.jacobian(model, x).dense(), backend="eager")
    assert_close(made(x), oracle.jacobian(model, x))


@pytest.mark.parametrize("params", [None, "2.*"])
def test_padding_rows_do_not_take_a_slower_way(params: str | None) -> None:
    """Which would warn, and could not be kept for later products."""
    model = nn.Sequential(nn.Embedding(6, 3, padding_idx=-2), nn.Flatten(), nn.Linear(6, 2)).double()
    x = torch.tensor([[4, 1], [2, 3], [4, 4], [0, 5]])
    J = tt.jacobian(model, x, params=params)
    v = torch.randn(J.shape[-1], dtype=torch.float64)
    expected = oracle.jacobian(model, x)[..., -J.shape[-1] :]
    assert_close(J @ v, expected @ v)
    F = tt.fisher(model, (x, None), tt.Implicit, likelihood="gaussian", params=params)
    for _ in range(5):
        assert_close(F @ v, torch.einsum("ncp,nc->p", expected, expected @ v) / 4)
    assert F.matmat._kept


def test_groupnorm_behind_tokens_does_not_take_a_slower_way() -> None:
    """As in networks of image diffusion, between attention and convolutions: torch's formula needs plain strides."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.mix, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(4, 4), nn.GroupNorm(2, 4)

        def forward(self, x: Tensor) -> Tensor:
            h = self.conv(x)
            tokens = self.mix(h.flatten(2).transpose(1, 2))
            return self.norm(tokens.transpose(-1, -2).reshape(h.shape) + h).tanh().mean((2, 3))

    model, x = Block().double(), torch.randn(3, 1, 4, 4, dtype=torch.float64)
    J = oracle.jacobian(model, x)
    v = torch.randn(J.shape[-1], dtype=torch.float64)
    assert_close(tt.jacobian(model, x) @ v, J @ v)
    F = tt.fisher(model, (x, None), tt.Implicit, likelihood="gaussian")
    for _ in range(5):
        assert_close(F @ v, torch.einsum("ncp,nc->p", J, J @ v) / 3)
    lin = tt.linearize(model)
    oracle.move(lin, v)
    assert_close(lin(x) - model(x), J @ v)
    u = torch.randn(3, 4, dtype=torch.float64)
    lin(x).backward(u)
    gradient = torch.cat([p.grad.flatten() for p in lin.parameters() if p.grad is not None])
    assert_close(gradient, torch.einsum("ncp,nc->p", J, u))


def test_a_table_that_is_also_the_output_layer_has_a_derivative_there_in_its_padding_row() -> None:
    class Tied(nn.Embedding):
        def forward(self, t: Tensor) -> Tensor:
            return super().forward(t).tanh().mean(1) @ self.weight.T

    model, x = Tied(6, 3, padding_idx=0).double(), torch.randint(6, (5, 4))
    x[:, 0] = 0
    J, v = oracle.jacobian(model, x), torch.randn(18, dtype=torch.float64)
    assert_close(tt.jacobian(model, x) @ v, J @ v)
    lin = tt.linearize(model)
    with torch.no_grad():
        lin.weight += v.view(6, 3)
    assert_close(lin(x) - model(x), J @ v)


def test_directions_in_which_nothing_changes_keep_forward_mode() -> None:
    """Rounding alone must not look like a way that is wrong: J v is zero behind a LayerNorm if v is constant there."""
    model, x = nn.Sequential(nn.LayerNorm(30, elementwise_affine=False), nn.Linear(30, 3)), torch.randn(8, 30)
    v = {"1.weight": torch.randn(3, 1).expand(3, 30).contiguous(), "1.bias": torch.zeros(3)}
    assert (tt.fisher(model, (x, None), tt.Implicit) @ v)["1.weight"].norm() < 1e-5


@pytest.mark.parametrize("seed", range(3))
def test_outputs_in_a_coarser_dtype(seed: int) -> None:
    torch.manual_seed(seed)
    model, x = nn.Sequential(nn.Linear(30, 80), nn.Tanh(), nn.Linear(80, 20)), torch.randn(5, 30)
    J, v = oracle.jacobian(model, x), torch.randn(4100)
    assert_close((tt.jacobian(model, x, output=lambda f: f.bfloat16()) @ v).float(), J @ v, 0.02)


@pytest.mark.parametrize(("dtype", "scale"), [(torch.float16, 1e-6), (torch.float32, 1e20), (torch.float32, 1e-25)])
def test_forward_mode_of_gradients_of_any_size(dtype: torch.dtype, scale: float) -> None:
    model, x = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)), torch.randn(5, 3)
    v = torch.randn(50)
    found = tt.jacobian(model.to(dtype), x.to(dtype), output=lambda f: f * scale) @ v.to(dtype)
    expected = oracle.jacobian(model.double(), x.to(dtype).double()) @ v.to(dtype).double()
    assert_close(found.double() / scale, expected, 0.05 if dtype == torch.float16 else 1e-5)


def test_what_is_only_watched_without_gradients_keeps_forward_mode() -> None:
    class Watched(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            h = super().forward(x)
            with torch.no_grad():
                self.largest = float(h.abs().max())
            assert torch.isfinite(h.data).all()
            return h.tanh()

    model, x = Watched(4, 2).double(), torch.randn(5, 4, dtype=torch.float64)
    D, v = oracle.jacobian(model, x), torch.randn(10, dtype=torch.float64)
    assert_close(tt.jacobian(model, x) @ v, D @ v)  # no warning of a slower way
    lin = tt.linearize(model)
    with torch.no_grad():
        lin.weight += v[:8].view(2, 4)
        lin.bias += v[8:]
    assert_close(lin(x) - model(x), D @ v)


def test_products_carry_no_graph_of_the_models_other_tensors() -> None:
    class Scaled(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 2)
            self.factor = torch.ones(2, requires_grad=True)

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * self.factor

    assert not (tt.jacobian(Scaled(), torch.randn(5, 3)) @ torch.ones(8)).requires_grad


def test_infinite_derivatives_of_finite_outputs() -> None:
    class Root(nn.Module):
        def __init__(self, *, rule: bool) -> None:
            super().__init__()
            self.lin, self.start, self.rule = nn.Linear(4, 5, bias=False), nn.Parameter(torch.zeros(5)), rule

        def forward(self, x: Tensor) -> Tensor:
            h = self.lin(x)
            zeros = 0 * h.detach()
            return h.sqrt() + self.start if self.rule else h + torch.lerp(zeros, zeros + 1, self.start).sqrt()

    for rule in (True, False):
        J = tt.jacobian(Root(rule=rule), torch.zeros(6, 4))
        F = tt.fisher(J._capture.model, (torch.zeros(6, 4), None), tt.Implicit, likelihood="gaussian")
        for ask in (
            J.dense,
            lambda J=J: J.T @ torch.ones(6, 5),
            lambda J=J: J @ torch.ones(25),
            lambda F=F: F @ torch.ones(25),
        ):
            with pytest.raises(ValueError, match="NaN or infinity although the output"):
                ask()


def test_products_by_vmap() -> None:
    model, x = mlp()
    J, F = tt.jacobian(model, x), tt.fisher(model, (x, None), tt.Implicit)
    V, U = torch.randn(3, F.size, dtype=torch.float64), torch.randn(3, *J.shape[:-1], dtype=torch.float64)
    for times, vectors in ((lambda v: J @ v, V), (lambda u: J.T @ u, U), (lambda v: F @ v, V)):
        expected = torch.stack([times(v) for v in vectors])
        assert_close(torch.vmap(times)(vectors), expected)


def test_where_only_reverse_mode_is_finite() -> None:
    """At √relu(h) forward mode divides zero by zero, in a later sample."""

    class Root(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).relu().sqrt()

    model, x = Root(3, 1).double(), torch.randn(9, 3, dtype=torch.float64)
    x = x[model(x)[:, 0].sort(descending=True).indices]
    D, v = oracle.jacobian(model, x), torch.randn(4, dtype=torch.float64)
    assert model(x)[0] > 0
    assert model(x)[-1] == 0
    for times in (tt.jacobian(model, x), tt.fisher(model, (x, None), tt.Implicit, likelihood="gaussian")):
        with pytest.warns(tt.TangentWarning, match="forward mode does not do for this model"):
            found = times @ v
        assert_close(found, D @ v if isinstance(times, tt.Jacobian) else torch.einsum("ncp,nc->p", D, D @ v) / 9)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_constants_by_any_mode_without_gradients(mode: Callable[[], Any]) -> None:
    class Scaled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            h = super().forward(x)
            with mode():
                scale = float(self.weight.abs().amax())
                same = h.double()  # the same tensor, with its derivative
            return (h + same) / scale

    model, x = Scaled(3, 2).double(), torch.randn(5, 3, dtype=torch.float64)
    D, v = oracle.jacobian(model, x), torch.randn(8, dtype=torch.float64)
    assert_close(tt.jacobian(model, x) @ v, D @ v)  # no warning of a slower way
    lin = tt.linearize(model)
    with torch.no_grad():
        lin.weight += v[:6].view(2, 3)
        lin.bias += v[6:]
    lin(x)
    assert_close(torch.vmap(lambda t: lin(t[None])[0])(x) - model(x), D @ v)


def test_constants_without_gradients_keep_forward_mode() -> None:
    """As rotary embeddings have them."""

    class Rotated(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                angle = torch.arange(x.shape[1], dtype=x.dtype).outer(1 / torch.arange(1.0, 3.0)).cos()
            return (super().forward(x) * angle).sum(1)

    x = torch.randn(4, 5, 3)
    J = tt.jacobian(Rotated(3, 2), x)
    assert_close(J @ torch.ones(8), J.dense().sum(-1), 1e-5)  # no warning of a slower way


@pytest.mark.parametrize("held", ["buffer", "attribute"])
def test_sparse_tensors_that_samples_share(held: str) -> None:
    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 2)
            edges = (torch.eye(4) + torch.eye(4).roll(1, 0)).double().to_sparse()
            if held == "buffer":
                self.register_buffer("edges", edges)
            else:
                self.edges = edges

        def forward(self, x: Tensor) -> Tensor:
            h = self.linear(x)
            return (self.edges @ h.permute(1, 0, 2).flatten(1)).view(4, len(x), 2).mean(0)

    model, x = Graph().double(), torch.randn(5, 4, 3, dtype=torch.float64)
    J = oracle.jacobian(model, x)
    assert_close(tt.jacobian(model, x).dense(), J)
    assert_close(tt.ntk(model, x, reduce="trace"), torch.einsum("ncp,mcp->nm", J, J))
