"""Parameters outside of layers: read off the graph where it can be done, exact in any case."""

from collections.abc import Callable
from typing import Any

import oracle
import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import Tensor, nn

import torchtangent as tt
from torchtangent.jacobians.capture import Capture
from torchtangent.jacobians.made import pull_behind

D = 6


class Written(nn.Module):
    """A model made of a function and what it uses."""

    def __init__(self, forward: Callable[..., Tensor], **parts: Any) -> None:
        super().__init__()
        self._forward = forward
        for name, part in parts.items():
            setattr(self, name, nn.Parameter(torch.randn(part)) if isinstance(part, tuple) else part)

    def forward(self, *x: Tensor) -> Tensor:
        return self._forward(self, *x)


def attention(**options: Any) -> nn.MultiheadAttention:
    layer = nn.MultiheadAttention(D, 2, **options)
    for p in layer.parameters():  # biases start as zeros
        nn.init.normal_(p)
    return layer


def first(m: Any, x: Tensor) -> Tensor:
    """Self-attention with the tokens first, as torch has it by default."""
    x = x.transpose(0, 1)
    return m.attend(x, x, x)[0].mean(0)


def words(x: Tensor) -> Tensor:
    """Numbers as words."""
    return x[..., 0].mul(4).long() % 9


def recurrent(kind: type[nn.RNNBase], **options: Any) -> Callable[[], nn.Module]:
    return lambda: Written(lambda m, x: torch.tanh(m.layer(x)[0]).flatten(1)[:, -3:], layer=kind(D, 4, **options))


