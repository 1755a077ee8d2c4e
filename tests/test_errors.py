"""What goes wrong says what, where, and what to do."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator

import pytest
import torch
from cases import ZOO, Wired
from oracle import flat
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

import torchtangent as tt
from torchtangent.operators import memory


def mlp() -> tuple[nn.Module, Tensor]:
    model, x, _ = ZOO["mlp"].build()
    return model, x


def x43() -> Tensor:
    return torch.randn(4, 3, dtype=torch.float64)


def wired(wiring: Callable, **parts: nn.Module) -> nn.Module:
    return Wired(wiring, **parts).double().eval()


REPRESENTATIONS = ["Dense", "Diagonal", "BlockDiagonal", "QuasiDiagonal", "KFAC", "EKFAC", "LowRank", "Implicit"]

# Everything that runs a model must refuse the same models with the same words.
RUNS: dict[str, Callable[[nn.Module, Tensor], object]] = {
    "jacobian": lambda model, x: tt.jacobian(model, x).dense(),
    "J @": lambda model, x: tt.jacobian(model, x) @ torch.ones(sum(p.numel() for p in model.parameters())).double(),
    "J.T @": lambda model, x: tt.jacobian(model, x).T @ torch.ones(len(x), 2).double(),
    "hessian": lambda model, x: tt.hessian(model, (x, torch.zeros(len(x), dtype=torch.long)), F.cross_entropy),
} | {name: lambda model, x, name=name: tt.fisher(model, (x, None), getattr(tt, name)) for name in REPRESENTATIONS}
every_run = pytest.mark.parametrize("run", RUNS.values(), ids=RUNS.keys())


def words(*patterns: str) -> str:
    """A regular expression for all of these, in any order, over lines, whatever the case."""
    return "(?is)" + "".join(f"(?=.*(?:{pattern}))" for pattern in patterns)


# ------------------------------------------------------------------------------ models that are refused


@every_run
def test_batchnorm_in_training_mode(run: Callable) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.BatchNorm1d(3)), nn.Linear(3, 2)).double()
    with pytest.raises(ValueError, match=words("BatchNorm", r"'1\.0'", "training mode", r"model\.eval\(\)")):
        run(model, x43())


@every_run
def test_batchnorm_without_running_statistics(run: Callable) -> None:
    """Without running statistics it uses the batch's, in eval mode too."""
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, track_running_stats=False)).double().eval()
    with pytest.raises(ValueError, match=words("BatchNorm|mix|influence|other samples|depends on")):
        run(model, x43())


@every_run
def test_active_dropout(run: Callable) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.Linear(3, 2)).double()
    with pytest.raises(ValueError, match=words("Dropout", "'1'", r"model\.eval\(\)")):
        run(model, x43())


@pytest.mark.parametrize("layer", [nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout])
def test_every_kind_of_dropout(layer: type[nn.Module]) -> None:
    model = nn.Sequential(nn.Linear(3, 3), layer(0.5), nn.Linear(3, 2)).double()
    with pytest.raises(ValueError, match=words("Dropout", "'1'", r"model\.eval\(\)")):
        tt.jacobian(model, x43())


def test_dropout_of_attention_and_recurrent_layers() -> None:
    attention = wired(lambda self, x: self.mha(x, x, x)[0], mha=nn.MultiheadAttention(3, 1, 0.5, batch_first=True))
    lstm = wired(lambda self, x: self.cell(x)[0], cell=nn.LSTM(3, 2, 2, batch_first=True, dropout=0.5))
    x = torch.randn(4, 2, 3, dtype=torch.float64)
    for model in (attention, lstm):
        with pytest.raises(ValueError, match=words(r"dropout|random|deterministic", r"eval\(\)")):
            tt.jacobian(model.train(), x)


@every_run
def test_functional_dropout(run: Callable) -> None:
    """It knows no mode; the outputs are random, and that is noticed."""
    model = wired(lambda self, x: self.lin(F.dropout(x, 0.5)), lin=nn.Linear(3, 2))
    with pytest.raises(ValueError, match=words("random|deterministic|dropout|differ")):
        run(model, x43())


def test_dropout_that_drops_nothing() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.0), nn.Linear(3, 2)).double()
    assert tt.jacobian(model, x43()).dense().shape == (4, 2, 20)


@every_run
def test_embedding_that_renormalizes_itself(run: Callable) -> None:
    """max_norm rewrites the weight during the forward pass."""
    model = nn.Sequential(nn.Embedding(5, 3, max_norm=0.1), nn.Flatten(), nn.Linear(6, 2)).double().eval()
    weight = model[0].weight.detach().clone()
    with pytest.raises(ValueError, match=words("max_norm", "'0'")):
        run(model, torch.randint(5, (4, 2)))
    assert torch.equal(model[0].weight, weight)


@every_run
def test_no_trainable_parameters(run: Callable) -> None:
    model = nn.Sequential(nn.Linear(3, 2)).double().requires_grad_(False)
    with pytest.raises(ValueError, match=words("no trainable parameter", "requires_grad")):
        run(model, x43())
    with pytest.raises(ValueError, match="no trainable parameter"):
        run(nn.Tanh(), x43())


