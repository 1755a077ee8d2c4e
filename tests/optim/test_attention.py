"""Attention's projections in KFAC and EKFAC, against attention written out with matrices and the dense formula."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import dense_step
import pytest
import torch
import torch.nn.functional as F
from test_ekfac import EPS, LR, METHODS
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torchtangent as tt
from torchtangent.optim import EKFAC, vector

N, T, E, HEADS = 6, 5, 4, 2


class Attending(nn.Module):
    """Attention of a sequence, or of its halves to one another, samples first outside."""

    def __init__(self, *, cross: bool = False, windows: int = 1, **options: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(E, HEADS, **options)
        self.head = nn.Linear(E, 3)
        self.cross, self.windows = cross, windows

    def forward(self, x: Tensor) -> Tensor:
        n = len(x)
        x = x.reshape(n * self.windows, -1, E)
        tokens = 1 if self.attention.batch_first else 0
        x = x if tokens else x.transpose(0, 1)
        q, k = (x.narrow(tokens, 0, 2), x.narrow(tokens, 2, x.shape[tokens] - 2)) if self.cross else (x, x)
        y = self.attention(q, k, k)[0]
        y = y if tokens else y.transpose(0, 1)
        return self.head(torch.tanh(y).reshape(n, -1, E).mean(1))


class Written(nn.Module):
    """The same, with linear layers and softmax."""

    def __init__(self, of: Attending) -> None:
        super().__init__()
        W, b = of.attention.in_proj_weight.detach(), of.attention.in_proj_bias
        bias = b is not None
        self.q, self.kv, self.out = (nn.Linear(E, size, bias).double() for size in (E, 2 * E, E))
        self.head, self.cross, self.windows = copy.deepcopy(of.head), of.cross, of.windows
        with torch.no_grad():
            self.q.weight.copy_(W[:E])
            self.kv.weight.copy_(W[E:])
            self.out.weight.copy_(of.attention.out_proj.weight)
            if bias:
                self.q.bias.copy_(b[:E])
                self.kv.bias.copy_(b[E:])
                self.out.bias.copy_(of.attention.out_proj.bias)

    def forward(self, x: Tensor) -> Tensor:
        n = len(x)
        x = x.reshape(n * self.windows, -1, E)
        a, b = (x[:, :2], x[:, 2:]) if self.cross else (x, x)
        q, (k, v) = self.q(a), self.kv(b).chunk(2, -1)
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in (q, k, v))
        y = (q @ k.mT / (E // HEADS) ** 0.5).softmax(-1) @ v
        y = self.out(y.transpose(1, 2).flatten(2))
        return self.head(torch.tanh(y).reshape(n, -1, E).mean(1))


def data(samples: int = N, tokens: int = T) -> tuple[Tensor, Tensor]:
    return torch.randn(samples, tokens, E).double(), torch.randint(0, 3, (samples,))


def step(model: nn.Module, opt: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()


def in_projection(model: Written, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A, B and per-sample gradients of [W b] for queries, keys and values together.

    Queries and keys are rows of one matrix product where they are the same tokens, else of two.
    """
    q = dense_step.records(model, model.q, x, y, F.cross_entropy)
    kv = dense_step.records(model, model.kv, x, y, F.cross_entropy)
    pairs = zip(q, kv, strict=True)
    if model.cross:
        rows = [
            (
                torch.cat([a.reshape(-1, E), c.reshape(-1, E)]),
                torch.block_diag(b.reshape(-1, E), d.reshape(-1, 2 * E)),
            )
            for (a, b, _), (c, d, _) in pairs
        ]
    else:
        rows = [(a.reshape(-1, E), torch.cat([b, d], -1).reshape(-1, 3 * E)) for (a, b, _), (_, d, _) in pairs]
    bias = model.q.bias is not None
    a = torch.stack([F.pad(a, (0, 1), value=1.0) if bias else a for a, _ in rows])
    d = torch.stack([d for _, d in rows])
    A = torch.einsum("nsi,nsj->ij", a, a) / (a.shape[0] * a.shape[1])
    B = torch.einsum("nso,nsp->op", d, d) / len(d)
    together = [torch.cat([f, g]) for (_, _, u), (_, _, v) in zip(q, kv, strict=True) for f, g in [(_wb(u), _wb(v))]]
    return A, B, torch.stack(together)


