"""The zoo: small models with inputs, one case for every layer and every way a network may use its parameters.

    for case in ZOO.values():
        model, inputs, output = case.build()

A test decorated with `every_case` is given each as `case`; the fixture `silence` keeps the warnings of most as errors.
A build is fresh and always the same: weights and inputs are drawn in float32 from a seed made of the case's
name and then converted, so that the float32 and the float64 build are the same function. All models are in
eval mode, no parameter keeps its initial 0 or 1, and inputs hold the samples along their first axis.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint

Inputs = Tensor | tuple[Any, ...] | dict[str, Any]


class Problem(NamedTuple):
    """What a test needs: a model in eval mode, inputs, and the picker of its output tensor."""

    model: nn.Module
    inputs: Inputs
    output: Callable[[Any], Tensor] | None


@dataclass(frozen=True)
class Case:
    """A named entry of the zoo.

    Args:
        make: gives the model and its inputs.
        output: picks the (N, C) or (N, T, C) tensor out of what the model returns.
        may_warn: the library may say something (a slow fallback, a parameter without influence).
    """

    name: str
    make: Callable[[], tuple[nn.Module, Inputs]]
    output: Callable[[Any], Tensor] | None = None
    may_warn: bool = False

    def build(self, dtype: torch.dtype = torch.float64) -> Problem:
        """A fresh model and inputs in this dtype; the global random state stays as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(zlib.crc32(self.name.encode()))  # much faster than torch.manual_seed
            model, inputs = self.make()
            shake(model)
        return Problem(model.to(dtype).eval(), convert(inputs, dtype), self.output)


ZOO: dict[str, Case] = {}


def register(name: str, make: Callable[[], tuple[nn.Module, Inputs]], **options: Any) -> None:
    """Add a case to the zoo."""
    assert name not in ZOO, name
    ZOO[name] = Case(name, make, **options)


def case(name: str, **options: Any) -> Callable:
    """Decorator of a function that gives (model, inputs)."""

    def add(make: Callable[[], tuple[nn.Module, Inputs]]) -> Callable:
        register(name, make, **options)
        return make

    return add


def shake(model: nn.Module) -> None:
    """Move every parameter and running statistic away from its initial value."""
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn_like(p))
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_(0, 0.3)
            if name.endswith("running_var"):
                buffer.uniform_(0.5, 2.0)


def convert(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    """Floating-point inputs in this dtype, all others as they are."""
    if isinstance(inputs, tuple):
        return tuple(convert(x, dtype) for x in inputs)
    if isinstance(inputs, dict):
        return {key: convert(x, dtype) for key, x in inputs.items()}
    return inputs.to(dtype) if inputs.is_floating_point() else inputs


def readout(body: nn.Module, x: Tensor) -> nn.Module:
    """The body, a smooth nonlinearity and a linear head with three outputs."""
    with torch.no_grad():
        width = body.eval()(x).flatten(1).shape[1]
    return nn.Sequential(body, nn.Tanh(), nn.Flatten(), nn.Linear(width, 3))


def layer(name: str, make: Callable[[], nn.Module], *shape: int, samples: int = 4, **options: Any) -> None:
    """A case of one layer (or a few) on random inputs of a shape, with a head of three outputs."""

    def build() -> tuple[nn.Module, Inputs]:
        x = torch.randn(samples, *shape)
        return readout(make(), x), x

    register(name, build, **options)


def tokens(name: str, make: Callable[[], nn.Module], *shape: int, **options: Any) -> None:
    """The same for layers of integer inputs; words repeat inside a sample."""

    def build() -> tuple[nn.Module, Inputs]:
        x = torch.randint(5, (4, *shape))
        return readout(make(), x), x

    register(name, build, **options)


class Wired(nn.Module):
    """Named parts and a function that wires them: forward(x) = wiring(self, x)."""

    def __init__(self, wiring: Callable[..., Any], **parts: nn.Module | nn.Parameter | Tensor) -> None:
        super().__init__()
        self.wiring = wiring
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.wiring(self, *args, **kwargs)


class Conv1D(nn.Module):
    """x W + b, as Hugging Face's GPT-2 has it, under the name that it has there."""

    __module__ = "transformers.pytorch_utils"
    units = 1

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(inputs, outputs)), nn.Parameter(torch.randn(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], -1)


def parameter(*shape: int) -> nn.Parameter:
    """A bare parameter."""
    return nn.Parameter(0.5 * torch.randn(shape))


# ---------------------------------------------------------------------------------------------- linear

layer("linear", lambda: nn.Linear(5, 4), 5)
layer("linear-no-bias", lambda: nn.Linear(5, 4, bias=False), 5)
layer("linear-sequence", lambda: nn.Linear(4, 3), 3, 4)
layer("linear-grid", lambda: nn.Linear(4, 2), 2, 3, 4)
layer("linear-inputs-first", lambda: Conv1D(3, 4), 3, 4)
layer("linear-one-sample", lambda: nn.Linear(5, 4), 5, samples=1)
layer("linear-one-feature", lambda: nn.Linear(1, 1), 1)
layer("mlp", lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 5), nn.GELU()), 6, samples=6)
layer("bottleneck", lambda: nn.Sequential(nn.Linear(6, 1), nn.SiLU(), nn.Linear(1, 6)), 6)


@case("single-output")
def _() -> tuple[nn.Module, Inputs]:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)), torch.randn(5, 4)


@case("linear-alone")
def _() -> tuple[nn.Module, Inputs]:
    return nn.Linear(4, 3), torch.randn(5, 4)


@case("one-sample-one-output")
def _() -> tuple[nn.Module, Inputs]:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)), torch.randn(1, 3)


@case("deep-linear")
def _() -> tuple[nn.Module, Inputs]:
    return nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 4), nn.Linear(4, 3)), torch.randn(6, 4)


# ---------------------------------------------------------------------------------------- convolutions

CONV = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
GRID = {1: (7,), 2: (5, 6), 3: (3, 4, 3)}