# --------------------------------------------------------------------------------------- their outputs


@every_run
@pytest.mark.parametrize(
    "wiring",
    [
        lambda self, x: self.lin(x).mean(0, keepdim=True),
        lambda self, x: torch.cat([self.lin(x), self.lin(x)]),
        lambda self, x: self.lin(x).sum(),
    ],
    ids=["mean", "doubled", "scalar"],
)
def test_output_not_per_sample(run: Callable, wiring: Callable) -> None:
    with pytest.raises(ValueError, match=words("shape", "per-sample|number of samples")):
        run(wired(wiring, lin=nn.Linear(3, 2)), x43())


MIXERS = {
    "mean-of-outputs": lambda self, x: (y := self.lin(x)) - y.mean(0),
    "mean-of-inputs": lambda self, x: self.lin(x - x.mean(0)),
    "batch-softmax": lambda self, x: self.lin(x).softmax(0),
    "next-sample": lambda self, x: self.lin(x) + self.lin(x).roll(1, 0),
    "running-sum-of-outputs": lambda self, x: self.lin(x).cumsum(0),
    "running-sum-of-inputs": lambda self, x: self.lin(x.cumsum(0)),
    "last-two": lambda self, x: (
        torch.cat([self.lin(x[:-1]), self.lin(x[-1:] + x[-2:-1])]) if len(x) > 1 else self.lin(x)
    ),
    "size-of-the-batch": lambda self, x: self.lin(x) / len(x),
}


@pytest.mark.parametrize("name", MIXERS)
@every_run
def test_samples_that_influence_each_other(run: Callable, name: str) -> None:
    model = wired(MIXERS[name], lin=nn.Linear(3, 2))
    with pytest.raises(ValueError, match=words("sample", "mix|influence|alone|depend|interact")):
        run(model, x43())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@every_run
def test_outputs_that_are_not_finite(run: Callable, value: float) -> None:
    model, x = nn.Sequential(nn.Linear(3, 2)).double(), x43()
    x[2, 1] = value
    with pytest.raises(ValueError, match=words("NaN", "infinit", "2")):
        run(model, x)


@pytest.mark.parametrize(
    "representation", [tt.Dense, tt.Diagonal, tt.BlockDiagonal, tt.QuasiDiagonal, tt.KFAC, tt.LowRank, {"*": tt.Dense}]
)
def test_gradients_whose_squares_are_not_finite(representation: object) -> None:
    model, x = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1)), torch.randn(4, 3)
    with torch.no_grad():
        model[2].weight.mul_(1e25)
    with pytest.raises(ValueError, match=words("infinity", "float32", "double")):
        tt.fisher(model, (x, None), representation, likelihood="gaussian")
    with pytest.raises(ValueError, match=words("float32", "double")):
        tt.alignment.rank_tasks(model, x, {"task": torch.tensor([0, 1, 1, 0])})
    F = tt.fisher(model.double(), (x.double(), None), representation, likelihood="gaussian")
    assert 1e40 < float(F.trace()) < 1e60


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
@every_run
def test_inputs_that_are_not_dense(run: Callable, layout: torch.layout) -> None:
    model = wired(lambda self, x: torch.sparse.mm(x, self.lin.weight.T), lin=nn.Linear(3, 2))
    with pytest.raises(ValueError, match=words("sparse", "dense")):
        run(model, x43().to_sparse(layout=layout))


@pytest.mark.skipif("TORCHTANGENT_SHAPES" in os.environ, reason="the shape checks would speak first")
def test_products_with_what_is_no_vector_of_outputs() -> None:
    """A product with a mask would be a mask: True wherever the sum of the gradients is not zero."""
    model, x, y = nn.Linear(3, 2).double(), x43(), torch.tensor([0, 1, 1, 0])
    G = tt.gradients(model, (x, y), lambda f, y: F.cross_entropy(f, y, reduction="none"))
    for mask in (y == 1, y, (y == 1).float()):
        with pytest.raises(ValueError, match=words("float64", "convert")):
            G.T @ mask
    with pytest.raises(TypeError, match=words("tensor", "list")):
        G.T @ [0.0, 1.0, 1.0, 0.0]
    assert_close(G.T @ (y == 1).double(), G.dense()[1:3].sum(0))


def test_gradients_that_are_not_finite() -> None:
    """√ at 0 has a finite value and an infinite slope: never a silent NaN."""
    model = wired(lambda self, x: (self.lin(x) * 0).abs().sqrt() + x[:, :2], lin=nn.Linear(3, 2))
    with pytest.raises(ValueError, match=words("NaN|infinit|finite")):
        tt.jacobian(model, x43()).dense()


@pytest.mark.parametrize(
    ("wiring", "pattern"),
    [
        (lambda self, x: {"a": self.lin(x), "b": self.lin(x)}, words("output=", "dict")),
        (lambda self, x: (self.lin(x), x), words("output=", "tuple")),
        (lambda self, x: self.lin(x).argmax(1, keepdim=True), words("output=", "int64")),
        (lambda self, x: self.lin(x)[:, :, None, None], words(r"\(\d, 2, 1, 1\)", r"\(N, C\)")),
    ],
    ids=["dict", "tuple", "integers", "four-axes"],
)
def test_output_that_is_no_matrix(wiring: Callable, pattern: str) -> None:
    with pytest.raises(ValueError, match=pattern):
        tt.jacobian(wired(wiring, lin=nn.Linear(3, 2)), x43())