def _wb(grads: list[Tensor]) -> Tensor:
    return torch.cat([grads[0], grads[1].unsqueeze(1)], 1) if len(grads) > 1 else grads[0]


@pytest.mark.parametrize("rule", ["single", "factored"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "options",
    [
        {"batch_first": True},
        {"batch_first": False},
        {"batch_first": True, "bias": False},
        {"batch_first": True, "cross": True},
        {"batch_first": False, "windows": 2},
        {"batch_first": True, "windows": 3, "cross": True},
    ],
    ids=str,
)
def test_a_step_is_the_dense_formula(options: dict[str, Any], method: str, rule: str) -> None:
    model = Attending(**options).double()
    for p in model.attention.parameters():
        nn.init.normal_(p)
    x, y = data(tokens=T * model.windows)
    written, before = Written(model), copy.deepcopy(model)
    torch.testing.assert_close(written(x), model(x))
    opt = METHODS[method](model, LR, EPS, damping_rule=rule)
    step(model, opt, x, y)
    moved = {name: p - q for (name, p), q in zip(model.named_parameters(), before.parameters(), strict=True)}
    blocks = {
        "in_proj_": in_projection(written, x, y),
        "out_proj.": (m[0] if i < 2 else m[:, 0] for i, m in enumerate(_out(written, x, y))),
    }
    for prefix, (A, B, J) in blocks.items():
        wanted = -LR * dense_step.direction(method, rule, EPS, A, B, J)
        found = [t for name, t in moved.items() if name.startswith(f"attention.{prefix}")]
        torch.testing.assert_close(_wb(found), wanted, rtol=1e-8, atol=1e-10)


def _out(model: Written, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return dense_step.moments(model.out, dense_step.records(model, model.out, x, y, F.cross_entropy))


def test_as_many_tokens_as_samples() -> None:
    """Where axes could be mistaken for each other: samples first outside or not, the step is the same."""
    model = Attending(batch_first=True).double()
    other = Attending(batch_first=False).double()
    other.load_state_dict(model.state_dict())
    x, y = data(samples=T)
    for one in (model, other):
        step(one, METHODS["ekfac"](one, LR, EPS), x, y)
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q)


def test_projections_of_other_widths() -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(E, HEADS, kdim=3, vdim=5, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(x, x[..., :3], torch.cat([x, x[..., :1]], -1))[0].mean(1)

    model, (x, y) = Wide().double(), data()
    opt = EKFAC(model, LR, EPS)
    before = copy.deepcopy(model.state_dict())
    step(model, opt, x, y)
    said = opt.explain()
    assert "mean gradients" not in said
    assert "attention.v_proj_weight    EKFAC, 4 × 5" in said
    assert all(not torch.equal(before[name], p) for name, p in model.state_dict().items())


def test_a_whole_transformer_is_preconditioned() -> None:
    layer = nn.TransformerEncoderLayer(E, HEADS, 8, dropout=0.1, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(T * E, 3)).double()
    x, y = data(samples=16)
    opt = EKFAC(model, 0.1, 0.1)
    losses = []
    for _ in range(30):
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        losses.append(float(loss.detach()))
    assert "mean gradients" not in opt.explain()
    assert losses[-1] < 0.7 * losses[0]


class Reader(nn.Module):
    """A transformer that reads words."""

    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.batch_first, self.words = batch_first, nn.Embedding(9, E)
        layer = nn.TransformerEncoderLayer(E, HEADS, 8, dropout=0.0, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(E), enable_nested_tensor=False)
        self.head = nn.Linear(E, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.words(x)
        return self.head(self.encoder(x).mean(1) if self.batch_first else self.encoder(x.transpose(0, 1)).mean(0))


@pytest.mark.parametrize(("samples", "tokens"), [(6, 5), (4, 8), (4, 4), (8, 4)])
def test_tokens_may_come_first(samples: int, tokens: int) -> None:
    """Also where their number is a multiple of that of the samples."""
    model, other = Reader(batch_first=True).double(), Reader(batch_first=False).double()
    other.load_state_dict(model.state_dict())
    x, y = torch.randint(0, 9, (samples, tokens)), torch.randint(0, 3, (samples,))
    for one in (model, other):
        opt = METHODS["ekfac"](one, LR, EPS)
        step(one, opt, x, y)
        assert "mean gradients" not in opt.explain()
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("tokens", [5, 12])
def test_tokens_first_in_layers_of_ones_own(tokens: int) -> None:
    """Also with a multiple of the number of samples: the graph tells."""

    class Own(nn.Module):
        def __init__(self, *, swapped: bool) -> None:
            super().__init__()
            self.first, self.norm, self.head = nn.Linear(E, 4), nn.LayerNorm(4), nn.Linear(4, 3)
            self.swapped = swapped

        def forward(self, x: Tensor) -> Tensor:
            y = self.norm(torch.tanh(self.first(x.transpose(0, 1) if self.swapped else x)))
            return self.head(y.square().mean(0 if self.swapped else 1))

    model, other = Own(swapped=False).double(), Own(swapped=True).double()
    other.load_state_dict(model.state_dict())
    x, y = data(tokens=tokens)
    step(model, METHODS["ekfac"](model, LR, EPS), x, y)
    step(other, METHODS["ekfac"](other, LR, EPS), x, y)
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-8)


def test_only_some_projections() -> None:
    model, (x, y) = Attending(batch_first=True).double(), data()
    model.attention.in_proj_weight.requires_grad_(False)
    opt = EKFAC(model, LR, EPS, params=["attention.*"])
    step(model, opt, x, y)
    said = opt.explain()
    assert "attention.in_proj_bias     exact block" in said
    assert "mean gradients" not in said


def test_nothing_is_left_of_a_step() -> None:
    model, (x, y) = Attending(batch_first=True).double(), data()
    opt = EKFAC(model, LR, EPS)
    x.requires_grad_()
    seen = []
    handle = model.attention.register_forward_hook(lambda _, args, out: seen.append(weakref.ref(out[0])))
    gc.disable()  # what only the collector of cycles would find is a leak while it does not run
    try:
        step(model, opt, x, y)
        assert seen[0]() is None
    finally:
        gc.enable()
        handle.remove()


def test_autocast() -> None:
    model, (x, y) = Attending(batch_first=True), data()
    opt = EKFAC(model, 0.1, EPS)
    for _ in range(2):
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x.float()), y)
        loss.backward()
        opt.step()
    assert "mean gradients" not in opt.explain()
    assert opt.skipped == 0