READ: dict[str, Callable[[], nn.Module]] = {
    "attention": lambda: Written(
        lambda m, x: m.attend(x, x, x)[0].mean(1), attend=attention(batch_first=True)
    ),
    "attention, tokens first": lambda: Written(first, attend=attention()),
    "attention without biases": lambda: Written(
        lambda m, x: m.attend(x, x, x)[0].mean(1), attend=attention(batch_first=True, bias=False)
    ),
    "cross attention": lambda: Written(
        lambda m, x: m.attend(x[:, :2], x**2, x**2)[0].mean(1), attend=attention(batch_first=True)
    ),
    "three inputs": lambda: Written(
        lambda m, x: m.attend(x[:, :2], x**2, x**3)[0].mean(1), attend=attention(batch_first=True)
    ),
    "encoder": lambda: Written(
        lambda m, x: m.encoder(x)[:, 0], encoder=nn.TransformerEncoderLayer(D, 2, 8, 0.0, batch_first=True)
    ),
    "encoder, tokens first": lambda: Written(
        lambda m, x: m.encoder(x.transpose(0, 1))[0], encoder=nn.TransformerEncoderLayer(D, 2, 8, 0.0)
    ),
    "layers, tokens first": lambda: Written(
        lambda m, x: m.norm(m.last(torch.tanh(m.words(words(x).T) + m.linear(x.transpose(0, 1))))).square().sum(0),
        words=nn.Embedding(9, 4),
        linear=nn.Linear(D, 4),
        last=nn.Linear(4, 3, bias=False),
        norm=nn.LayerNorm(3),
    ),
    "windows": lambda: Written(
        lambda m, x: m.linear(x.unflatten(2, (2, -1)).flatten(0, 1)).sin().unflatten(0, (len(x), -1)).mean((1, 2)),
        linear=nn.Linear(D // 2, 3),
    ),
    "class token": lambda: Written(
        lambda m, x: torch.tanh(torch.cat([m.token.expand(len(x), -1, -1), x], 1)).sum(1), token=(1, 1, D)
    ),
    "repeated token": lambda: Written(
        lambda m, x: torch.tanh(torch.cat([m.token.repeat(len(x), 1, 1), x], 1)).sum(1), token=(1, 2, D)
    ),
    "positions": lambda: Written(lambda m, x: torch.tanh(x + m.place).sum(1), place=(1, 5, D)),
    "positions of more tokens": lambda: Written(
        lambda m, x: torch.tanh(x + m.place[:, :5]).sum(1) + m.place[:, -1], place=(1, 8, D)
    ),
    "positions without a sample axis": lambda: Written(lambda m, x: torch.tanh(m.place + x).sum(1), place=(5, D)),
    "layer scale": lambda: Written(lambda m, x: torch.tanh(x * m.scale).sum(1) + m.scale, scale=(D,)),
    "a number": lambda: Written(lambda m, x: torch.tanh(m.scale * x).sum(1), scale=()),
    "x W": lambda: Written(lambda m, x: torch.tanh(x @ m.weight).sum(1) + m.shift, weight=(D, 3), shift=(3,)),
    "rows of a weight": lambda: Written(lambda m, x: F.linear(x, m.weight[2:5], m.bias[1:4]).sin().sum(1),
                                        weight=(7, D), bias=(5,)),
    "a table that is read as a matrix": lambda: Written(
        lambda m, x: F.linear(m.table(x[..., 0].abs().mul(3).long() % 4) + x, m.table.weight).sin().sum(1),
        table=nn.Embedding(4, D, padding_idx=1),
    ),
    "a layer's bias added once more": lambda: Written(
        lambda m, x: torch.tanh(m.layer(x) + m.layer.bias).sum(1), layer=nn.Linear(D, 3)
    ),
    "a scaled sum": lambda: Written(lambda m, x: torch.add(x, m.shift, alpha=2.0).sin().sum(1), shift=(D,)),
    "a difference": lambda: Written(lambda m, x: (m.left - torch.sub(x, m.right, alpha=2)).sin().sum(1),
                                    left=(D,), right=(5, 1)),
    "a sum with a product": lambda: Written(
        lambda m, x: torch.addcmul(m.shift, m.scale, x, value=0.5).sin().sum(1), shift=(D,), scale=(1, 1, D)
    ),
    "a channel's scale": lambda: Written(lambda m, x: torch.tanh(x * m.scale + m.shift).sum(2), scale=(5, 1),
                                         shift=(5, 1)),
    "norms without a layer": lambda: Written(
        lambda m, x: F.group_norm(F.layer_norm(x, (D,), m.scale, m.shift), 1, m.channel, m.moved).sin().sum(1),
        scale=(D,), shift=(D,), channel=(5,), moved=(5,),
    ),
    "a batch norm without a layer": lambda: Written(
        lambda m, x: F.batch_norm(x, x.new_ones(5), x.new_ones(5), m.scale, m.shift).sin().sum(1),
        scale=(5,), shift=(5,),
    ),
    "a convolution without a layer": lambda: Written(
        lambda m, x: F.conv1d(x[:, :4], m.kernel, m.shift, 2, 2, 2, groups=2).sin().flatten(1)[:, ::2],
        kernel=(6, 2, 3), shift=(6,),
    ),
    "experts": lambda: Written(
        lambda m, x: torch.einsum("ntei,eoi->neo", torch.einsum("nti,eio->nteo", x, m.inward).sin(), m.outward).sum(1),
        inward=(3, D, 4), outward=(3, 2, 4),
    ),
    "heads that are joined": lambda: Written(
        lambda m, x: torch.einsum("nthi,hio->no", x.unflatten(2, (2, -1)).sin(), m.weight).sin(), weight=(2, D // 2, 3)
    ),
    "RNN": recurrent(nn.RNN, batch_first=True),
    "GRU, both ways": recurrent(nn.GRU, batch_first=True, bidirectional=True),
    "LSTM, two layers": recurrent(nn.LSTM, batch_first=True, num_layers=2),
}  # fmt: skip

MADE: dict[str, Callable[[], nn.Module]] = {
    "a square": lambda: Written(lambda m, x: torch.tanh(x @ m.weight**2).sum(1), weight=(D, 3)),
    "every second row": lambda: Written(lambda m, x: F.linear(x, m.weight[::2]).sin().sum(1), weight=(6, D)),
    "squared by itself": lambda: Written(lambda m, x: torch.tanh(x).sum(1) + m.scale * m.scale, scale=(D,)),
    "tiled": lambda: Written(lambda m, x: torch.tanh(x + m.place.repeat(5, 1)).sum(1), place=(1, D)),
    "positions that are embedded": lambda: Written(
        lambda m, x: torch.tanh(x + m.places(torch.arange(5))).sum(1), places=nn.Embedding(8, D)
    ),
    "a bias for each distance": lambda: Written(
        lambda m, x: (x @ x.mT + m.table[torch.arange(5)[:, None] - torch.arange(5) + 4]).softmax(2).sum(1),
        table=(9,),
    ),
    "weight norm": lambda: Written(
        lambda m, x: m.linear(m.conv(x).sin()).sum(1),
        conv=nn.utils.parametrizations.weight_norm(nn.Conv1d(5, 4, 1)),
        linear=nn.utils.parametrizations.weight_norm(nn.Linear(D, 3)),
    ),
    "spectral norm": lambda: nn.Sequential(
        nn.utils.parametrizations.spectral_norm(nn.Linear(D, 3)), nn.Flatten(), nn.Linear(15, 2)
    ),
    "a normalized weight": lambda: Written(
        lambda m, x: F.linear(x, F.normalize(m.weight, dim=1)).sin().sum(1), weight=(5, D)
    ),
    "two weights in one": lambda: Written(
        lambda m, x: F.linear(x, m.left @ m.right).sin().sum(1), left=(4, 2), right=(2, D)
    ),
    "a weight made by a network": lambda: Written(
        lambda m, x: F.linear(x, m.maker(m.code).view(3, D)).sin().sum(1), maker=nn.Linear(2, 3 * D), code=(2,)
    ),
    "one and a number": lambda: Written(lambda m, x: torch.tanh((1 + m.scale) * x).sum(1), scale=()),
    "a stack of layers": lambda: Written(
        lambda m, x: F.linear(F.linear(x, m.weight[0], m.bias[0]).sin(), *(t[1] for t in (m.weight, m.bias))).sum(1),
        weight=(2, D, D), bias=(2, D),
    ),
    "heads": lambda: Written(lambda m, x: torch.einsum("nti,hio->nho", x, m.weight).sin().sum(1), weight=(2, D, 3)),
    "in frequency": lambda: Written(
        lambda m, x: torch.fft.irfft(
            torch.einsum("nfi,fio->nfo", torch.fft.rfft(x, dim=1), torch.view_as_complex(m.weight)), n=5, dim=1
        ).sin().sum(1),
        weight=(3, D, 2, 2),
    ),
}  # fmt: skip

OTHERS: dict[str, Callable[[], nn.Module]] = {
    "a number as a matrix": lambda: Written(lambda m, x: (x[..., :1] @ m.scale.view(1, 1)).sin().sum(1), scale=()),
    "a sum with a complex factor": lambda: Written(
        lambda m, x: torch.add(x + 0j, m.shift + 0j, alpha=1j).abs().sum(1), shift=(D,)
    ),
    "a difference with a complex factor": lambda: Written(
        lambda m, x: torch.sub(x + 0j, torch.complex(m.shift, m.turn), alpha=2j).abs().sum(1), shift=(D,), turn=(D,)
    ),
    "a sum with a complex product": lambda: Written(
        lambda m, x: torch.addcmul(x + 0j, m.scale + 0j, x * 1j, value=1 + 2j).abs().sum(1), scale=(D,)
    ),
    "a scale in the middle, tokens first": lambda: Written(
        lambda m, x: torch.tanh(m.scale * x.transpose(0, 1).unflatten(2, (2, -1))).sum(0).flatten(1), scale=(2, 1)
    ),
    "a token for each, stacked": lambda: Written(
        lambda m, x: (m.layer(torch.stack([m.token] * len(x))) * x).sin().sum(1), token=(5, D), layer=nn.Linear(D, D)
    ),
    "a weight on the left": lambda: Written(lambda m, x: (m.weight @ x.mT).sin().sum(2), weight=(3, D)),
    "a scaled product": lambda: Written(
        lambda m, x: torch.addmm(m.shift, x.flatten(0, 1), m.weight, alpha=0.5, beta=3).sin().view(len(x), -1),
        shift=(2,), weight=(D, 2),
    ),
}  # fmt: skip


def looped(m: Any, x: Tensor) -> Tensor:
    """A recurrent network, step by step."""
    h = x.new_zeros(len(x), 3)
    for token in x.unbind(1):
        h = torch.tanh(token @ m.inward.T + h @ m.around.T + m.shift)
    return h @ m.outward.T


def overwritten(m: Any, x: Tensor) -> Tensor:
    weight = m.weight.clone()
    weight[1] = 2.0
    weight *= 3
    return (x @ weight.T).sin().sum(1)


class Sight(nn.Module):
    """A vision transformer with nothing of torch's own: patches, a class token, one block, a head."""

    def __init__(self) -> None:
        super().__init__()
        sizes = {"patch": (D, 3), "token": (1, 1, D), "place": (1, 11, D), "qkv": (3 * D, D), "out": (D, D)}
        sizes |= {"up": (8, D), "rise": (8,), "down": (D, 8), "head": (3, D)}
        for name, size in sizes.items():
            self.register_parameter(name, nn.Parameter(torch.randn(size) / 2))

    def forward(self, x: Tensor) -> Tensor:
        h = x.unflatten(2, (2, 3)).flatten(1, 2) @ self.patch.T
        h = torch.cat([self.token.expand(len(x), -1, -1), h], 1) + self.place
        q, k, v = (t.unflatten(2, (2, -1)).transpose(1, 2) for t in (h @ self.qkv.T).chunk(3, -1))
        seen = torch.softmax(q @ k.mT / 3**0.5, -1) @ v
        h = h + seen.transpose(1, 2).flatten(2) @ self.out.T
        h = h + F.gelu(h @ self.up.T + self.rise) @ self.down.T
        return h[:, 0] @ self.head.T


READ |= {
    "x Wᵀ": lambda: Written(lambda m, x: torch.tanh(x @ m.weight.T + m.shift).sum(1), weight=(3, D), shift=(3,)),
    "one unit": lambda: Written(lambda m, x: torch.einsum("nti,oi->no", x.sin(), m.weight), weight=(1, D)),
    "axes counted from the end": lambda: Written(
        lambda m, x: torch.tanh(x @ m.weight.permute(-1, -2)).sum(1), weight=(3, D)
    ),
    "rows of a transposed weight": lambda: Written(
        lambda m, x: (x @ m.weight.T[:, 1:4]).sin().sum(1), weight=(5, D)
    ),
    "low rank": lambda: Written(
        lambda m, x: (x @ m.full.T + x @ m.down.T @ m.up.T).sin().sum(1), full=(3, D), down=(2, D), up=(3, 2)
    ),
    "a loop": lambda: Written(looped, inward=(3, D), around=(3, 3), shift=(3,), outward=(2, 3)),
    "vision transformer by hand": Sight,
    "a copy": lambda: Written(lambda m, x: (x @ m.weight.t().contiguous()).sin().sum(1), weight=(3, D)),
    "a copy, cut": lambda: Written(lambda m, x: F.linear(x, m.weight.clone()[1:3]).sin().sum(1), weight=(4, D)),
    "divided": lambda: Written(
        lambda m, x: F.linear(x, m.weight / 7, 0.3 * m.bias).sin().sum(1), weight=(3, D), bias=(3,)
    ),
    "divided, without a bias's factor": lambda: Written(
        lambda m, x: F.linear(x, m.weight / 7, m.bias).sin().sum(1), weight=(3, D), bias=(3,)
    ),
    "multiplied twice, by a tensor and by -1": lambda: Written(
        lambda m, x: (x @ (torch.tensor(0.3) * -m.weight * 5).T).sin().sum(1), weight=(3, D)
    ),
    "a buffer's factor": lambda: Written(
        lambda m, x: torch.tanh(x * (m.scale * m.size) + m.place / 3).sum(1), scale=(D,), place=(1, 5, D),
        size=nn.Buffer(torch.tensor(1.7)),
    ),
    "a table, multiplied": lambda: Written(
        lambda m, x: F.embedding(words(x), m.table * 0.5, padding_idx=1).sin().sum(1), table=(9, 3)
    ),
    "einsum": lambda: Written(lambda m, x: torch.einsum("nti,oi->nto", x, m.weight).sin().sum(1), weight=(3, D)),
    "einsum, the weight first": lambda: Written(
        lambda m, x: torch.einsum("io,nti->nto", m.weight, x).sin().sum(1), weight=(D, 3)
    ),
    "einsum with a factor": lambda: Written(
        lambda m, x: torch.einsum("ni,oi->no", x[:, 0], m.weight / 3**0.5), weight=(3, D)
    ),
    "tensordot": lambda: Written(
        lambda m, x: (torch.tensordot(x, m.a, ([2], [1])) + torch.tensordot(x, m.b, 1)).sin().sum(1), a=(3, D), b=(D, 3)
    ),
}  # fmt: skip

OTHERS |= {
    "a scaled weight's learned factor": lambda: Written(
        lambda m, x: (x @ (m.weight * m.size).T).sin().sum(1), weight=(3, D), size=()
    ),
    "a mask": lambda: Written(
        lambda m, x: (x @ (m.weight * m.mask).T).sin().sum(1), weight=(3, D), mask=nn.Buffer(torch.ones(3, D).tril())
    ),
    "a number for each row": lambda: Written(
        lambda m, x: (x @ (m.weight / m.size).T).sin().sum(1), weight=(3, D), size=nn.Buffer(torch.rand(3, 1) + 1)
    ),
    "divided by": lambda: Written(lambda m, x: (x @ (2 / m.weight).T).sin().sum(1), weight=(3, D)),
    "a product for each token": lambda: Written(
        lambda m, x: torch.einsum("nti,tio->nto", x, m.weight).sin().sum(1), weight=(5, D, 3)
    ),
    "einsum, the weight on the left": lambda: Written(
        lambda m, x: torch.einsum("oi,nit->not", m.weight, x.mT).sin().sum(2), weight=(3, D)
    ),
    "a copy, overwritten": lambda: Written(overwritten, weight=(3, D)),
    "rows of a flat weight, from the middle of one": lambda: Written(
        lambda m, x: F.linear(x, m.weight.view(-1)[2 : 2 + 2 * D].view(2, D)).sin().sum(1), weight=(4, D)
    ),
    "shuffled": lambda: Written(
        lambda m, x: (x @ m.weight.permute(1, 0, 2).reshape(D, -1)).sin().sum(1), weight=(3, D, 2)
    ),
}  # fmt: skip


class RowVectors(nn.Module):
    """b + x W with the inputs of W first, as GPT-2 of Hugging Face has it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(inputs, outputs)), nn.Parameter(torch.randn(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], -1)


class RMS(nn.Module):
    """A norm layer of one's own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


class Language(nn.Module):
    """A small language model, with little of torch's own: its head is the table of its words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(9, D), nn.Parameter(torch.randn(1, 8, D))
        self.before, self.mix, self.out, self.after = RMS(D), RowVectors(D, 3 * D), RowVectors(D, D), RMS(D)

    def forward(self, x: Tensor) -> Tensor:
        index = words(x)
        h = self.words(index) + self.places[:, : index.shape[1]]
        q, k, v = (t.unflatten(2, (2, -1)).transpose(1, 2) for t in self.mix(self.before(h)).split(D, -1))
        h = h + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return F.linear(self.after(h)[:, -1], self.words.weight)


READ["language model"] = Language


def build(make: Callable[[], nn.Module], samples: int) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return make().double().eval(), torch.randn(samples, 5, D, dtype=torch.float64)


def check(model: nn.Module, x: Tensor) -> None:
    J = oracle.jacobian(model, x)
    torch.testing.assert_close(tt.jacobian(model, x).dense(), J, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(tt.ntk(model, x), torch.einsum("ncp,mep->nmce", J, J), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("samples", [1, 2, 3, 5, 6])  # five samples of five tokens: which axis is which?
@pytest.mark.parametrize("name", READ)
def test_read_off_the_graph(name: str, samples: int) -> None:
    model, x = build(READ[name], samples)
    capture = Capture(model)
    capture.trace(x)
    assert not capture.uncovered
    check(model, x)


@pytest.mark.parametrize("samples", [1, 2, 3, 5, 6])
@pytest.mark.parametrize("name", MADE)
def test_what_is_made_of_a_parameter_is_used_like_one(name: str, samples: int) -> None:
    """Of one sample it is not known to be the same for all, and the fallback takes it."""
    model, x = build(MADE[name], samples)
    capture = Capture(model)
    capture.trace(x)
    assert not capture.uncovered or samples == 1
    check(model, x)


def test_what_is_made_of_many_parameters_is_pulled_back_to_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass for each of them and each weight takes longer than the fallback."""
    made: list[int] = []

    def counted(parts: Any, params: Any) -> Any:
        made.append(len(params))
        return pull_behind(parts, params)

    monkeypatch.setattr("torchtangent.jacobians.trace.pull_behind", counted)

    def twice(m: Any, x: Tensor) -> Tensor:
        first, second = (m.maker(code).view(D, D) for code in m.code)
        return F.linear(F.linear(x, first).sin(), second).sum(1)

    maker = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, D * D))
    model, x = build(lambda: Written(twice, maker=maker, code=(2, 2)), 3)
    trace = Capture(model).trace(x)
    made.clear()
    trace.pull(trace.units())
    assert made == [5]
    check(model, x)