for d in CONV:
    size = GRID[d]
    layer(f"conv{d}d", lambda d=d: CONV[d](2, 3, 3, padding=1, stride=2), 2, *size)
    layer(f"conv{d}d-no-bias", lambda d=d: CONV[d](2, 3, 2, bias=False), 2, *size)
    layer(f"conv{d}d-groups", lambda d=d: CONV[d](4, 6, 2, groups=2, stride=2), 4, *size)
    layer(f"conv{d}d-depthwise", lambda d=d: CONV[d](3, 6, 2, groups=3, padding=1, stride=2), 3, *size)
    layer(f"conv{d}d-dilation", lambda d=d: CONV[d](2, 2, 2, dilation=2, padding=1, stride=2), 2, *size)
    layer(f"conv{d}d-pointwise", lambda d=d: CONV[d](3, 2, 1, stride=2), 3, *size)
    layer(f"conv{d}d-same", lambda d=d: CONV[d](2, 1, 2, padding="same", dilation=2), 2, *size)
    layer(f"conv{d}d-valid", lambda d=d: CONV[d](1, 2, 3, padding="valid"), 1, *size)
    for mode in ("reflect", "replicate", "circular"):
        layer(
            f"conv{d}d-{mode}",
            lambda d=d, mode=mode: CONV[d](2, 2, 3, padding=1, stride=2, padding_mode=mode),
            2,
            *size,
        )
    layer(
        f"conv{d}d-same-circular",
        lambda d=d: CONV[d](1, 2, 2, padding="same", padding_mode="circular"),
        1,
        *size,
    )
    layer(f"conv-transpose{d}d", lambda d=d: TRANSPOSED[d](2, 2, 2), 2, *(2,) * d)
    layer(
        f"conv-transpose{d}d-stride",
        lambda d=d: TRANSPOSED[d](2, 3, 3, stride=2, padding=1, output_padding=1, bias=False),
        2,
        *(2, 2, 1)[:d],
    )
    layer(
        f"conv-transpose{d}d-groups",
        lambda d=d: TRANSPOSED[d](4, 2, 2, groups=2, dilation=2, padding=1),
        4,
        *(2,) * d,
    )

layer("conv2d-uneven", lambda: nn.Conv2d(2, 3, (3, 2), (2, 1), (1, 0), (1, 2)), 2, 5, 6)
layer("conv2d-uneven-reflect", lambda: nn.Conv2d(2, 2, (3, 2), 2, (2, 1), padding_mode="reflect"), 2, 5, 4)
layer("conv2d-kernel-is-image", lambda: nn.Conv2d(2, 3, (4, 3)), 2, 4, 3)
layer("conv2d-groups-kernel-is-image", lambda: nn.Conv2d(4, 6, 2, groups=2), 4, 2, 2)
layer("conv2d-skips-border", lambda: nn.Conv2d(1, 2, 2, stride=3), 1, 6, 7)
layer(
    "conv-transpose2d-uneven",
    lambda: nn.ConvTranspose2d(2, 3, (3, 2), (2, 3), (1, 0), (1, 2), dilation=(1, 2)),
    2,
    3,
    2,
)
layer("conv-transpose2d-depthwise", lambda: nn.ConvTranspose2d(3, 6, 2, stride=2, groups=3), 3, 2, 2)
layer(
    "lenet",
    lambda: nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(3, 4, 2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
    ),
    1,
    6,
    6,
)


@case("conv-per-pixel-outputs")
def _() -> tuple[nn.Module, Inputs]:
    def pixels(self: Wired, x: Tensor) -> Tensor:
        return self.conv(torch.tanh(self.stem(x))).flatten(2).transpose(1, 2)

    return Wired(pixels, stem=nn.Conv2d(1, 2, 2), conv=nn.Conv2d(2, 3, 1)), torch.randn(3, 1, 3, 3)


# ------------------------------------------------------------------------------------------ embeddings

tokens("embedding", lambda: nn.Embedding(5, 3), 4)
tokens("embedding-one-token", lambda: nn.Embedding(5, 3))
tokens("embedding-grid", lambda: nn.Embedding(5, 2), 2, 3)
tokens("embedding-padding", lambda: nn.Embedding(5, 3, padding_idx=1), 5, may_warn=True)
tokens("embedding-negative-padding", lambda: nn.Embedding(5, 3, padding_idx=-2), 5, may_warn=True)
tokens("embedding-sparse", lambda: nn.Embedding(5, 3, sparse=True), 4)
tokens("embedding-bag", lambda: nn.EmbeddingBag(5, 3), 4, may_warn=True)
tokens("embedding-bag-sum", lambda: nn.EmbeddingBag(5, 3, mode="sum", padding_idx=2), 4, may_warn=True)
tokens("embedding-into-linear", lambda: nn.Sequential(nn.Embedding(5, 3), nn.Tanh(), nn.Linear(3, 2)), 3)


# --------------------------------------------------------------------------------------- normalizations

layer("batchnorm1d", lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), 4)
layer("batchnorm1d-sequence", lambda: nn.Sequential(nn.Conv1d(2, 3, 2), nn.BatchNorm1d(3)), 2, 4)
layer("batchnorm2d", lambda: nn.Sequential(nn.Conv2d(1, 3, 2), nn.BatchNorm2d(3)), 1, 3, 4)
layer("batchnorm3d", lambda: nn.Sequential(nn.Conv3d(1, 2, 2), nn.BatchNorm3d(2)), 1, 2, 3, 2)
layer("batchnorm-first", lambda: nn.BatchNorm2d(2), 2, 2, 3)
layer("layernorm", lambda: nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5)), 4)
layer("layernorm-sequence", lambda: nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)), 3, 4)
layer("layernorm-two-axes", lambda: nn.Sequential(nn.Linear(4, 3), nn.LayerNorm((2, 3))), 3, 2, 4)
layer("layernorm-no-bias", lambda: nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5, bias=False)), 4)
layer("layernorm-first", lambda: nn.LayerNorm((2, 3)), 2, 3)
layer("groupnorm", lambda: nn.Sequential(nn.Conv2d(1, 4, 2), nn.GroupNorm(2, 4)), 1, 3, 3)
layer("groupnorm-vector", lambda: nn.Sequential(nn.Linear(3, 6), nn.GroupNorm(2, 6)), 3)
layer("groupnorm-sequence", lambda: nn.GroupNorm(1, 4), 4, 3)
layer("instancenorm1d", lambda: nn.InstanceNorm1d(3, affine=True), 3, 4)
layer("instancenorm2d", lambda: nn.Sequential(nn.Conv2d(1, 3, 2), nn.InstanceNorm2d(3, affine=True)), 1, 4, 3)
layer("instancenorm3d", lambda: nn.InstanceNorm3d(2, affine=True), 2, 2, 3, 2)
for d, norm in {1: nn.InstanceNorm1d, 2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}.items():
    layer(
        f"instancenorm{d}d-running",
        lambda norm=norm: norm(2, affine=True, track_running_stats=True),
        2,
        *(2,) * d,
    )