def test_compiled_attention_is_left_out() -> None:
    model, (x, y) = Attending(batch_first=True).double(), data()
    model.attention.forward = torch.compile(model.attention.forward, backend="aot_eager")
    opt = EKFAC(model, LR, EPS)
    with pytest.warns(tt.TangentWarning, match="get the diagonal from mean gradients.*cannot be read"):
        step(model, opt, x, y)
    assert "attention.in_proj_weight   diagonal from mean gradients" in opt.explain()


class Checked(Attending):
    """In a checkpoint, with a count of the calls."""

    reentrant, calls = False, 0

    def forward(self, x: Tensor) -> Tensor:
        found = checkpoint(self.called, x, use_reentrant=self.reentrant)
        assert isinstance(found, Tensor)
        return found

    def called(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x)


def test_checkpoints_that_call_autograd_change_nothing() -> None:
    model, (x, y) = Attending(batch_first=True).double(), data()
    other = Checked(batch_first=True).double()
    other.load_state_dict(model.state_dict())
    other.reentrant = True
    x.requires_grad_()
    for one in (model, other):
        step(one, METHODS["ekfac"](one, LR, EPS), x, y)
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q)


def test_checkpoints_compute_nothing_more_than_once() -> None:
    """To read what attention saved would be to compute it again."""
    model, (x, y) = Checked(batch_first=True).double(), data()
    opt = EKFAC(model, LR, EPS)
    with pytest.warns(tt.TangentWarning, match="get the diagonal from mean gradients.*in a checkpoint"):
        step(model, opt, x, y)
    assert model.calls == 2