def test_output_picker_that_fails_is_the_users_error() -> None:
    model, x = mlp()
    with pytest.raises(KeyError, match="nothing"):
        tt.jacobian(model, x, output=lambda y: {"logits": y}["nothing"])


@every_run
@pytest.mark.parametrize(
    "wiring", [lambda self, x: x[:, :2], lambda self, x: self.lin(x).detach()], ids=["unused", "detached"]
)
def test_nothing_influences_the_output(run: Callable, wiring: Callable) -> None:
    """All zero, and said so: by an error or by a warning that names the parameters."""
    model = wired(wiring, lin=nn.Linear(3, 2))
    with pytest.raises((ValueError, tt.TangentWarning), match=words(r"lin\.weight", "influence|zero")):
        run(model, x43())


@pytest.mark.parametrize("name", REPRESENTATIONS)
def test_parameters_without_influence_are_zero_and_named(name: str) -> None:
    model, x, output = ZOO["unused-layer"].build()
    with pytest.warns(tt.TangentWarning, match=words("idle", r"probe\.weight", "influence|zero")):
        M = tt.fisher(model, (x, None), getattr(tt, name), output=output)
    places = torch.cat(
        [torch.full_like(p, float(n.startswith(("idle", "probe")))).flatten() for n, p in model.named_parameters()]
    )
    assert not (M @ places).any()


# ------------------------------------------------------------------------------------------- the data


@every_run
def test_empty_batch(run: Callable) -> None:
    model, x = mlp()
    with pytest.raises(ValueError, match=words("empty|0 samples")):
        run(model, x[:0])


@pytest.mark.parametrize("name", REPRESENTATIONS)
def test_empty_loader(name: str) -> None:
    model, _ = mlp()
    with pytest.raises(ValueError, match=words("empty|no batch")):
        tt.fisher(model, [], getattr(tt, name))


def test_empty_loader_of_the_hessian() -> None:
    model, _ = mlp()
    with pytest.raises(ValueError, match=words("empty|no batch")):
        tt.hessian(model, [], F.cross_entropy)


@every_run
def test_model_and_data_on_different_devices(run: Callable) -> None:
    model, x = mlp()
    with pytest.raises(ValueError, match=words("device", "cpu", "meta", r"\.to\(")):
        run(model, x.to("meta"))


def test_inputs_that_disagree_on_the_number_of_samples() -> None:
    model, (x, z), _ = ZOO["two-inputs"].build()
    with pytest.raises(ValueError, match=words("samples", r"\(4, 3\)", r"\(3, 2\)")):
        tt.jacobian(model, (x, z[:3]))


class Shuffled:
    """The same samples in another order on every pass."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y, self.passes = x, y, 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.passes += 1
        order = torch.arange(len(self.x)).roll(self.passes)
        yield from zip(self.x[order].split(2), self.y[order].split(2), strict=True)


class Noisy(Shuffled):
    """An augmentation that is drawn anew on every pass."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.passes += 1
        yield from zip((self.x + self.passes).split(2), self.y.split(2), strict=True)