layer("rmsnorm", lambda: nn.Sequential(nn.Linear(4, 5), nn.RMSNorm(5)), 4)
layer("rmsnorm-two-axes", lambda: nn.RMSNorm((2, 3), eps=0.1), 3, 2, 3)
layer(
    "norm-plain",
    lambda: nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5, elementwise_affine=False)),
    4,
)
layer("prelu", lambda: nn.Sequential(nn.Linear(4, 5), nn.PReLU()), 4)
layer("prelu-channels", lambda: nn.Sequential(nn.Conv2d(1, 3, 2), nn.PReLU(3)), 1, 3, 3)
layer("prelu-features", lambda: nn.PReLU(4), 4)


# ------------------------------------------------------------------------ modules used more than once


@case("module-called-thrice")
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, x: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.tanh(self.body(x))
        return self.head(x)

    return Wired(wiring, body=nn.Linear(4, 4), head=nn.Linear(4, 3)), torch.randn(4, 4)


@case("module-called-on-two-shapes")
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x)).mean(1) + self.body(x[:, 0]))

    return Wired(wiring, body=nn.Linear(4, 3), head=nn.Linear(3, 2)), torch.randn(4, 3, 4)


@case("conv-called-twice-on-two-sizes")
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, x: Tensor) -> Tensor:
        fine = self.conv(x)
        coarse = self.conv(torch.tanh(F.avg_pool2d(x, 2)))
        return self.head(torch.cat([fine.mean((2, 3)), coarse.amax((2, 3))], 1))

    return Wired(wiring, conv=nn.Conv2d(2, 2, 2), head=nn.Linear(4, 3)), torch.randn(3, 2, 5, 6)


@case("norm-called-twice")
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, x: Tensor) -> Tensor:
        return self.norm(self.body(torch.tanh(self.norm(x))))

    return Wired(wiring, norm=nn.LayerNorm(4), body=nn.Linear(4, 4)), torch.randn(4, 4)


@case("embedding-called-twice")
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, a: Tensor, b: Tensor) -> Tensor:
        return self.head(self.table(a).sum(1) * self.table(b))

    model = Wired(wiring, table=nn.Embedding(5, 3), head=nn.Linear(3, 3))
    return model, (torch.randint(5, (4, 3)), torch.randint(5, (4,)))


@case("one-module-two-names")
def _() -> tuple[nn.Module, Inputs]:
    shared = nn.Linear(4, 4)
    return nn.Sequential(shared, nn.Tanh(), shared, nn.Tanh(), nn.Linear(4, 2)), torch.randn(4, 4)


@case("tied-linears")
def _() -> tuple[nn.Module, Inputs]:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    model[2].weight = model[0].weight
    return model, torch.randn(4, 4)


@case("tied-bias")
def _() -> tuple[nn.Module, Inputs]:
    model = nn.Sequential(nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 3), nn.LayerNorm(3))
    model[2].bias = model[0].bias
    model[3].bias = model[0].bias
    return model, torch.randn(4, 5)


@case("tied-embedding-and-output")
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(self.table(x))))

    model = Wired(wiring, table=nn.Embedding(5, 3), body=nn.Linear(3, 3), head=nn.Linear(3, 5, bias=False))
    model.head.weight = model.table.weight
    return model, torch.randint(5, (3, 3))


@case("tied-transposed", may_warn=True)
def _() -> tuple[nn.Module, Inputs]:
    def autoencoder(self: Wired, x: Tensor) -> Tensor:
        return F.linear(torch.tanh(self.encoder(x)), self.encoder.weight.T, self.bias)

    return Wired(autoencoder, encoder=nn.Linear(4, 3), bias=parameter(4)), torch.randn(4, 4)


@case("tied-convolutions")
def _() -> tuple[nn.Module, Inputs]:
    model = nn.Sequential(
        nn.Conv2d(2, 2, 3, padding=1, stride=2),
        nn.Tanh(),
        nn.Conv2d(2, 2, 3, padding=1, dilation=1, padding_mode="circular"),
        nn.Flatten(),
        nn.Linear(18, 2),
    )
    model[2].weight = model[0].weight
    return model, torch.randn(3, 2, 5, 5)


# ------------------------------------------------------------------------------------ frozen parameters


@case("frozen-layer")
def _() -> tuple[nn.Module, Inputs]:
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    model[2].requires_grad_(False)
    return model, torch.randn(4, 4)


@case("frozen-first-layers")
def _() -> tuple[nn.Module, Inputs]:
    model = nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU(), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))
    model[:3].requires_grad_(False)
    return model, torch.randn(4, 1, 3, 3)


@case("frozen-weights-trained-biases")
def _() -> tuple[nn.Module, Inputs]:
    model = nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.ReLU(inplace=True), nn.Linear(5, 3))
    for name, p in model.named_parameters():
        p.requires_grad_(name.endswith("bias"))
    return model, torch.randn(4, 4)