def test_a_single_sequence_is_one_sample() -> None:
    class OneByOne(Attending):
        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.stack([self.attention(t, t, t)[0].mean(0) for t in x]))

    model, (x, y) = OneByOne().double(), data(samples=T)
    opt = EKFAC(model, LR, EPS)
    with pytest.warns(tt.TangentWarning, match="it saw 1 samples for 5 of the model"):
        step(model, opt, x, y)
    step(model, opt, x[:1], y[:1])


def test_biases_of_different_lengths_are_blocks_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector, "LARGEST", 9)
    model, (x, y) = Attending(batch_first=True).double(), data()
    opt = EKFAC(model, LR, EPS, params=["*bias"])
    step(model, opt, x, y)
    assert "attention.in_proj_bias " in opt.explain()


def test_no_gradient_at_all() -> None:
    class Nothing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> None:
            return None

    model, (x, y) = Attending(batch_first=True).double(), data()
    model.head.register_forward_pre_hook(lambda _, args: (Nothing.apply(args[0]),))
    opt = EKFAC(model, LR, EPS)
    step(model, opt, x, y)


def test_an_attention_of_ones_own_in_a_transformer_of_torch() -> None:
    class Own(nn.Module):
        def forward(self, x: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
            return x, None

    class Layer(nn.TransformerEncoderLayer):
        def __init__(self) -> None:
            super().__init__(E, HEADS, 8, batch_first=True)
            self.self_attn = Own()  # type: ignore[assignment]  # which torch lets one do

        def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]  # without masks
            return self.norm2(x + self._ff_block(self.norm1(x)))

    model, (x, y) = nn.Sequential(Layer(), nn.Flatten(), nn.Linear(T * E, 3)).double(), data()
    step(model, EKFAC(model, LR, EPS), x, y)


@pytest.mark.parametrize(("samples", "tokens"), [(6, 5), (8, 4), (4, 8), (4, 4)])
def test_input_with_tokens_first(samples: int, tokens: int) -> None:
    model, other = Reader(batch_first=True).double(), Reader(batch_first=False).double()
    other.load_state_dict(model.state_dict())
    x, y = torch.randint(0, 9, (samples, tokens)), torch.randint(0, 3, (samples,))
    step(model, METHODS["ekfac"](model, LR, EPS), x, y)
    turned = Turned(other)
    opt = METHODS["ekfac"](turned, LR, EPS, batch_axis=1)
    step(turned, opt, x.T.contiguous(), y)
    assert "mean gradients" not in opt.explain()
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(("samples", "tokens"), [(6, 5), (8, 4), (4, 8)])
def test_input_with_tokens_first_has_to_be_told(samples: int, tokens: int) -> None:
    model, y = Turned(Reader(batch_first=False)), torch.randint(0, 3, (samples,))
    opt = METHODS["ekfac"](model, LR, EPS)
    with pytest.raises(RuntimeError, match=f"sees {samples} samples of {tokens} tokens. .* batch_axis=1"):
        step(model, opt, torch.randint(0, 9, (tokens, samples)), y)


class Turned(nn.Module):
    """A reader whose input has tokens first."""

    def __init__(self, reader: Reader) -> None:
        super().__init__()
        self.reader = reader

    def forward(self, x: Tensor) -> Tensor:
        return self.reader.head(self.reader.encoder(self.reader.words(x)).mean(0))


def test_the_same_positions_for_all_samples_are_no_samples() -> None:
    class Placed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.places, self.head = nn.Embedding(T, E), nn.Linear(E, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.tanh(x + self.places(torch.arange(x.shape[1]))).mean(1))

    model, (x, y) = Placed().double(), data(samples=T)
    opt = EKFAC(model, LR, EPS)
    with pytest.warns(tt.TangentWarning, match="places.weight gets the diagonal.*the same positions for all samples"):
        step(model, opt, x, y)


def test_jacobians_in_between_are_not_recorded() -> None:
    model, (x, y) = Attending(batch_first=True).double().eval(), data()
    other = copy.deepcopy(model)
    one, two = METHODS["ekfac"](model, LR, EPS), METHODS["ekfac"](other, LR, EPS)
    step(model, one, x, y)
    two.zero_grad()
    loss = F.cross_entropy(other(x), y)
    tt.jacobian(other, x).dense()
    loss.backward()
    torch.func.vmap(lambda t: other(t[None])[0])(x)
    two.step()
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q)