class Shrinking(Shuffled):
    """Fewer batches on every pass."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.passes += 1
        n = max(len(self.x) - 2 * self.passes, 2)
        yield from zip(self.x[:n].split(2), self.y[:n].split(2), strict=True)


NOT_REPEATED = words("repeat|same batches|iterator|generator|twice|again|once")


def loaders(x: Tensor, y: Tensor) -> dict[str, object]:
    return {
        "shuffled": Shuffled(x, y),
        "noisy": Noisy(x, y),
        "shrinking": Shrinking(x, y),
        "generator": (batch for batch in zip(x.split(2), y.split(2), strict=True)),
        "DataLoader": DataLoader(
            TensorDataset(x, y), batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(0)
        ),
    }


@pytest.mark.parametrize("kind", ["shuffled", "noisy", "shrinking", "generator", "DataLoader"])
@pytest.mark.parametrize("operator", ["fisher", "hessian"])
def test_implicit_refuses_data_that_do_not_repeat(operator: str, kind: str) -> None:
    model, x = mlp()
    loader = loaders(x, torch.randint(3, (len(x),)))[kind]
    v = torch.ones(83, dtype=torch.float64)
    build = {
        "fisher": lambda: tt.fisher(model, loader, tt.Implicit),
        "hessian": lambda: tt.hessian(model, loader, F.cross_entropy),
    }[operator]
    with pytest.raises(ValueError, match=NOT_REPEATED):
        build() @ v


@pytest.mark.parametrize("kind", ["shuffled", "noisy", "shrinking", "generator", "DataLoader"])
def test_ekfac_is_right_or_refuses_data_that_do_not_repeat(kind: str) -> None:
    """Its two passes must see the same data: what it keeps from the first is fine, other data are not."""
    model, x = mlp()
    y = torch.randint(3, (len(x),))
    expected = tt.fisher(model, list(loaders(x, y)[kind]), tt.EKFAC).dense()
    refusal = ""
    try:
        E = tt.fisher(model, loaders(x, y)[kind], tt.EKFAC).dense()
    except ValueError as error:
        refusal = str(error)
    if refusal:
        assert re.search(NOT_REPEATED, refusal)
    else:
        assert torch.allclose(E, expected, rtol=1e-8, atol=1e-10)


# --------------------------------------------------------------------------------------- the vectors


def test_wrong_vectors_of_the_jacobian() -> None:
    model, x = mlp()
    J = tt.jacobian(model, x)
    good = {name: torch.ones_like(p) for name, p in model.named_parameters()}
    missing = {name: t for name, t in good.items() if name != "0.2.bias"}
    cases: list[tuple[object, str]] = [
        (torch.ones(82).double(), words("82", "83")),
        (torch.ones(84).double(), words("84", "83")),
        (missing, words(r"0\.2\.bias")),
        (good | {"0.3.bias": torch.ones(2).double()}, words(r"0\.3\.bias")),
        (good | {"0.2.bias": torch.ones(4).double()}, words(r"0\.2\.bias", "4", "5")),
        (list(good.values())[:-1], words("5", "6")),
        ([*list(good.values())[:-1], torch.ones(7).double()], words("3", "7")),
    ]
    for vector, pattern in cases:
        with pytest.raises((ValueError, KeyError), match=pattern):
            J @ vector
    for shape in [(5, 3), (6, 2), (6,), (18,), (3, 6)]:
        with pytest.raises(ValueError, match=words("6", "3", "shape|expected")):
            J.T @ torch.ones(shape, dtype=torch.float64)


@pytest.mark.parametrize("name", REPRESENTATIONS)
def test_wrong_vectors_of_fisher(name: str) -> None:
    model, x = mlp()
    M = tt.fisher(model, [(x, None)], getattr(tt, name))
    good = {name: torch.ones_like(p) for name, p in model.named_parameters()}
    cases: list[tuple[object, str]] = [
        (torch.ones(82).double(), words("82", "83")),
        ({k: t for k, t in good.items() if k != "0.2.bias"}, words(r"0\.2\.bias")),
        (good | {"0.3.bias": torch.ones(2).double()}, words(r"0\.3\.bias")),
        (good | {"0.2.bias": torch.ones(4).double()}, words(r"0\.2\.bias", "4", "5")),
        (list(good.values())[:-1], words("5", "6")),
    ]
    for vector, pattern in cases:
        for operation in (lambda v: M @ v, lambda v: M.solve(v, damping=0.1), M.quad):
            with pytest.raises((ValueError, KeyError), match=pattern):
                operation(vector)


# ---------------------------------------------------------------------------------- the small choices


@pytest.mark.parametrize(
    ("options", "pattern"),
    [
        ({"likelihood": "poisson"}, words("poisson", "categorical", "bernoulli", "gaussian")),
        ({"kind": "true"}, words("true", "exact", "sampled", "empirical")),
        ({"kind": "sampled", "samples": 0}, words("samples", "0")),
        ({"params": "nothing.*"}, words(r"nothing\.\*", r"0\.0\.weight")),
        ({"params": ["0.0.*", "typo"]}, words("typo", r"0\.0\.weight")),
        ({"params": lambda name, p: False}, words("no trainable parameter|matches no|chosen")),
    ],
    ids=["likelihood", "kind", "samples", "pattern", "one-of-two-patterns", "predicate"],
)
@pytest.mark.parametrize("name", ["Dense", "Implicit"])
def test_unknown_choices(name: str, options: dict, pattern: str) -> None:
    model, x = mlp()
    with pytest.raises(ValueError, match=pattern):
        tt.fisher(model, (x, None), getattr(tt, name), **options)


def test_unknown_sharing() -> None:
    for representation in (tt.KFAC, tt.EKFAC):
        with pytest.raises(ValueError, match=words("extend", "expand", "reduce")):
            representation(sharing="extend")


@pytest.mark.parametrize("wrong", ["KFAC", None, 3, nn.Linear])
def test_representation_that_is_none(wrong: object) -> None:
    model, x = mlp()
    with pytest.raises((TypeError, ValueError), match=words("representation")):
        tt.fisher(model, (x, None), wrong)


def test_mix_that_forgets_a_module_or_names_none() -> None:
    model, x = mlp()
    with pytest.raises(ValueError, match=words(r"3\.weight|'3'")):
        tt.fisher(model, (x, None), {"0.*": tt.KFAC})
    with pytest.raises(ValueError, match=words("typo")):
        tt.fisher(model, (x, None), {"*": tt.KFAC, "typo": tt.Diagonal})


# ----------------------------------------------------------------------------------------- the targets


@pytest.mark.parametrize("name", REPRESENTATIONS)
def test_empirical_without_targets(name: str) -> None:
    model, x = mlp()
    with pytest.raises(ValueError, match=words("empirical", "target")):
        tt.fisher(model, (x, None), getattr(tt, name), kind="empirical")


@pytest.mark.parametrize(
    ("likelihood", "targets", "pattern"),
    [
        ("categorical", torch.tensor([0, 1, 2, 3, 0, 1]), words("3", "class|label|target")),
        ("categorical", torch.tensor([0, 1, 2, -1, 0, 1]), words("-1|negative", "class|label|target")),
        ("categorical", torch.zeros(6, dtype=torch.float64), words("integer|dtype|float", "target|class|label")),
        ("categorical", torch.zeros(5, dtype=torch.long), words("target", "5|shape")),
        ("categorical", torch.zeros(6, 3, dtype=torch.long), words("target", "shape")),
        ("gaussian", torch.zeros(6, dtype=torch.float64), words("target", "shape")),
        ("gaussian", torch.zeros(6, 2, dtype=torch.float64), words("target", "shape")),
        ("bernoulli", torch.zeros(6, dtype=torch.float64), words("target", "shape")),
    ],
)
def test_targets_that_do_not_fit(likelihood: str, targets: Tensor, pattern: str) -> None:
    model, x = mlp()
    with pytest.raises((ValueError, TypeError), match=pattern):
        tt.fisher(model, (x, targets), tt.Dense, likelihood=likelihood, kind="empirical")


def test_one_class_is_no_distribution() -> None:
    model, x, _ = ZOO["single-output"].build()
    with pytest.raises(ValueError, match=words("two|one", "bernoulli")):
        tt.fisher(model, (x, None), tt.Dense, likelihood="categorical")


def test_data_that_are_only_inputs() -> None:
    """A common slip: the inputs alone, without targets."""
    model, x = mlp()
    with pytest.raises((ValueError, TypeError), match=words(r"\(inputs, targets\)")):
        tt.fisher(model, x, tt.Dense)


def test_loss_that_is_no_number() -> None:
    model, x = mlp()
    loss = lambda f, y: F.cross_entropy(f, y, reduction="none")  # noqa: E731
    with pytest.raises(ValueError, match=words("loss", r"\(6,\)")):
        tt.hessian(model, (x, torch.zeros(6, dtype=torch.long)), loss) @ torch.ones(83).double()


def test_a_data_set_is_no_loader() -> None:
    data = TensorDataset(torch.randn(4, 3), torch.zeros(4))
    with pytest.raises(ValueError, match=r"not a data set of samples \(TensorDataset\): DataLoader"):
        tt.fisher(nn.Linear(3, 2), data, tt.Diagonal)


def test_a_batch_with_names_needs_its_targets_beside_it() -> None:
    with pytest.raises(ValueError, match=r'got a dict\..*\(\{"input_ids": ids\}, targets\)'):
        tt.fisher(nn.Linear(3, 2), [{"input": torch.randn(4, 3)}], tt.Diagonal)


@pytest.mark.skipif("TORCHTANGENT_SHAPES" in os.environ, reason="the shape checks would speak first")
def test_an_array_is_no_vector() -> None:
    F = tt.fisher(nn.Linear(3, 2), (torch.randn(4, 3), None), tt.Diagonal)
    with pytest.raises(TypeError, match=r"got ndarray\. torch\.as_tensor"):
        F @ F.diag().numpy()


@pytest.mark.parametrize(
    ("inputs", "error", "said"),
    [
        (
            torch.zeros(3, dtype=torch.long),
            IndexError,
            "of float32, was called with 1 argument ((2,) int64), samples first",
        ),
        (
            (torch.zeros(3, 2, dtype=torch.long), torch.zeros(3)),
            TypeError,
            "2 arguments ((2, 2) int64, (2,) float32), samples first",
        ),
    ],
)
def test_an_error_of_the_model_says_what_it_was_given(inputs: Any, error: type[Exception], said: str) -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(9, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.table(x).mean(1)[:, : x.shape[1]]

    with pytest.raises(error) as caught:
        tt.ntk(Words(), inputs)
    assert said in " ".join(caught.value.__notes__)


class Augmented:
    """A data set whose items are never the same."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int) -> Tensor:
        return torch.full((3,), float(i)) + torch.randn(3)