@pytest.mark.parametrize("samples", [1, 2, 5])
@pytest.mark.parametrize("name", OTHERS)
def test_what_is_not_known_there_is_left_to_the_fallback(name: str, samples: int) -> None:
    check(*build(OTHERS[name], samples))


SILENT: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "one sample": (lambda: Written(lambda m, x: F.prelu(x[:, 0], m.slope.view(1)).mT.mT, slope=()), 1),
    "half of the rows": (
        lambda: Written(lambda m, x: torch.where(torch.cat([x[:, 0]] * 2) < 0, m.low, 0)[: len(x)], low=(D,)), 2
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:The Jacobian of slope is computed sample by sample")
@pytest.mark.parametrize("name", SILENT)
def test_what_ends_in_the_output_without_a_known_use_is_not_zero(name: str) -> None:
    """Where the first batch has no derivative, nothing else would tell."""
    make, samples = SILENT[name]
    model, x = build(make, 2 * samples)
    x = torch.cat([x[:samples].abs(), -x[samples:].abs()])
    J = oracle.jacobian(model, x)
    found = tt.fisher(model, [(t, None) for t in x.split(samples)], tt.Dense, likelihood="gaussian").dense()
    torch.testing.assert_close(found, torch.einsum("ncp,ncq->pq", J, J) / len(x), rtol=1e-10, atol=1e-12)


COMPLEX: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "scale": lambda m, x: torch.complex(x, x.sin()) * m.weight[0],
    "weight": lambda m, x: torch.complex(x, x.sin()) @ (m.weight + 0j),
    "made": lambda m, x: x * torch.exp(1j * m.weight[0]) + x,
}