@case("frozen-biases")
def _() -> tuple[nn.Module, Inputs]:
    model = nn.Sequential(nn.Conv1d(2, 3, 2), nn.BatchNorm1d(3), nn.Flatten(), nn.Linear(9, 3))
    for name, p in model.named_parameters():
        p.requires_grad_(not name.endswith("bias"))
    return model, torch.randn(4, 2, 4)


# -------------------------------------------------------------------------- attention, recurrent, cells


@case("attention", may_warn=True)
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, x: Tensor) -> Tensor:
        return self.head(self.attention(x, x, x)[0].mean(1))

    attention = nn.MultiheadAttention(4, 2, batch_first=True)
    return Wired(wiring, attention=attention, head=nn.Linear(4, 3)), torch.randn(3, 3, 4)


@case("attention-time-first", may_warn=True)
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, x: Tensor) -> Tensor:
        x = self.stem(x.transpose(0, 1))
        return self.attention(x, x, x, need_weights=False)[0].sum(0)

    model = Wired(wiring, stem=nn.Linear(3, 4), attention=nn.MultiheadAttention(4, 2))
    return model, torch.randn(3, 3, 3)


@case("cross-attention-masked", may_warn=True)
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, query: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        return self.attention(query, memory, memory, key_padding_mask=mask)[0]

    attention = nn.MultiheadAttention(4, 1, kdim=3, vdim=3, batch_first=True, add_bias_kv=True)
    mask = torch.tensor([[False, False, True], [False, True, False], [False, False, False]])
    inputs = {"query": torch.randn(3, 2, 4), "memory": torch.randn(3, 3, 3), "mask": mask}
    return Wired(wiring, attention=attention), inputs


for batch_first in (True, False):
    for norm_first in (True, False):
        layout, order = "batch" if batch_first else "time", "pre" if norm_first else "post"

        @case(f"transformer-{layout}-first-{order}norm", may_warn=True)
        def _(batch_first: bool = batch_first, norm_first: bool = norm_first) -> tuple[nn.Module, Inputs]:
            def wiring(self: Wired, x: Tensor) -> Tensor:
                h = self.encoder(x if batch_first else x.transpose(0, 1))
                return self.head(h.mean(1 if batch_first else 0))

            encoder = nn.TransformerEncoderLayer(
                4, 2, 5, activation="gelu", batch_first=batch_first, norm_first=norm_first
            )
            return Wired(wiring, encoder=encoder, head=nn.Linear(4, 3)), torch.randn(3, 3, 4)


@case("transformer-decoder", may_warn=True)
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, x: Tensor, memory: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        return self.decoder(x, memory, tgt_mask=mask, tgt_is_causal=True)

    decoder = nn.TransformerDecoderLayer(3, 1, 5, batch_first=True)
    return Wired(wiring, decoder=decoder), (torch.randn(3, 2, 3), torch.randn(3, 3, 3))


for cell in (nn.RNN, nn.LSTM, nn.GRU):
    for time_first in (False, True):

        @case(f"{cell.__name__.lower()}{'-time-first' if time_first else ''}", may_warn=True)
        def _(cell: type = cell, time_first: bool = time_first) -> tuple[nn.Module, Inputs]:
            def wiring(self: Wired, x: Tensor) -> Tensor:
                y, _ = self.cell(x.transpose(0, 1) if time_first else x)
                return self.head(y[-1] if time_first else y[:, -1])

            recurrent = cell(2, 3, batch_first=not time_first)
            return Wired(wiring, cell=recurrent, head=nn.Linear(3, 2)), torch.randn(3, 3, 2)


@case("lstm-two-layers-both-ways", may_warn=True)
def _() -> tuple[nn.Module, Inputs]:
    def tagger(self: Wired, x: Tensor) -> Tensor:
        return self.head(self.cell(self.table(x))[0])

    cell = nn.LSTM(2, 2, num_layers=2, bidirectional=True, batch_first=True)
    model = Wired(tagger, table=nn.Embedding(5, 2), cell=cell, head=nn.Linear(4, 2))
    return model, torch.randint(5, (2, 3))


@case("lstm-cell-loop", may_warn=True)
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, x: Tensor) -> Tensor:
        state = None
        for step in x.unbind(1):
            state = self.cell(step, state)
        return self.head(state[0])

    return Wired(wiring, cell=nn.LSTMCell(2, 3), head=nn.Linear(3, 2)), torch.randn(3, 3, 2)


# -------------------------------------------------------------------------------------- bare parameters


@case("scalar-gate", may_warn=True)
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, x: Tensor) -> Tensor:
        return self.gate * self.left(x) + (1 - self.gate) * torch.tanh(self.right(x))

    model = Wired(wiring, gate=parameter(), left=nn.Linear(3, 2), right=nn.Linear(3, 2))
    return model, torch.randn(4, 3)


@case("only-bare-parameters", may_warn=True)
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.weight + self.bias) @ self.mixing

    return Wired(wiring, weight=parameter(4, 3), bias=parameter(3), mixing=parameter(3, 2)), torch.randn(4, 4)


@case("einsum", may_warn=True)
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, x: Tensor) -> Tensor:
        return torch.einsum("nti,tio->no", torch.tanh(self.stem(x)), self.core)

    return Wired(wiring, stem=nn.Linear(3, 2), core=parameter(3, 2, 3)), torch.randn(4, 3, 3)


@case("functional-convolution", may_warn=True)
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, x: Tensor) -> Tensor:
        h = torch.relu(F.conv2d(x, self.kernel, self.bias, padding=1))
        return self.head(h.mean((2, 3)))

    model = Wired(wiring, kernel=parameter(2, 1, 3, 3), bias=parameter(2), head=nn.Linear(2, 3))
    return model, torch.randn(4, 1, 3, 4)


@case("parameter-list", may_warn=True)
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, x: Tensor) -> Tensor:
        for scale, block in zip(self.scales, self.blocks, strict=True):
            x = x + scale * torch.tanh(block(x))
        return self.heads["main"](x)

    model = Wired(
        wiring,
        scales=nn.ParameterList([parameter(3), parameter()]),
        blocks=nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)]),
        heads=nn.ModuleDict({"main": nn.Linear(3, 2)}),
    )
    return model, torch.randn(4, 3)