@pytest.mark.parametrize(
    "call",
    [
        lambda model, data: tt.ntk(model, data),
        lambda model, data: tt.sketch.operator(model, data),
        lambda model, data: tt.sketch.nystrom(model, data, 2),
        lambda model, data: tt.alignment.rank_tasks(model, data, {"a": torch.arange(6.0)}),
    ],
)
def test_random_items_of_a_data_set(call: Callable) -> None:
    with pytest.raises(ValueError, match="The data set does not repeat: its item 0 differs"):
        call(nn.Linear(3, 1), Augmented())


class Rarely:
    """A data set of which one item is never the same."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> Tensor:
        return torch.arange(30.0) + i + (torch.randn(30) if i == 7 else 0.0)


@pytest.mark.parametrize(
    "call",
    [
        lambda model, data: tt.ntk(model, data, max_memory=8_000),
        lambda model, data: tt.sketch.operator(model, data) @ torch.ones(40),
        lambda model, data: tt.sketch.nystrom(model, data, [3, 7]),
        lambda model, data: tt.alignment.rank_tasks(model, data, {"a": torch.arange(40.0)}),
    ],
)
def test_one_random_item_of_a_data_set(call: Callable) -> None:
    with pytest.raises(ValueError, match="The data set does not repeat: its item 7 differs"):
        call(nn.Linear(30, 1), Rarely())


@pytest.mark.parametrize(
    "call",
    [
        lambda model, x: tt.jacobian(model, x),
        lambda model, x: tt.ntk(model, x),
        lambda model, x: tt.fisher(model, (x, None), tt.Diagonal),
        lambda model, x: tt.linearize(model),
        lambda model, x: tt.optim.EKFAC(model, 0.1, 0.1),
    ],
)
def test_complex_parameters(call: Callable) -> None:
    model = Wired(lambda m, x: (x.to(torch.cfloat) @ m.w).abs())
    model.w = nn.Parameter(torch.randn(3, 2, dtype=torch.cfloat))
    with pytest.raises(ValueError, match=r"Parameter 'w' is complex\. Hold it as real numbers"):
        call(model, torch.randn(4, 3))


def test_targets_that_are_no_probabilities() -> None:
    model, x, y = nn.Linear(3, 1), torch.randn(4, 3), torch.tensor([0.0, 1.0, 1.0, 0.0])

    def empirical(y: Tensor, likelihood: str = "bernoulli") -> object:
        return tt.fisher(model, (x, y), tt.Diagonal, likelihood=likelihood, kind="empirical")

    empirical(y)
    with pytest.raises(ValueError, match=r"needs targets from 0 to 1, got -1.0 to 1.0. Labels -1 and 1 become"):
        empirical(2 * y - 1)
    with pytest.raises(ValueError, match=r"needs targets from 0 to 1, got 0.0 to 2.0.$"):
        empirical(2 * y)
    for likelihood in ("bernoulli", "gaussian"):
        with pytest.raises(ValueError, match="The targets have NaN or infinity"):
            empirical(y * torch.nan, likelihood)


def test_losses_that_are_no_means_of_samples() -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(3, 1).double(), torch.randn(6, 3).double()
    v, fitted = torch.ones(4).double(), model(x).detach()

    def summed(f: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(f, y, reduction="sum")

    for targets in (fitted, fitted + 1):  # of a loss that is zero the sum is its own double
        H = tt.hessian(model, (x, targets), summed)
        for _ in range(2):
            with pytest.raises(ValueError, match="The loss should be the mean over the samples"):
                H @ v
    classifier, y = nn.Linear(3, 4).double(), torch.tensor([0, -100, -100, 3, 1, 2])
    weighted = nn.CrossEntropyLoss(weight=torch.arange(1.0, 5.0).double())
    for loss, labels in ((F.cross_entropy, y), (weighted, y.abs() % 4)):
        several = tt.hessian(classifier, [(x[:3], labels[:3]), (x[3:], labels[3:])], loss)
        with pytest.raises(ValueError, match=r"The loss is not a mean of one loss per sample .* Pass one batch"):
            several @ torch.ones(16).double()
        tt.hessian(classifier, (x, labels), loss) @ torch.ones(16).double()
    even = [(x[:3], y[3:]), (x[3:], y[3:])]
    tt.hessian(classifier, even, F.cross_entropy) @ torch.ones(16).double()


@pytest.mark.parametrize("split", [1, 2])
def test_losses_that_compare_each_output_with_each_target(split: int) -> None:
    torch.manual_seed(0)
    model, x, y = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double(), x43(), torch.randn(4).double()

    def loss(f: Tensor, y: Tensor) -> Tensor:
        return (f - y).square().mean()

    with pytest.raises(ValueError, match=words("which target", r"y\.unsqueeze\(1\)")):
        tt.hessian(model, list(zip(x.chunk(split), y.chunk(split), strict=True)), loss) @ torch.ones(21).double()
    with pytest.raises(ValueError, match=words("which target", r"y\.unsqueeze\(1\)")):
        tt.gauss_newton(model, (x, y), loss, tt.Dense)
    with pytest.raises(ValueError, match=words(r"targets \(N,\) broadcast")):
        tt.gradients(model, (x, y), lambda f, y: (f - y).square()).dense()
    for other in (lambda f, y: f.var(correction=0), lambda f, y: (f[:, 0] - y).mean().square()):  # of all samples
        tt.hessian(model, (x, y), other) @ torch.ones(21).double()
    H = tt.hessian(model, (x, y.unsqueeze(1)), loss).dense()
    assert_close(H, tt.hessian(model, (x, y), loss, output=lambda f: f[:, 0]).dense())


@pytest.mark.skipif("TORCHTANGENT_SHAPES" in os.environ, reason="the shape checks would speak first")
def test_products_that_have_other_names() -> None:
    J = tt.jacobian(*mlp())
    with pytest.raises(TypeError, match=r"tt\.ntk"):
        J @ J.T
    with pytest.raises(TypeError, match=r"tt\.fisher"):
        J.T @ J


@pytest.mark.skipif("TORCHTANGENT_SHAPES" in os.environ, reason="the shape checks would speak first")
def test_dtypes_and_dampings_of_other_kinds() -> None:
    model, x = mlp()
    M = tt.fisher(model, (x, None), tt.KFAC)
    assert M.to("float32").dtype == torch.float32
    assert M.to("cpu").dtype == torch.float64
    with pytest.raises(TypeError, match="damping is one number, got a dict"):
        M.logdet({})


def test_a_loader_that_fills_one_buffer_again_and_again() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    batches = torch.randn(4, 10, 5, dtype=torch.float64)

    class Refilled:
        def __init__(self) -> None:
            self.buffer = torch.empty(10, 5, dtype=torch.float64)

        def __iter__(self) -> Iterator[tuple[Tensor, None]]:
            for batch in batches:
                yield self.buffer.copy_(batch), None

    fresh = [(batch, None) for batch in batches]
    torch.testing.assert_close(
        tt.fisher(model, Refilled(), tt.EKFAC).dense(), tt.fisher(model, fresh, tt.EKFAC).dense()
    )
    F_, v = tt.fisher(model, Refilled(), tt.Implicit), torch.randn(57, dtype=torch.float64)
    wanted = tt.fisher(model, fresh, tt.Dense) @ v
    for _ in range(6):
        torch.testing.assert_close(F_ @ v, wanted)


@pytest.mark.parametrize(
    "call",
    [
        lambda model, x: tt.ntk(model, x),
        lambda model, x: tt.jacobian(model, x).dense(),
        lambda model, x: tt.jacobian(model, x) @ torch.ones(386),
        lambda model, x: tt.fisher(model, (x, None), tt.KFAC).diag(),
        lambda model, x: tt.fisher(model, (x, None), tt.KFAC).solve(torch.ones(386), damping=0.1),
        lambda model, x: tt.fisher(model, (x, None), tt.Implicit) @ torch.ones(386),
        lambda model, x: tt.fisher(model, (x, None), tt.Implicit) @ torch.ones(386, 5),
        lambda model, x: tt.hessian(model, (x, torch.arange(12) % 2), F.cross_entropy) @ torch.ones(386),
        lambda model, x: tt.sketch.operator(model, x) @ torch.ones(24),
        lambda model, x: tt.alignment.cka(tt.ntk(model, x), torch.arange(12) % 2),
    ],
)
def test_autocast_around_a_call_changes_nothing(call: Callable) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 2)), torch.randn(12, 3)
    wanted = call(model, x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = call(model, x)
    assert torch.equal(found, wanted)


def test_nan_in_the_first_item_is_called_nan() -> None:
    with pytest.raises(ValueError, match="The inputs have NaN or infinity, first in sample 0"):
        tt.ntk(nn.Linear(3, 1), list(torch.full((4, 3), torch.nan)))


def test_a_number_for_output_picks_one_of_several_results() -> None:
    model, x = wired(lambda self, x: (self.a(x), self.b(x)), a=nn.Linear(3, 2), b=nn.Linear(3, 1)), x43()
    assert tt.jacobian(model, x, output=1, params="b").dense().shape == (4, 1, 4)
    with pytest.raises(ValueError, match=r"output=0 would pick one of several results.*output=lambda f: f\[:, 0\]"):
        tt.ntk(nn.Linear(3, 2).double(), x, output=0)


@pytest.mark.skipif("TORCHTANGENT_SHAPES" in os.environ, reason="the shape checks would speak first")
def test_an_output_that_is_nothing_of_the_kind() -> None:
    with pytest.raises(ValueError, match=r"output should be a function of the model's result, a name or a number"):
        tt.ntk(nn.Linear(3, 2).double(), x43(), output=[0])


def test_parameters_are_chosen_by_names_of_modules_too() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    assert list(tt.jacobian(model, torch.ones(2, 3), params="1").space.names) == ["1.weight", "1.bias"]
    with pytest.raises(TypeError, match="there is a Parameter among them"):
        tt.jacobian(model, torch.ones(2, 3), params=model[1].parameters())
    with pytest.raises(TypeError, match="params is a module"):
        tt.jacobian(model, torch.ones(2, 3), params=model[1])


def test_an_output_function_that_knows_the_batch_is_explained() -> None:
    mask = torch.ones(6, 1).double()
    with pytest.raises(RuntimeError) as caught:
        tt.jacobian(nn.Linear(3, 2).double(), torch.ones(6, 3).double(), output=lambda f: f * mask)
    assert "it sees parts of a batch" in caught.value.__notes__[0]


@pytest.mark.parametrize("ask", ["dense fisher", "J.dense()", "M.dense()"])
def test_matrices_larger_than_the_memory_are_refused(ask: str) -> None:
    """Rather than have the system kill the process."""
    model, x = nn.Sequential(nn.Linear(2, 1_000_000), nn.Linear(1_000_000, 2)), torch.randn(2, 2)
    asks = {
        "dense fisher": lambda: tt.fisher(model, (x, None), tt.Dense),
        "J.dense()": lambda: tt.jacobian(model, x.repeat(2**16, 1)).dense(),
        "M.dense()": lambda: tt.fisher(model, (x, None), tt.Diagonal).dense(),
    }
    with pytest.raises(MemoryError, match=r"takes [\d.]+ GiB, and [\d.]+ GiB are free on cpu\. "):
        asks[ask]()


def test_a_container_has_less_memory_than_its_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the container has already counts, but not copies of files, which the system drops when memory is short."""
    F = tt.fisher(nn.Linear(200, 100), (torch.randn(2, 200), None), tt.Diagonal)  # 1.5 GiB when dense
    for name, said in (("limit", 3 << 30), ("usage", 5 << 29)):
        (tmp_path / name).write_text(f"{said}\n")
    (tmp_path / "memory.stat").write_text(f"anon 5\ncached {1 << 29}\n")
    monkeypatch.setattr(memory, "_CONTAINERS", [(tmp_path, "limit", "usage", "cached")])
    with pytest.raises(MemoryError, match=r"takes 1\.5 GiB, and 1\.0 GiB are free on cpu\. "):
        F.dense()