@pytest.mark.parametrize("name", COMPLEX)
@pytest.mark.parametrize("samples", [1, 3])
def test_a_real_parameter_of_complex_numbers_has_a_real_derivative(name: str, samples: int) -> None:
    model, x = build(lambda: Written(lambda m, x: COMPLEX[name](m, x).abs().sum(1), weight=(D, D)), samples)
    check(model, x)
    J = oracle.jacobian(model, x)
    found = tt.fisher(model, (x, None), tt.Diagonal, likelihood="gaussian").diag()
    torch.testing.assert_close(found, J.square().sum((0, 1)) / samples, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("tokens", [1, 2, 3])
@pytest.mark.parametrize("samples", [2, 3])
def test_few_tokens(tokens: int, samples: int) -> None:
    """With as many tokens as samples were checked, or with one, shapes do not tell one axis from the other."""
    model, x = build(READ["attention"], samples)
    check(model, x[:, :tokens])


def test_batches_of_other_sizes() -> None:
    """What was found out with the first batch holds for all: as many samples as tokens, one, other lengths."""
    model, x = build(READ["attention"], 12)
    batches = [x[:3], x[3:8], x[8:9], x[9:, :3], x[9:, :1]]
    loader = [(batch, None) for batch in batches]
    F = tt.fisher(model, loader, tt.Dense, likelihood="gaussian").dense()
    total = sum(torch.einsum("ncp,ncq->pq", J, J) for J in (oracle.jacobian(model, b) for b in batches))
    torch.testing.assert_close(F, total / 15, rtol=1e-10, atol=1e-12)


def test_single_precision_lstm_uses_no_fused_operation() -> None:
    """torch has one operation for all steps in float32, which hides them; settings are as before, also on errors."""
    model, x = build(READ["LSTM, two layers"], 4)
    model, x = model.float(), x.float()
    J = tt.jacobian(model, x)
    torch.testing.assert_close(J.dense().double(), oracle.jacobian(model.double(), x.double()), rtol=1e-4, atol=1e-5)
    assert torch.backends.mkldnn.enabled
    assert torch.backends.cudnn.enabled
    with pytest.raises(RuntimeError):
        tt.jacobian(model.float(), x[..., :3])
    assert torch.backends.mkldnn.enabled
    assert torch.backends.cudnn.enabled


BY_HAND: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "x Wᵀ": lambda x, w: x @ w.T,
    "einsum": lambda x, w: torch.einsum("ni,oi->no", x, w),
    "tensordot": lambda x, w: torch.tensordot(x, w, ([1], [1])),
    "copy": lambda x, w: x @ w.t().contiguous(),
    "factor": lambda x, w: F.linear(x, 8 * w / 8),
}