@case("vision-transformer", may_warn=True)
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, x: Tensor) -> Tensor:
        h = self.patches(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.token.expand(len(x), -1, -1), h], 1) + self.places
        q, k, v = self.qkv(self.norm1(h)).chunk(3, -1)
        h = h + self.out(F.scaled_dot_product_attention(q, k, v))
        h = h + self.mlp(self.norm2(h))
        return self.head(h[:, 0])

    model = Wired(
        wiring,
        patches=nn.Conv2d(1, 4, 2, stride=2),
        token=parameter(1, 1, 4),
        places=parameter(1, 5, 4),
        norm1=nn.LayerNorm(4),
        qkv=nn.Linear(4, 12),
        out=nn.Linear(4, 4),
        norm2=nn.LayerNorm(4),
        mlp=nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 4)),
        head=nn.Linear(4, 3),
    )
    return model, torch.randn(3, 1, 4, 4)


# -------------------------------------------------------------------- parametrizations and user classes


def _old_weight_norm(module: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.weight_norm(module)


class Doubled(nn.Module):
    """A parametrization: the weight is twice the stored tensor."""

    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


def _doubled(module: nn.Module) -> nn.Module:
    parametrize.register_parametrization(module, "weight", Doubled())
    return module


class ScaledLinear(nn.Linear):
    """A user's subclass whose forward is not the parent's."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight / (1 + self.weight.norm()), self.bias).square()


class RenamedLinear(nn.Linear):
    """A user's subclass that changes nothing but its name."""


class AdaptedLinear(nn.Linear):
    """A user's subclass with parameters of its own (a low-rank adapter)."""

    def __init__(self, inputs: int, outputs: int, rank: int = 1) -> None:
        super().__init__(inputs, outputs)
        self.down, self.up = parameter(rank, inputs), parameter(outputs, rank)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x @ self.down.T @ self.up.T


class RowVectorLinear(nn.Module):
    """x W + b: here the columns of the weight are the units of the bias."""

    units = 1

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight, self.bias = parameter(inputs, outputs), parameter(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class Odd(nn.Module):
    """A weight and a bias of sizes that have nothing to do with each other."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = parameter(4), parameter(3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x * self.weight, self.bias.expand(len(x), -1)], 1)


class StandardizedConv(nn.Conv2d):
    """Weight standardization: every kernel has mean zero."""

    def forward(self, x: Tensor) -> Tensor:
        return self._conv_forward(x, self.weight - self.weight.mean((1, 2, 3), keepdim=True), self.bias)


layer("weight-norm", lambda: parametrizations.weight_norm(nn.Linear(3, 3)), 3, may_warn=True)
layer("weight-norm-conv", lambda: parametrizations.weight_norm(nn.Conv1d(2, 2, 2)), 2, 3, may_warn=True)
layer("weight-norm-old", lambda: _old_weight_norm(nn.Linear(3, 3)), 3, may_warn=True)
layer("spectral-norm", lambda: parametrizations.spectral_norm(nn.Linear(3, 3)), 3, may_warn=True)
layer("orthogonal", lambda: parametrizations.orthogonal(nn.Linear(3, 3)), 3, may_warn=True)
layer("doubled-weight", lambda: _doubled(nn.Linear(3, 2)), 3, may_warn=True)
layer("subclass-own-forward", lambda: ScaledLinear(3, 4), 3, may_warn=True)
layer("subclass-renamed", lambda: RenamedLinear(3, 4), 3, may_warn=True)
layer("subclass-adapter", lambda: AdaptedLinear(3, 4), 3, may_warn=True)
layer("row-vector-linear", lambda: RowVectorLinear(4, 3), 4, may_warn=True)
layer("odd-weight-and-bias", Odd, 4, may_warn=True)
layer("subclass-conv", lambda: StandardizedConv(2, 2, 2), 2, 3, 3, may_warn=True)


# --------------------------------------------------------------------------------- in-place operations


@case("inplace-relu")
def _() -> tuple[nn.Module, Inputs]:
    model = nn.Sequential(
        nn.Conv2d(1, 3, 2), nn.BatchNorm2d(3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(12, 4),
        nn.ReLU(inplace=True), nn.Linear(4, 3),
    )  # fmt: skip
    return model, torch.randn(4, 1, 3, 3)


@case("inplace-residual")
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, x: Tensor) -> Tensor:
        h = self.norm(self.stem(x))
        y = self.body(torch.tanh(h))
        y += h
        y.mul_(2)
        return self.head(y)

    model = Wired(wiring, stem=nn.Linear(4, 3), norm=nn.LayerNorm(3), body=nn.Linear(3, 3), head=nn.Linear(3, 2))
    return model, torch.randn(4, 4)


@case("inplace-slice")
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, x: Tensor) -> Tensor:
        h = self.stem(x)
        h[:, :2] *= 3
        h[:, 2] = h[:, 0].clone() ** 2
        return self.head(h)

    return Wired(wiring, stem=nn.Linear(4, 4), head=nn.Linear(4, 2)), torch.randn(4, 4)


@case("inplace-input-of-the-bias")
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, x: Tensor) -> Tensor:
        h = x.clone()
        y = self.frozen(h)
        h.zero_()
        return self.head(torch.tanh(y)) + h[:, :2]

    model = Wired(wiring, frozen=nn.Linear(4, 3), head=nn.Linear(3, 2))
    model.frozen.weight.requires_grad_(False)
    return model, torch.randn(4, 4)


@case("output-written-in-place")
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, x: Tensor) -> Tensor:
        y = torch.zeros(len(x), 4, dtype=x.dtype)
        y[:, :3] = self.left(x)
        y[:, 1:] += self.right(x)
        return y

    return Wired(wiring, left=nn.Linear(3, 3), right=nn.Linear(3, 3)), torch.randn(4, 3)


# ------------------------------------------------------------------- layouts: where the samples are

for t, n in ((3, 4), (3, 3)):
    suffix = "-square" if t == n else ""

    @case(f"samples-and-time-merged{suffix}")
    def _(t: int = t, n: int = n) -> tuple[nn.Module, Inputs]:
        def wiring(self: Wired, x: Tensor) -> Tensor:
            h = self.norm(torch.tanh(self.stem(x.reshape(-1, 3))))
            return self.head(h.reshape(len(x), -1))

        model = Wired(wiring, stem=nn.Linear(3, 3), norm=nn.LayerNorm(3), head=nn.Linear(3 * t, 2))
        return model, torch.randn(n, t, 3)

    @case(f"time-and-samples-merged{suffix}", may_warn=True)
    def _(t: int = t, n: int = n) -> tuple[nn.Module, Inputs]:
        def wiring(self: Wired, x: Tensor) -> Tensor:
            h = torch.tanh(self.stem(x.transpose(0, 1).reshape(-1, 3)))
            return self.head(h.reshape(-1, len(x), 2).transpose(0, 1).reshape(len(x), -1))

        return Wired(wiring, stem=nn.Linear(3, 2), head=nn.Linear(2 * t, 2)), torch.randn(n, t, 3)

    @case(f"time-first{suffix}", may_warn=True)
    def _(t: int = t, n: int = n) -> tuple[nn.Module, Inputs]:
        def wiring(self: Wired, x: Tensor) -> Tensor:
            h = self.norm(torch.tanh(self.stem(x.transpose(0, 1))))
            return self.head(h).sum(0)

        model = Wired(wiring, stem=nn.Linear(3, 3), norm=nn.LayerNorm(3), head=nn.Linear(3, 2))
        return model, torch.randn(n, t, 3)

    @case(f"embedding-time-first{suffix}", may_warn=True)
    def _(t: int = t, n: int = n) -> tuple[nn.Module, Inputs]:
        def wiring(self: Wired, x: Tensor) -> Tensor:
            return self.head(torch.tanh(self.table(x.T)).mean(0))

        return Wired(wiring, table=nn.Embedding(5, 3), head=nn.Linear(3, 2)), torch.randint(5, (n, t))

    @case(f"layer-of-a-constant{suffix}", may_warn=True)
    def _(t: int = t, n: int = n) -> tuple[nn.Module, Inputs]:
        def wiring(self: Wired, x: Tensor) -> Tensor:
            return self.head(torch.tanh(x + self.places(self.clock)).mean(1))

        model = Wired(wiring, clock=torch.randn(t, 2), places=nn.Linear(2, 3), head=nn.Linear(3, 2))
        return model, torch.randn(n, t, 3)

    @case(f"positions-embedded{suffix}", may_warn=True)
    def _(t: int = t, n: int = n) -> tuple[nn.Module, Inputs]:
        def wiring(self: Wired, x: Tensor) -> Tensor:
            h = self.table(x) + self.places(torch.arange(x.shape[1]))
            return self.head(torch.tanh(h).mean(1))

        model = Wired(wiring, table=nn.Embedding(5, 3), places=nn.Embedding(t, 3), head=nn.Linear(3, 2))
        return model, torch.randint(5, (n, t))

    @case(f"outputs-time-first-inside{suffix}", may_warn=True)
    def _(t: int = t, n: int = n) -> tuple[nn.Module, Inputs]:
        def wiring(self: Wired, x: Tensor) -> Tensor:
            return self.head(torch.tanh(self.stem(x.transpose(0, 1)))).transpose(0, 1)

        return Wired(wiring, stem=nn.Linear(3, 2), head=nn.Linear(2, 2)), torch.randn(n, t, 3)


@case("frames-merged")
def _() -> tuple[nn.Module, Inputs]:
    def video(self: Wired, x: Tensor) -> Tensor:
        h = torch.relu(self.conv(x.flatten(0, 1))).mean((2, 3))
        return self.head(h.unflatten(0, x.shape[:2])).sum(1)

    return Wired(video, conv=nn.Conv2d(1, 2, 2), head=nn.Linear(2, 3)), torch.randn(3, 2, 1, 3, 3)


@case("samples-last", may_warn=True)
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, x: Tensor) -> Tensor:
        h = torch.tanh(self.conv(x.permute(1, 2, 0)[:, None]))
        return self.head(h.permute(3, 0, 1, 2).flatten(1))

    return Wired(wiring, conv=nn.Conv2d(1, 1, (2, 1)), head=nn.Linear(4, 2)), torch.randn(4, 2, 3)


@case("samples-reversed", may_warn=True)
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.stem(x.flip(0)))).flip(0)

    return Wired(wiring, stem=nn.Linear(3, 4), head=nn.Linear(4, 2)), torch.randn(4, 3)


@case("transposed-samples-reversed", may_warn=True)
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.up(x.flip(0)).flip(0)).flatten(1))

    model = Wired(wiring, up=nn.ConvTranspose1d(2, 3, 2), head=nn.Linear(12, 2))
    return model, torch.randn(4, 2, 3)


@case("samples-doubled", may_warn=True)
def _() -> tuple[nn.Module, Inputs]:
    def augmentations(self: Wired, x: Tensor) -> Tensor:
        left, right = self.body(torch.cat([x, -x])).chunk(2)
        return self.head(torch.tanh(left) * right)

    return Wired(augmentations, body=nn.Linear(3, 4), head=nn.Linear(4, 2)), torch.randn(4, 3)


@case("one-sample-at-a-time", may_warn=True)
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, x: Tensor) -> Tensor:
        return torch.stack([self.head(torch.tanh(self.conv(sample)).mean(1)) for sample in x])

    return Wired(wiring, conv=nn.Conv1d(2, 3, 2), head=nn.Linear(3, 2)), torch.randn(4, 2, 4)


@case("data-dependent-branch", may_warn=True)
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, x: Tensor) -> Tensor:
        return torch.stack([self.left(s) if s.sum() > 0 else torch.tanh(self.right(s)) for s in x])

    return Wired(wiring, left=nn.Linear(3, 2), right=nn.Linear(3, 2)), torch.randn(6, 3)


@case("data-dependent-branch-bare", may_warn=True)
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, x: Tensor) -> Tensor:
        rows = [s * self.scale if s.sum().item() > 0 else self.shift for s in self.stem(x)]
        return torch.stack(rows)

    return Wired(wiring, stem=nn.Linear(3, 2), scale=parameter(2), shift=parameter(2)), torch.randn(6, 3)


@case("masked-experts", may_warn=True)
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, x: Tensor) -> Tensor:
        y = x.new_zeros(len(x), 2)
        left = x[:, 0] > 0
        y[left] = self.left(x[left])
        y[~left] = torch.tanh(self.right(x[~left]))
        return y

    return Wired(wiring, left=nn.Linear(3, 2), right=nn.Linear(3, 2)), torch.randn(6, 3)


# ------------------------------------------------------------------ parameters used past their module


@case("weight-used-outside", may_warn=True)
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, x: Tensor) -> Tensor:
        return self.head(torch.tanh(F.linear(x, self.lin.weight)))

    model = Wired(wiring, lin=nn.Linear(3, 4, bias=False), head=nn.Linear(4, 2))
    return model, torch.randn(4, 3)


@case("weight-used-inside-and-outside", may_warn=True)
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.lin(x)) + F.linear(x, self.lin.weight).sin())

    return Wired(wiring, lin=nn.Linear(3, 4), head=nn.Linear(4, 2)), torch.randn(4, 3)


@case("weight-added-to-the-output", may_warn=True)
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, x: Tensor) -> Tensor:
        return self.lin(x) + self.lin.weight.square().sum() + self.lin.bias.prod()

    return Wired(wiring, lin=nn.Linear(3, 2)), torch.randn(4, 3)


@case("forward-called-directly", may_warn=True)
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.lin.forward(x) + self.lin(2 * x)))

    return Wired(wiring, lin=nn.Linear(3, 4), head=nn.Linear(4, 2)), torch.randn(4, 3)


@case("keyword-call")
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, x: Tensor) -> Tensor:
        return self.head(input=torch.tanh(self.conv(input=x)).flatten(1))

    return Wired(wiring, conv=nn.Conv1d(2, 2, 2), head=nn.Linear(4, 2)), torch.randn(4, 2, 3)


@case("output-size-argument", may_warn=True)
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.up(x, output_size=(6,))).flatten(1))

    model = Wired(wiring, up=nn.ConvTranspose1d(2, 2, 3, stride=2, padding=1), head=nn.Linear(12, 2))
    return model, torch.randn(3, 2, 3)


@case("hypernetwork", may_warn=True)
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, x: Tensor) -> Tensor:
        return F.linear(torch.tanh(self.stem(x)), self.maker(self.code).reshape(2, 3))

    model = Wired(wiring, code=torch.randn(2), maker=nn.Linear(2, 6), stem=nn.Linear(3, 3))
    return model, torch.randn(4, 3)


@case("weights-from-data", may_warn=True)
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, x: Tensor) -> Tensor:
        return torch.einsum("ni,nio->no", x, self.maker(x).unflatten(1, (3, 2)).tanh())

    return Wired(wiring, maker=nn.Linear(3, 6)), torch.randn(4, 3)


@case("unused-layer", may_warn=True)
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, x: Tensor) -> Tensor:
        self.probe(x)
        return self.head(torch.tanh(self.stem(x)))

    model = Wired(wiring, stem=nn.Linear(3, 3), probe=nn.Linear(3, 1), idle=parameter(2, 2), head=nn.Linear(3, 2))
    return model, torch.randn(4, 3)


@case("detached-branch", may_warn=True)
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, x: Tensor) -> Tensor:
        return self.left(x) * self.right(x).detach()

    return Wired(wiring, left=nn.Linear(3, 2), right=nn.Linear(3, 2)), torch.randn(4, 3)


@case("no-grad-stem", may_warn=True)
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, x: Tensor) -> Tensor:
        with torch.no_grad():
            h = self.stem(x)
        return self.head(h + self.stem(torch.tanh(x)))

    return Wired(wiring, stem=nn.Linear(3, 3), head=nn.Linear(3, 2)), torch.randn(4, 3)


@case("one-output-constant", may_warn=True)
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, x: Tensor) -> Tensor:
        return torch.cat([self.lin(x), x[:, :1]], 1)

    return Wired(wiring, lin=nn.Linear(3, 2)), torch.randn(4, 3)


@case("dead-relu", may_warn=True)
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.stem(x) - 100)) + x[:, :2]

    return Wired(wiring, stem=nn.Linear(3, 4), head=nn.Linear(4, 2)), torch.randn(4, 3)


@case("checkpointed", may_warn=True)
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.body, self.stem(x), use_reentrant=False))

    body = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3), nn.Tanh())
    return Wired(wiring, stem=nn.Linear(3, 3), body=body, head=nn.Linear(3, 2)), torch.randn(4, 3)


class Cube(torch.autograd.Function):
    """x³ with a hand-written backward and no rule for vmap."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * grad


@case("custom-function", may_warn=True)
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, x: Tensor) -> Tensor:
        return self.head(Cube.apply(self.scale * self.stem(x)))

    return Wired(wiring, stem=nn.Linear(3, 3), scale=parameter(3), head=nn.Linear(3, 2)), torch.randn(4, 3)


@case("gradient-inside", may_warn=True)
def _() -> tuple[nn.Module, Inputs]:
    def force(self: Wired, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_(True)
            energy = self.head(torch.tanh(self.stem(x))).sum()
            return torch.autograd.grad(energy, x, create_graph=True)[0]

    return Wired(force, stem=nn.Linear(2, 4), head=nn.Linear(4, 1, bias=False)), torch.randn(3, 2)


# -------------------------------------------------------------------------- residual and branching nets


@case("residual-gelu")
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, x: Tensor) -> Tensor:
        h = self.stem(x)
        h = F.gelu(self.norm1(self.conv1(h))) + h
        h = F.gelu(self.norm2(self.conv2(h))) + self.shortcut(h)
        return self.head(h.mean((2, 3)))

    model = Wired(
        wiring,
        stem=nn.Conv2d(1, 2, 3, padding=1),
        conv1=nn.Conv2d(2, 2, 3, padding=1, bias=False),
        norm1=nn.BatchNorm2d(2),
        conv2=nn.Conv2d(2, 3, 3, padding=1, stride=2, bias=False),
        norm2=nn.GroupNorm(1, 3),
        shortcut=nn.Conv2d(2, 3, 1, stride=2),
        head=nn.Linear(3, 3),
    )
    return model, torch.randn(3, 1, 4, 4)


@case("branches")
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, x: Tensor) -> Tensor:
        h = torch.tanh(self.stem(x))
        return self.head(torch.cat([self.left(h), self.right(h) * self.left(x)], 1)) + self.skip(x)

    model = Wired(
        wiring,
        stem=nn.Linear(3, 3),
        left=nn.Linear(3, 2),
        right=nn.Linear(3, 2),
        skip=nn.Linear(3, 2, bias=False),
        head=nn.Linear(4, 2),
    )
    return model, torch.randn(4, 3)