@pytest.mark.skipif("TORCHTANGENT_SHAPES" in os.environ, reason="the shape checks would speak first")
def test_arguments_in_another_order(tmp_path: Path) -> None:
    model, x, y = nn.Linear(3, 2), torch.randn(4, 3), torch.tensor([0, 1, 1, 0])
    with pytest.raises(TypeError, match=r"after the data, got a tuple\."):
        tt.fisher(model, tt.KFAC, (x, y))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"hessian\(model, data, loss\): loss should be a function, got a tuple"):
        tt.hessian(model, nn.functional.cross_entropy, (x, y))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"fisher_rao\(model, x, y\): kind='empirical' needs the targets y"):
        tt.complexity.fisher_rao(model, (x, y))
    path = tmp_path / "fisher.safetensors"
    path.write_bytes(b"no")
    with pytest.raises(ValueError, match=r"fisher\.safetensors' is no safetensors file, or not a whole one"):
        tt.load(path)


def test_a_model_for_a_fixed_number_of_samples_is_explained() -> None:
    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)
            self.register_buffer("neighbours", torch.eye(5))

        def forward(self, x: Tensor) -> Tensor:
            return self.neighbours @ self.layer(x)

    with pytest.raises(RuntimeError) as caught:
        tt.jacobian(Graph(), torch.randn(5, 3))
    (note,) = caught.value.__notes__
    assert "((2, 3) float32), samples first: it sees parts of a batch, and must work for any number" in note