@pytest.mark.parametrize("representation", [tt.KFAC, tt.EKFAC, tt.BlockDiagonal])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", BY_HAND)
def test_a_linear_layer_by_hand_is_a_layer_like_others(name: str, bias: bool, representation: Any) -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        y = BY_HAND[name](x, m.layer.weight)
        return m.last(torch.tanh(y + m.layer.bias if bias else y))

    torch.manual_seed(0)
    usual = Written(lambda m, x: m.last(torch.tanh(m.layer(x))), layer=nn.Linear(3, 4, bias), last=nn.Linear(4, 2))
    own = Written(forward, **usual.double()._modules)
    x = torch.randn(7, 3, dtype=torch.float64)
    found, wanted = (tt.fisher(model, (x, None), representation).dense() for model in (own, usual))
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


def test_a_layer_with_a_factor_is_one_with_other_inputs() -> None:
    torch.manual_seed(0)
    usual = Written(lambda m, x: m.layer(x).sin(), layer=nn.Linear(3, 4)).double()
    own = Written(lambda m, x: F.linear(x, m.layer.weight / 8, m.layer.bias).sin(), layer=usual.layer)
    x = torch.randn(7, 3, dtype=torch.float64)
    found, wanted = (tt.fisher(m, (x, None), tt.KFAC).dense() for m, x in ((own, x), (usual, x / 8)))
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