@case("same-output-twice")
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, x: Tensor) -> Tensor:
        h = self.stem(x)
        return torch.cat([h, h.sin(), h], 1)

    return Wired(wiring, stem=nn.Linear(3, 2)), torch.randn(4, 3)


@case("mixer")
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, x: Tensor) -> Tensor:
        h = self.norm(x)
        h = h + F.gelu(self.across(h.transpose(1, 2))).transpose(1, 2)
        return self.head((h + F.gelu(self.within(h))).mean(1))

    model = Wired(
        wiring,
        norm=nn.RMSNorm(4),
        across=nn.Linear(3, 3),
        within=nn.Linear(4, 4),
        head=nn.Linear(4, 3),
    )
    return model, torch.randn(3, 3, 4)


# ------------------------------------------------------------------------------- inputs and outputs


@case("sequence-outputs")
def _() -> tuple[nn.Module, Inputs]:
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
    return model, torch.randint(5, (3, 4))


@case("dict-output", output=lambda y: y["logits"])
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, x: Tensor) -> dict[str, Tensor]:
        h = torch.tanh(self.stem(x))
        return {"features": h, "logits": self.head(h)}

    return Wired(wiring, stem=nn.Linear(3, 4), head=nn.Linear(4, 2)), torch.randn(4, 3)