def test_a_result_that_is_not_there() -> None:
    class Two(nn.Linear):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
            return super().forward(x), x

    with pytest.raises(ValueError, match="output=5 would pick one of several results, and the model returns 2 results"):
        tt.jacobian(Two(3, 2), torch.randn(4, 3), output=5)


def test_targets_beside_the_inputs_of_a_kernel() -> None:
    x, y = torch.randn(6, 3), torch.arange(6)
    with pytest.raises(TypeError, match=r"The inputs are 2 things, .*; if one is a target, give x without it"):
        tt.ntk(nn.Linear(3, 1), (x, y))


@pytest.mark.skipif("TORCHTANGENT_SHAPES" in os.environ, reason="the shape checks would speak first")
def test_parameters_are_made_a_vector_by_what_the_message_says() -> None:
    model, x = mlp()
    G = tt.fisher(model, (x, None), tt.Diagonal)
    with pytest.raises(TypeError, match=r"got generator. Pass list\(model.parameters\(\)\)"):
        G @ model.parameters()
    with pytest.raises(TypeError, match=r"got Sequential. Pass dict\(model.named_parameters\(\)\)"):
        G @ model
    assert_close(torch.cat([p.flatten() for p in G @ list(model.parameters())]), G @ flat(model))


def test_a_kernel_in_the_place_of_the_time_is_not_printed() -> None:
    K, y = torch.eye(40), torch.ones(40)
    with pytest.raises(ValueError, match=r"got a tensor \(40, 40\); the kernel of other samples comes after t") as said:
        tt.predict.flow(K, y, K, 1.0)
    assert len(str(said.value)) < 200


def test_one_cotangent_for_each_sample_of_one_output() -> None:
    model, x = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)), torch.randn(4, 3)
    with pytest.raises(ValueError, match=r"shape \(4, 1\), got \(4,\). Pass u.unsqueeze\(1\)."):
        tt.jacobian(model, x).T @ torch.ones(4)


def test_many_outputs_are_said_before_they_take_long() -> None:
    model, x = nn.Linear(2, 30), torch.randn(3, 16, 2)
    with pytest.warns(
        tt.TangentWarning, match='takes 464 backward passes for each sample. kind="sampled" estimates it'
    ):
        tt.fisher(model, (x, None), tt.Diagonal)
    tt.fisher(model, (x, None), tt.Diagonal, kind="sampled")


def test_outputs_that_are_empty() -> None:
    with pytest.raises(ValueError, match=r"The model's output of shape \(2, 0\) is empty"):
        tt.jacobian(nn.Linear(3, 2), torch.randn(4, 3), output=lambda f: f[:, :0])
