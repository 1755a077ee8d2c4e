"""Samples that stand in another order inside of a model: exact in any case, and free of cost where they do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import oracle
import pytest
import torch
import torch.nn.functional as F
from cases import ZOO, Wired, parameter
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

import torchtangent as tt
from torchtangent.jacobians import trace
from torchtangent.jacobians.capture import Capture
from torchtangent.jacobians.graph import Graph
from torchtangent.jacobians.layout import find_strides
from torchtangent.jacobians.rows import SampleFactors

Order = Callable[[Tensor], Tensor]

# Every one of these orders leaves two samples as they are, which is how many are looked at first.


def turned(n: int) -> list[int]:
    """0, 1, and the others backward."""
    return [*range(min(n, 2)), *reversed(range(2, n))]


def matrix(x: Tensor) -> Tensor:
    return torch.eye(len(x), dtype=x.dtype)[turned(len(x))]


def halves(x: Tensor) -> Tensor:
    return x.unflatten(0, (2, -1)).transpose(0, 1).flatten(0, 1) if len(x) % 2 == 0 else x


def riffled(x: Tensor) -> Tensor:
    return x.unflatten(0, (-1, 2)).transpose(0, 1).flatten(0, 1) if len(x) % 2 == 0 else x


def interleaved(x: Tensor) -> Tensor:
    """The other way round than even and odd ones apart."""
    half = (len(x) + 1) // 2
    return torch.stack([x[i // 2 + (i % 2) * half] for i in range(len(x))])


def shifted_window(x: Tensor) -> Tensor:
    """x[2:] and then the first two, by cutting and by padding."""
    return F.pad(x, (0, 0, -2, 2)) + F.pad(x, (0, 0, len(x) - 2, -(len(x) - 2))) if len(x) > 2 else x


def convolved(x: Tensor) -> Tensor:
    """Samples are the locations of a convolution that moves them by two, around."""
    if len(x) < 3:
        return x
    kernel = torch.tensor([0.0, 0, 0, 0, 1], dtype=x.dtype).view(1, 1, 5).expand(x.shape[1], 1, 5)
    return F.conv1d(F.pad(x.T.unsqueeze(0), (2, 2), mode="circular"), kernel, groups=x.shape[1])[0].T


def attended(x: Tensor) -> Tensor:
    """Samples are tokens, each of which sees one other."""
    seen = matrix(x).bool().view(1, 1, len(x), len(x))
    return F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None], seen)[0, 0]


def written(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    for i, j in enumerate(turned(len(x))):
        y[j] = x[i]
    return y


def turn(x: Tensor) -> Tensor:
    return torch.cat([x[:2], x[2:].flip(0)])


ORDERS: dict[str, tuple[Order, Order]] = {
    "roll": (lambda x: x.roll(2, 0), lambda x: x.roll(-2, 0)),
    "roll of all entries": (lambda x: x.roll(2 * x.shape[1]), lambda x: x.roll(-2 * x.shape[1])),
    "flip": (turn, turn),
    "even and odd": (lambda x: torch.cat([x[0::2], x[1::2]]), interleaved),
    "two halves, turned": (halves, riffled),
    "stack of rows": (turn, lambda x: torch.stack([x[i] for i in turned(len(x))])),
    "stack of unbound rows": (turn, lambda x: torch.stack([x.unbind()[i] for i in turned(len(x))])),
    "cat of rows": (turn, lambda x: torch.cat([x.narrow(0, i, 1) for i in turned(len(x))])),
    "cat of pieces": (turn, lambda x: torch.cat([x.split(1)[i] for i in turned(len(x))])),
    "rows written one by one": (turn, written),
    "permutation matrix": (lambda x: matrix(x) @ x, lambda x: matrix(x).T @ x),
    "permutation matrix on the right": (turn, lambda x: (x.T @ matrix(x)).T),
    "permutation matrix, batched": (turn, lambda x: torch.bmm(matrix(x)[None], x[None])[0]),
    "permutation matrix, added": (turn, lambda x: torch.addmm(torch.zeros_like(x), matrix(x), x)),
    "einsum": (turn, lambda x: torch.einsum("mn,nd->md", matrix(x), x)),
    "gather": (turn, lambda x: x.gather(0, torch.tensor(turned(len(x)))[:, None].expand_as(x))),
    "index_select": (turn, lambda x: x.index_select(0, torch.tensor(turned(len(x))))),
    "embedding": (turn, lambda x: F.embedding(torch.tensor(turned(len(x))), x)),
    "as_strided": (lambda x: torch.cat([x[1::2], x[0::2]]) if len(x) > 2 else x,
                   lambda x: torch.cat([x.as_strided((len(x) // 2, 2, x.shape[1]),
                                                     (x.shape[1], len(x) // 2 * x.shape[1], 1)).flip(1).flatten(0, 1),
                                        x[len(x) - len(x) % 2:]]) if len(x) > 2 else x),
    "padding": (lambda x: x.roll(2, 0), shifted_window),
    "convolution": (lambda x: x.roll(2, 0), convolved),
    "attention": (turn, attended),
    "differences of sums": (turn, lambda x: turn(x.cumsum(0).diff(dim=0, prepend=torch.zeros_like(x[:1])))),
}  # fmt: skip


def reordered(name: str, rows: int) -> nn.Module:
    """A layer, and a bare weight, that see samples in another order; some rows for each."""
    there, back = ORDERS[name]

    def wiring(m: Any, x: Tensor) -> Tensor:
        h = there(x.flatten(1)).reshape(-1, 4)
        h = F.linear(torch.tanh(m.first(h)), m.second).sin()
        return m.head(back(h.view(len(x), -1)))

    return Wired(wiring, first=nn.Linear(4, 3), second=parameter(3, 3), head=nn.Linear(3 * rows, 2))


def check(model: nn.Module, x: Any) -> None:
    """All that is made of layer Jacobians."""
    J = oracle.jacobian(model, x)
    found = tt.jacobian(model, x)
    oracle.assert_close(found.dense(), J)
    for name, place in oracle.positions(model).items():
        oracle.assert_close(found.layers[name].dense(), J[..., place])
    oracle.assert_close(tt.ntk(model, x), torch.einsum("ncp,mep->nmce", J, J))
    found_F = tt.fisher(model, [(x, None)], tt.Dense, likelihood="gaussian").dense()
    oracle.assert_close(found_F, torch.einsum("ncp,ncq->pq", J, J) / len(J))


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("name", ORDERS)
def test_samples_in_another_order(name: str, rows: int) -> None:
    check(reordered(name, rows).double(), torch.randn(6, rows, 4, dtype=torch.float64))


@pytest.mark.usefixtures("quiet")
def test_sorted_by_length_and_put_back() -> None:
    def wiring(m: Any, x: Tensor) -> Tensor:
        order = sorted(range(len(x)), key=lambda i: float(x[i, 0]))
        h = torch.tanh(m.first(torch.stack([x[i] for i in order])))
        return m.head(torch.stack([h[order.index(i)] for i in range(len(x))]))

    x = torch.randn(6, 3, dtype=torch.float64)
    x[:2, 0] = torch.tensor([-5.0, -4.0])
    check(Wired(wiring, first=nn.Linear(3, 4), head=nn.Linear(4, 2)).double(), x)


# ------------------------------------------------------------------------------- samples of many lengths


def summed(h: Tensor, mask: Tensor) -> Tensor:
    return torch.stack([part.sum(0) for part in h.split(mask.sum(1).tolist())])


POOLS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "split": summed,
    "pad_sequence": lambda h, mask: pad_sequence(list(h.split(mask.sum(1).tolist())), batch_first=True).sum(1),
    "segment_reduce": lambda h, mask: torch.segment_reduce(h, "sum", lengths=mask.sum(1)),
    "one-hot": lambda h, mask: F.one_hot(mask.nonzero()[:, 0], len(mask)).to(h).T @ h,
    "index_add": lambda h, mask: torch.zeros(len(mask), 4).to(h).index_add(0, mask.nonzero()[:, 0], h),
}


def ragged(name: str) -> nn.Module:
    def wiring(m: Any, x: Tensor, mask: Tensor) -> Tensor:
        return m.head(POOLS[name](torch.tanh(m.first(x[mask])), mask))

    return Wired(wiring, first=nn.Linear(3, 4), head=nn.Linear(4, 2)).double()


def lengths(*numbers: int) -> tuple[Tensor, Tensor]:
    mask = torch.arange(4) < torch.tensor(numbers)[:, None]
    return torch.randn(*mask.shape, 3, dtype=torch.float64), mask


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("numbers", [(1, 1, 2, 0), (2, 2, 1, 3), (1, 1, 3, 3), (2, 2, 2, 2, 3, 1)])
@pytest.mark.parametrize("name", POOLS)
def test_as_many_rows_as_if_all_lengths_were_equal(name: str, numbers: tuple[int, ...]) -> None:
    check(ragged(name), lengths(*numbers))


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("name", POOLS)
def test_batches_of_the_same_shapes_but_other_lengths(name: str) -> None:
    model, batches = ragged(name), [lengths(2, 2), lengths(1, 3), lengths(3, 1)]
    J = torch.cat([oracle.jacobian(model, batch) for batch in batches])
    found = tt.fisher(model, [(batch, None) for batch in batches], tt.Dense, likelihood="gaussian").dense()
    oracle.assert_close(found, torch.einsum("ncp,ncq->pq", J, J) / len(J))
    K = tt.ntk(model, batches[0], batches[1], reduce="trace")
    oracle.assert_close(K, torch.einsum("ncp,mcp->nm", J[:2], J[2:4]))


# ----------------------------------------------------------------------------------- many samples told apart


@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("n", [1, 2, 14, 15, 66, 67, 3000])
def test_no_two_samples_have_the_same_factors(n: int, half: bool) -> None:
    factors = SampleFactors(n, 1, half=half).factors
    assert len(factors.unique(dim=1).T) == n
    assert len(factors) == min(k for k in range(1, 9) if n <= (14 if half else 66) ** k)


@pytest.mark.usefixtures("quiet")
def test_two_of_many_samples_swapped() -> None:
    """One of the first has the first factor of the last."""
    n = 70
    x = torch.randn(n, 3, dtype=torch.float64)

    def swap(x: Tensor, i: int, j: int) -> Tensor:
        order = torch.arange(len(x))
        if len(x) == n:
            order[i], order[j] = j, i
        return x[order]

    linear = nn.Linear(3, 2).double()
    J = oracle.jacobian(linear, x)
    for i in range(2, 66):
        model = Wired(lambda m, x, i=i: swap(m.linear(swap(x, i, n - 1)), i, n - 1), linear=linear)
        oracle.assert_close(tt.jacobian(model, x).dense(), J)


# ------------------------------------------------------------------------------------- one operation at a time

K = 4  # of every axis, so that no size tells one from another
Q = torch.rand(K, K, dtype=torch.float64)
P = Q.expand(K, K, K, K)

OPERATIONS: dict[str, Callable[[Tensor], Tensor | tuple[Tensor, ...]]] = {
    "view": lambda h: h.view(2, -1, K),
    "halves": lambda h: (halves(h), h.unflatten(-1, (2, 2)).transpose(-1, -2).flatten(-2)),
    "squeeze": lambda h: h.unsqueeze(1).squeeze(1).unsqueeze(2).squeeze(),
    "clone": lambda h: h.clone(memory_format=torch.channels_last).float().double().contiguous(),
    "activations": lambda h: F.gelu(torch.tanh(h).relu() + h.exp().log() * F.silu(h).sqrt()),
    "parameters": lambda h: F.prelu(h, Q[0]) * Q + torch.where(h > 0, h, Q[:, :1]).clamp(max=0.8),
    "broadcast to more": lambda h: (h[0] + torch.zeros(K, K, K, K, dtype=h.dtype), h[:1] * Q, h[:, :1].expand_as(h)),
    "masked": lambda h: h.masked_fill(Q > 0.5, 0).triu(),
    "repeat": lambda h: (h.repeat(1, 2, 1, 1), h[0].repeat(2, 1, 1, 1)),
    "convolution": lambda h: F.conv2d(h, Q[:2, :, None, None]),
    "transposed convolution": lambda h: F.conv_transpose2d(h, Q.view(K, 1, 2, 2), stride=2),
    "convolution's weight": lambda h: F.conv2d(Q.expand(K, K, K, K), h),
    "pools": lambda h: F.max_pool2d(h, 2) + F.avg_pool2d(h, 2) + F.adaptive_avg_pool2d(h, 2),
    "pools without samples": lambda h: F.max_pool2d(h[0], 2) + F.adaptive_max_pool2d(h[0], 2),
    "larger": lambda h: F.interpolate(h, scale_factor=2) + F.interpolate(h, scale_factor=2, mode="bilinear"),
    "shuffled": lambda h: F.pixel_unshuffle(F.pixel_shuffle(h, 2), 2) + F.pixel_shuffle(h, 1),
    "patches": lambda h: (F.unfold(h, 1), F.fold(F.unfold(h, 2), (K, K), 2), F.unfold(h[0], 1)),
    "padding": lambda h: (F.pad(h, (1, 1, 2, 2)), F.pad(h, (1,) * 4, mode="replicate")),
    "padding that shifts": lambda h: (F.pad(h, (1, -1)), F.pad(h, (0, 0, 1, -1)), F.pad(h, (0,) * 6 + (1, -1))),
    "group norm": lambda h: F.group_norm(h, 2),
    "layer norm": lambda h: F.layer_norm(h, (K,)) + F.layer_norm(h, (K, K)) + F.rms_norm(h, (K,)),
    "batch norm": lambda h: F.batch_norm(h, Q[0], Q[1]),
    "batch norm, training": lambda h: F.batch_norm(h, None, None, training=True),
    "attention": lambda h: F.scaled_dot_product_attention(h, h.sin(), h.cos()),
    "attention's mask": lambda h: F.scaled_dot_product_attention(Q.expand_as(h), Q.expand_as(h), Q.expand_as(h), h),
    "x W": lambda h: (h[0, 0] @ Q, h @ Q, F.linear(h, Q, Q[0]), torch.addmm(h[0, 0], Q, Q)),
    "W x": lambda h: (Q @ h[0, 0], Q @ h, torch.addmm(Q, Q, h[0, 0]), torch.addmm(Q, h[0, 0], Q)),
    "batches of products": lambda h: (torch.bmm(h[0], h[1]), torch.baddbmm(h[0], h[1], Q.expand(K, K, K))),
    "h v": lambda h: (h[0, 0].mv(Q[0]), Q.mv(h[0, 0, 0])),
    "softmax": lambda h: h.softmax(1) + h.log_softmax(-1),
    "cumulative": lambda h: h.cumsum(-2) + h.cumprod(2),
    "cat": lambda h: torch.cat([h, h.sin()], -2),
    "stack": lambda h: torch.stack([h.sin(), h, h, h.cos()], -2),
    "slice": lambda h: (h[:, 1:3], h[1:3], h[:, :, ::2], h.narrow(-1, 0, 2), torch.ops.aten.slice(h, 0)),
    "select": lambda h: (h[1], h[:, 1], h[..., -1]),
    "split": lambda h: h.split([2, 2], -2)[1] * h.chunk(2, 2)[0],
    "unbind": lambda h: h.unbind(1)[0] * h.unbind(-1)[1],
    "sorted": lambda h: h.sort(-1)[0] + h.topk(4, 1)[0],
    "gather": lambda h: h.gather(1, Q.mul(K).long().expand(h.shape)) + h.index_select(-1, torch.tensor([0, 2, 1, 1])),
    "glu": lambda h: F.glu(h, 1),
    "sums": lambda h: (h.sum(1), h.mean((-1, 0), keepdim=True), h.amax((1, 2)), h.max(0)[0], h.sum(0, keepdim=True)),
    "more sums": lambda h: (h.logsumexp(2), h.norm(dim=1), h.var(0), h.std((0, 2)), h.prod(-1), h.median(1)[0]),
    "two results": lambda h: torch.var_mean(h, 1)[0] * torch.var_mean(h, 1)[1],
    "permute": lambda h: h.permute(2, 0, -1, 1),
    "transpose": lambda h: (h.transpose(0, -2), h.mT, h[0, 0].t(), h.sin().transpose_(1, 2)),
    "roll": lambda h: (h.roll(1, -1), h.roll(1), h.roll((1, 2), (0, 1))),
    "flip": lambda h: h.flip(-1, 1),
    "losses": lambda h: (
        F.mse_loss(h, P, reduction="none")
        + F.smooth_l1_loss(h, P, reduction="none")
        + F.huber_loss(h, P, reduction="none")
        + F.binary_cross_entropy(h, P, reduction="none")
        + F.binary_cross_entropy_with_logits(h, P, reduction="none")
        + F.soft_margin_loss(h, P.round(), reduction="none")
    ),
    "losses of classes": lambda h: (
        F.nll_loss(h, P[0].round().long(), reduction="none"),
        F.cross_entropy(h[0, 0], P[0, 0, 0].round().long(), Q[0], reduction="none"),
        F.multi_margin_loss(h[0, 0], P[0, 0, 0].round().long(), reduction="none"),
        F.multilabel_margin_loss(h[0, 0], P[0, 0].round().long(), reduction="none"),
    ),
    "distances": lambda h: (F.pairwise_distance(h, P), F.cosine_similarity(h, P, 1), F.l1_loss(h, P, reduction="none")),
    "Fourier": lambda h: torch.fft.irfft(torch.fft.rfft(h, dim=1), dim=1) + torch.fft.fft2(h).real.sin(),
}


def check_strides(y: Tensor, h: Tensor, axis: int, n: int, together: int) -> bool:
    """Samples are in an axis of y, some entries for each: are they where it is said in h? Whether something is said."""
    f = y.unflatten(axis, (-1, n, together)).movedim(axis + 1, 0).flatten(1)
    stride = find_strides(f, Graph(f))[h.grad_fn, 0]
    if stride > 0:
        sample = torch.arange(h.numel()) // stride % n
        for i in range(n):
            (d,) = torch.autograd.grad(f[i] @ torch.rand(f.shape[1], dtype=f.dtype), h, retain_graph=True)
            assert not d.flatten()[sample != i].any()
    return stride > 0


@pytest.mark.parametrize("name", OPERATIONS)
def test_strides_are_right(name: str) -> None:
    known = 0
    for n, together in ((K, 1), (2, 1), (2, 2)):
        h = torch.rand(K, K, K, K, dtype=torch.float64, requires_grad=True) * 1
        ys = OPERATIONS[name](h)
        for y in ys if isinstance(ys, tuple) else (ys,):
            axes = [axis for axis, size in enumerate(y.shape) if size % (n * together) == 0]
            known += sum(check_strides(y, h, axis, n, together) for axis in axes)
    assert known > 0 or name in ("convolution's weight", "attention's mask")


# -------------------------------------------------------------------------- where nothing has to be looked at


def unet(m: Any, x: Tensor) -> Tensor:
    high = torch.relu(m.norm(m.down(x)))
    low = torch.relu(m.low(F.max_pool2d(high, 2)))
    return m.out(torch.cat([high, m.up(low), F.interpolate(low, scale_factor=2)], 1)).flatten(1)


def resnet(m: Any, x: Tensor) -> Tensor:
    h = F.relu(m.norm(m.stem(x)), inplace=True)
    y = m.norm2(m.second(F.relu(m.first(h))))
    y += m.short(h)
    return m.head(F.adaptive_avg_pool2d(F.relu(y), 1).flatten(1))


def vision(m: Any, x: Tensor) -> Tensor:
    h = m.patches(x).flatten(2).transpose(1, 2)
    h = torch.cat([m.token.expand(len(x), -1, -1), h], 1) + m.places
    return m.head(m.norm(m.encoder(h))[:, 0])


def language(m: Any, x: Tensor) -> Tensor:
    h = m.table((x[..., 0] > 0).long()) + m.places
    q, k, v = (t.unflatten(2, (2, -1)).transpose(1, 2) for t in m.qkv(m.norm(h)).chunk(3, -1))
    h = h + m.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
    return F.linear(h, m.table.weight)


def encoder(**options: Any) -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, 8, 0.0, **options), 2, enable_nested_tensor=False)


def sequences(*layers: Any) -> tuple[nn.Module, Tensor]:
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(30, 2)), torch.randn(5, 5, 6)


def images(*layers: nn.Module) -> tuple[nn.Module, Tensor]:
    x = torch.randn(5, 2, 8, 8)
    width = nn.Sequential(*layers, nn.Flatten()).eval()(x).shape[1]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(width, 3)), x


ORDINARY: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "MLP": lambda: (nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.GELU(), nn.Linear(4, 1)),
                    torch.randn(5, 6)),
    "LeNet": lambda: images(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 4, 2), nn.Tanh()),
    "VGG": lambda: images(nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(inplace=True), nn.MaxPool2d(2),
                          nn.AdaptiveAvgPool2d(3), nn.Dropout()),
    "GroupNorm": lambda: images(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.SiLU(), nn.AvgPool2d(2)),
    "InstanceNorm": lambda: images(nn.Conv2d(2, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.LeakyReLU()),
    "LayerNorm": lambda: (nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.ELU(), nn.RMSNorm(5), nn.Linear(5, 2)),
                          torch.randn(5, 6)),
    "ResNet": lambda: (Wired(resnet, stem=nn.Conv2d(2, 3, 3), norm=nn.BatchNorm2d(3), short=nn.Conv2d(3, 4, 1, 2),
                             first=nn.Conv2d(3, 4, 3, 2, 1), second=nn.Conv2d(4, 4, 3, padding=1),
                             norm2=nn.BatchNorm2d(4), head=nn.Linear(4, 3)), torch.randn(5, 2, 8, 8)),
    "U-Net": lambda: (Wired(unet, down=nn.Conv2d(2, 3, 3, padding=1), norm=nn.GroupNorm(1, 3), low=nn.Conv2d(3, 3, 1),
                            up=nn.ConvTranspose2d(3, 2, 2, 2), out=nn.Conv2d(8, 1, 1)), torch.randn(5, 2, 4, 4)),
    "encoder": lambda: sequences(encoder(batch_first=True, norm_first=True)),
    "encoder, tokens first": lambda: (
        Wired(lambda m, x: m.head(m.body(x.transpose(0, 1)).mean(0)), body=encoder(), head=nn.Linear(6, 2)),
        torch.randn(5, 5, 6)),
    "attention": lambda: (
        Wired(lambda m, x: m.attend(x, x, x)[0].sum(1), attend=nn.MultiheadAttention(6, 2, batch_first=True)),
        torch.randn(5, 5, 6)),
    "attention, tokens first": lambda: (
        Wired(lambda m, x: m.attend(*[x.transpose(0, 1)] * 3, need_weights=False)[0][0],
              attend=nn.MultiheadAttention(6, 2)), torch.randn(5, 5, 6)),
    "vision transformer": lambda: (
        Wired(vision, patches=nn.Conv2d(2, 6, 4, 4), token=parameter(1, 1, 6), places=parameter(1, 5, 6),
              encoder=encoder(batch_first=True), norm=nn.LayerNorm(6), head=nn.Linear(6, 3)), torch.randn(5, 2, 8, 8)),
    "language model": lambda: (
        Wired(language, table=nn.Embedding(5, 6), places=parameter(1, 5, 6), norm=nn.LayerNorm(6),
              qkv=nn.Linear(6, 18), out=nn.Linear(6, 6)), torch.randn(5, 5, 6)),
    "LSTM": lambda: (Wired(lambda m, x: m.head(m.body(x)[0][:, -1]), body=nn.LSTM(6, 4, 2, batch_first=True),
                           head=nn.Linear(4, 2)), torch.randn(5, 5, 6)),
    "GRU, both ways": lambda: sequences(
        Wired(lambda m, x: m.body(x)[0], body=nn.GRU(6, 3, batch_first=True, bidirectional=True))),
    "mixer": lambda: sequences(
        Wired(lambda m, x: x + m.across(x.mT).mT.softmax(1) * m.gate, across=nn.Linear(5, 5), gate=parameter(6))),
    "frames": lambda: (Wired(lambda m, x: m.conv(x.flatten(0, 1)).relu().mean((2, 3)).unflatten(0, x.shape[:2]).sum(1),
                             conv=nn.Conv2d(1, 2, 2)), torch.randn(5, 3, 1, 3, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_models_pay_no_further_cotangent(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = ORDINARY[name]()
    model, x = model.double().eval(), x.double()
    J = oracle.jacobian(model, x)
    monkeypatch.setattr(trace, "SampleFactors", None)  # who asks for it fails
    found = tt.jacobian(model, x)
    oracle.assert_close(found.dense(), J)
    oracle.assert_close(tt.ntk(model, x, reduce="trace"), torch.einsum("n...p,m...p->nm", J, J))


@pytest.mark.parametrize("loss", [F.cross_entropy, F.mse_loss, F.binary_cross_entropy_with_logits, F.smooth_l1_loss])
def test_ordinary_losses_pay_no_further_cotangent(loss: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = images(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2))
    model, x = model.double(), x.double()
    y = torch.tensor([0, 2, 1, 1, 0]) if loss is F.cross_entropy else torch.rand(5, 3, dtype=torch.float64)
    monkeypatch.setattr(trace, "SampleFactors", None)  # who asks for it fails

    def each(f: Tensor, y: Tensor) -> Tensor:
        return loss(f, y, reduction="none").flatten(1).sum(1) if f.shape == y.shape else loss(f, y, reduction="none")

    found = tt.gradients(model, (x, y), each).dense()
    for i in range(5):
        gradient = torch.autograd.grad(each(model(x[i : i + 1]), y[i : i + 1]).sum(), list(model.parameters()))
        oracle.assert_close(found[i], torch.cat([g.flatten() for g in gradient]))


# Samples in another order, parts written in place, functions of one's own, and as many positions as samples.
LOOKED_AT = {
    "bilinear-of-one-input", "custom-function", "data-dependent-branch-bare", "gradient-inside", "inplace-slice",
    "output-written-in-place", "samples-doubled", "samples-reversed", "tied-convolutions",
    "transposed-samples-reversed",
}  # fmt: skip


@pytest.mark.usefixtures("quiet")
def test_which_models_of_the_zoo_are_looked_at() -> None:
    """A list to keep short: each costs a backward pass more for every batch."""
    doubtful = set()
    for name, case in ZOO.items():
        model, x, output = case.build()
        if Capture(model, output=output).record(x).doubtful:
            doubtful.add(name)
    assert doubtful == LOOKED_AT