@case("tuple-output", output=lambda y: y[1])
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.stem(x))
        return h, self.head(h)

    return Wired(wiring, stem=nn.Linear(3, 4), head=nn.Linear(4, 2)), torch.randn(4, 3)


@case("picked-columns", output=lambda y: y[:, 1:3] ** 2)
def _() -> tuple[nn.Module, Inputs]:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4)), torch.randn(4, 3)


@dataclass
class LanguageModelOutput:
    """What a Hugging Face model returns: an object with attributes."""

    logits: Tensor
    hidden: Tensor | None = None


class TinyLanguageModel(nn.Module):
    """A stand-in for a Hugging Face model: keyword inputs, an object as output, tied embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5, 4)
        self.places = nn.Embedding(6, 4)
        self.norm = nn.LayerNorm(4)
        self.query, self.key, self.value = (nn.Linear(4, 4) for _ in range(3))
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.words.weight

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> LanguageModelOutput:
        h = self.words(input_ids) + self.places(torch.arange(input_ids.shape[1]))
        z = self.norm(h)
        weights = self.query(z) @ self.key(z).transpose(1, 2)
        if attention_mask is not None:
            weights = weights.masked_fill(attention_mask[:, None, :] == 0, -1e4)
        h = h + weights.softmax(-1) @ self.value(z)
        return LanguageModelOutput(logits=self.head(h), hidden=h)


@case("language-model", output=lambda y: y.logits, may_warn=True)
def _() -> tuple[nn.Module, Inputs]:
    mask = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 1, 1]])
    return TinyLanguageModel(), {"input_ids": torch.randint(5, (3, 3)), "attention_mask": mask}


@case("language-model-last-word", output=lambda y: y.logits[:, -1], may_warn=True)
def _() -> tuple[nn.Module, Inputs]:
    return TinyLanguageModel(), {"input_ids": torch.randint(5, (3, 3))}


@case("two-inputs")
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, x: Tensor, z: Tensor) -> Tensor:
        return self.head(torch.tanh(self.left(x)) * self.right(z))

    model = Wired(wiring, left=nn.Linear(3, 3), right=nn.Linear(2, 3), head=nn.Linear(3, 2))
    return model, (torch.randn(4, 3), torch.randn(4, 2))


@case("bilinear", may_warn=True)
def _() -> tuple[nn.Module, Inputs]:
    return nn.Bilinear(3, 2, 2), (torch.randn(4, 3), torch.randn(4, 2))


@case("bilinear-of-one-input", may_warn=True)
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, x: Tensor) -> Tensor:
        return self.form(x, self.stem(x))

    return Wired(wiring, stem=nn.Linear(3, 2), form=nn.Bilinear(3, 2, 2)), torch.randn(4, 3)


@case("words-and-numbers")
def _() -> tuple[nn.Module, Inputs]:
    def wiring(self: Wired, *, words: Tensor, numbers: Tensor) -> Tensor:
        return self.head(torch.cat([self.table(words).mean(1), torch.tanh(self.lin(numbers))], 1))

    model = Wired(wiring, table=nn.Embedding(5, 2), lin=nn.Linear(3, 2), head=nn.Linear(4, 2))
    return model, {"words": torch.randint(5, (4, 3)), "numbers": torch.randn(4, 3)}


every_case = pytest.mark.parametrize("case", ZOO.values(), ids=ZOO.keys())