def test_a_bias_with_a_factor_is_a_block_of_its_own() -> None:
    torch.manual_seed(0)
    model = Written(lambda m, x: F.linear(x, m.weight / 8, m.bias * 0.3).sin(), weight=(4, 3), bias=(4,)).double()
    x = torch.randn(7, 3, dtype=torch.float64)
    found = tt.fisher(model, (x, None), tt.KFAC, likelihood="gaussian").dense()
    J = oracle.jacobian(model, x)[..., 12:]
    torch.testing.assert_close(found[12:, 12:].diag(), J.square().sum((0, 1)) / 7, rtol=1e-10, atol=1e-12)
    assert not found[:12, 12:].any()


@pytest.mark.parametrize("representation", [tt.KFAC, tt.EKFAC, tt.QuasiDiagonal, tt.BlockDiagonal])
def test_a_weight_with_its_inputs_first_is_a_layer_like_others(representation: Any) -> None:
    torch.manual_seed(0)
    own = nn.Sequential(RowVectors(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    usual = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    usual.load_state_dict({**own.state_dict(), "0.weight": own[0].weight.T})
    x = torch.randn(7, 3, dtype=torch.float64)
    order = torch.cat([torch.arange(12).view(4, 3).T.flatten(), torch.arange(12, 26)])
    found, expected = (tt.fisher(model, (x, None), representation).dense() for model in (own, usual))
    torch.testing.assert_close(found, expected[order][:, order], rtol=1e-10, atol=1e-12)


# ---------------------------------------------------------------------- which rows are which samples'


def fisher_error(model: nn.Module, batches: list[Tensor]) -> float:
    found = tt.fisher(model, [(x, None) for x in batches], tt.Dense, likelihood="gaussian").dense()
    total = sum(torch.einsum("ncp,ncq->pq", J, J) for J in (oracle.jacobian(model, x) for x in batches))
    return oracle.relative_error(found, total / sum(map(len, batches)))


def tokens_first(m: Any, x: Tensor) -> Tensor:
    return F.linear(x.transpose(0, 1).flatten(0, 1), m.weight).sin().unflatten(0, (x.shape[1], -1)).sum(0)


@pytest.mark.parametrize("name", ["attention without biases", "encoder"])
@pytest.mark.parametrize("tokens", [2, 5])
def test_blank_samples_prove_nothing(name: str, tokens: int) -> None:
    model, x = build(READ[name], 5)
    x[:2] = 0
    check(model, x[:, :tokens])


def test_rows_that_both_axes_fit_prove_nothing() -> None:
    """Only the last valid token is read: of the first two samples the first, and the last."""

    def forward(m: Any, x: Tensor) -> Tensor:
        h = F.linear(x.transpose(0, 1), m.weight).sin()
        return (h * (x[..., 0].T > 5).unsqueeze(2)).sum(0)

    model, x = build(lambda: Written(forward, weight=(3, D)), 6)
    x[..., 0] = 0
    x[torch.arange(6), torch.tensor([0, 4, 1, 3, 2, 0]), 0] = 9.0
    check(model, x)


def test_a_use_that_is_dead_at_the_check() -> None:
    model, x = build(
        lambda: Written(
            lambda m, x: tokens_first(m, x) + torch.relu(tokens_first(m, x.square()) * x[:, 0, :1]), weight=(3, D)
        ),
        5,
    )
    x[:2, 0, 0], x[2:, 0, 0] = 0.0, 2.0
    check(model, x)


@pytest.mark.parametrize("shapes", [[(3, 4, 1), (3, 1, 4)], [(3, 2, 3), (3, 3, 2)], [(1, 5, 1), (4, 1, 1), (4, 5, 1)],
                                    [(2, 5, 1), (1, 7, 1), (2, 1, 1), (4, 5, 1)]])  # fmt: skip
def test_layouts_that_have_the_same_number_of_rows(shapes: list[tuple[int, int, int]]) -> None:
    """Samples between two other axes: outer with one head, inner with one token."""
    torch.manual_seed(0)
    model = Written(
        lambda m, x: (
            F.linear(x.permute(2, 0, 1, 3).flatten(0, 2), m.weight)
            .sin()
            .view(x.shape[2], x.shape[0], x.shape[1], -1)
            .sum((0, 2))
        ),
        weight=(3, D),
    ).double()
    assert fisher_error(model, [torch.randn(*shape, D, dtype=torch.float64) for shape in shapes]) < 1e-10


@pytest.mark.parametrize("layer", [True, False])
def test_rows_in_another_order_than_samples(layer: bool) -> None:
    """A model may sort its samples, by their lengths for instance, and put them back."""

    def forward(m: Any, x: Tensor) -> Tensor:
        order = x[:, 0, 0].argsort()
        h = m.layer(x[order]) if layer else F.linear(x[order], m.layer.weight)
        return h.sin().sum(1)[order.argsort()]

    model, x = build(lambda: Written(forward, layer=nn.Linear(D, 3, bias=False)), 6)
    x[:, 0, 0] = torch.tensor([0.0, 1, 5, 3, 2, 4])
    check(model, x)


@pytest.mark.parametrize("layer", [True, False])
def test_samples_of_many_lengths(layer: bool) -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        kept = x[..., 0] > 0
        h = m.layer(x[kept]) if layer else F.linear(x[kept], m.layer.weight)
        total = (
            h.sin()
            if len(x) == 1
            else torch.zeros(*x.shape[:2], 3, dtype=x.dtype).masked_scatter(kept.unsqueeze(2), h.sin())
        )
        return total.sum(0, keepdim=True) if len(x) == 1 else total.sum(1)

    model, x = build(lambda: Written(forward, layer=nn.Linear(D, 3, bias=False)), 6)
    x[..., 0] = (torch.arange(5) < torch.tensor([3, 3, 2, 4, 1, 5])[:, None]).double()
    with pytest.warns(tt.TangentWarning, match="sample by sample"):
        J = tt.jacobian(model, x).dense()
    torch.testing.assert_close(J, oracle.jacobian(model, x), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_sees_the_axis_too(dtype: torch.dtype) -> None:
    model, x = build(lambda: Written(tokens_first, weight=(2, D)), 6)
    wanted = oracle.jacobian(model, x)
    found = tt.jacobian(model.to(dtype), x.to(dtype)).dense().double()
    assert oracle.relative_error(found, wanted) < 0.03


@pytest.mark.parametrize("tokens_come_first", [False, True])
@pytest.mark.parametrize("representation", [tt.KFAC, tt.EKFAC])
def test_a_bias_is_in_its_weights_block_wherever_tokens_are(representation: Any, tokens_come_first: bool) -> None:
    """On inputs that are not contiguous torch adds it in an operation of its own."""

    def forward(m: Any, x: Tensor) -> Tensor:
        x = x.transpose(0, 1) if tokens_come_first else x
        return F.linear(x, m.layer.weight, m.layer.bias).sin().sum(0 if tokens_come_first else 1)

    torch.manual_seed(0)
    usual = Written(lambda m, x: m.layer(x).sin().sum(1), layer=nn.Linear(D, 3)).double()
    own = Written(forward, layer=usual.layer)
    x = torch.randn(4, 5, D, dtype=torch.float64)
    found, wanted = (tt.fisher(model, (x, None), representation).dense() for model in (own, usual))
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


# ---------------------------------------------------------------------------------------- odd cases


def test_odd_operands() -> None:
    for x in (torch.rand(4, D) > 0.5, torch.randint(3, (4, D))):
        model = Written(lambda m, x: (x * m.scale).sin() + m.none.sum(), scale=(D,), none=(0, 4)).double()
        J = tt.jacobian(model, x, params="scale").dense()
        torch.testing.assert_close(J, oracle.jacobian(model, x, keep=lambda name, p: name == "scale"))


NOTHING: dict[str, Callable[[], nn.Module]] = {
    "a layer of no outputs": lambda: Written(
        lambda m, x: torch.cat([m.layer(x).sum(1).sin(), m.none(x).sum(1)], 1),
        layer=nn.Linear(D, 3), none=nn.Linear(D, 0),
    ),
    "a layer of no inputs": lambda: Written(
        lambda m, x: (m.layer(x) + m.none(x[..., :0])).sin().sum(1), layer=nn.Linear(D, 3), none=nn.Linear(0, 3)
    ),
    "no tokens": lambda: Written(
        lambda m, x: m.layer(x).sin().sum(1) + m.norm(m.none(x[:, :0]) + m.words(words(x[:, :0]))).sum(1),
        layer=nn.Linear(D, 3), none=nn.Linear(D, 3), words=nn.Embedding(9, 3), norm=nn.LayerNorm(3),
    ),
    "no tokens, without layers": lambda: Written(
        lambda m, x: m.layer(x).sin().sum(1) + (F.linear(x[:, :0], m.weight, m.bias) * m.scale).sum(1),
        layer=nn.Linear(D, 3), weight=(3, D), bias=(3,), scale=(3,),
    ),
    "a weight of no columns": lambda: Written(
        lambda m, x: m.layer(x).sin().sum(1) + x[:, 0, :0] @ m.weight, layer=nn.Linear(D, 3), weight=(0, 3)
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors:UserWarning")
@pytest.mark.parametrize("name", NOTHING)
def test_nothing_has_no_derivative(name: str) -> None:
    model, x = build(NOTHING[name], 5)
    check(model, x)
    J = oracle.jacobian(model, x)
    found = tt.fisher(model, (x, None), tt.Dense, likelihood="gaussian").dense()
    torch.testing.assert_close(found, torch.einsum("ncp,ncq->pq", J, J) / 5, rtol=1e-10, atol=1e-12)


class Keeps(torch.autograd.Function):
    """A function with an attribute that leaves of the graph have."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.variable = x
        return x.clone()

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Tensor:
        return d


def test_a_function_that_looks_like_a_leaf() -> None:
    check(*build(lambda: Written(lambda m, x: Keeps.apply(m.layer(x)).sin().sum(1), layer=nn.Linear(D, 3)), 4))


def test_an_interrupted_recurrent_layer_leaves_no_trace() -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    model, x = build(READ["LSTM, two layers"], 4)
    model.layer.register_forward_pre_hook(stop)
    with pytest.raises(KeyboardInterrupt):
        tt.jacobian(model, x)
    assert torch.backends.mkldnn.enabled
    assert torch.backends.cudnn.enabled


def test_a_recurrent_layer_in_a_checkpoint() -> None:
    model = Written(
        lambda m, x: torch.utils.checkpoint.checkpoint(lambda x: m.layer(x)[0], x, use_reentrant=False)[:, -1],
        layer=nn.LSTM(D, 3, batch_first=True),
    )
    torch.manual_seed(0)
    x = torch.randn(4, 5, D, requires_grad=True)
    with pytest.warns(tt.TangentWarning, match="sample by sample"):
        J = tt.jacobian(model, x.detach()).dense().double()
    torch.testing.assert_close(J, oracle.jacobian(model.double(), x.detach().double()), rtol=1e-3, atol=1e-5)


def test_prelu_in_the_fallback_is_not_vectorized() -> None:
    """torch's derivative for several samples is wrong, which need not show in the samples that are checked."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.slope = nn.Parameter(torch.tensor(0.25))

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.prelu(x, self.slope.view(1)) / self.slope

    model, x = Net().double(), torch.linspace(-1, 1, 12).double().view(4, 3).roll(1, 0)
    expected = torch.where(x > 0, -x / 0.25**2, 0.0)
    x[0] = x[3] = 1.0
    expected[0] = expected[3] = -1 / 0.25**2
    with pytest.warns(tt.TangentWarning, match="derivatives of PReLU are wrong for several samples"):
        J = tt.jacobian(model, x).dense()
    torch.testing.assert_close(J[..., 0], expected)
