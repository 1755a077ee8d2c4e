"""The interface of a way to contract two factored layers: what it keeps of a sample, what it costs, how it adds up."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from jaxtyping import Float
from torch import Tensor

from torchtangent.jacobians.factors import LayerJacobian, Outer
from torchtangent.jacobians.patches import Patches

Kept = Sequence[Tensor]
Block = Float[Tensor, "B N R M Q"]  # Q = R: the rows of a sample on the other side
REDUCTIONS = ("full", "trace", "sum", "diag")
STRIP = 256  # the fewest rows with which a matrix product is fast
ALIGN = 16  # on a GPU a matrix product is several times faster when its sizes are multiples of this
_STRIPS = {"cpu": 16, "cuda": 8}  # strips that a block on the diagonal is cut into,
_ROWS = {"cpu": STRIP, "cuda": 1024}  # unless they would have fewer rows than this


@dataclass(frozen=True)
class Outputs:
    """How a sample's C outputs enter the kernel.

    "full": each sample has C rows. "diag": C separate kernels, in each of which a sample has one row. "trace": one row
    with the C rows of J side by side, so that their inner products add up. "sum": one row, the J of the summed outputs
    (the sum is taken before the backward pass, so `outputs` is 1).
    """

    reduce: str
    outputs: int

    @property
    def batches(self) -> int:
        """B, the number of separate kernels."""
        return self.outputs if self.reduce == "diag" else 1

    @property
    def rows(self) -> int:
        """R, the rows of a sample in each of these kernels."""
        return self.outputs if self.reduce == "full" else 1

    @property
    def folded(self) -> int:
        """How many outputs are side by side in one row."""
        return self.outputs if self.reduce == "trace" else 1

    def arrange(self, t: Float[Tensor, "N C *S X"]) -> Float[Tensor, "N B R *S Y"]:
        """Split the axis of outputs into B and R, or fold it into the last axis."""
        if self.folded > 1:
            t = t.movedim(1, -2).flatten(-2).unsqueeze(1)
        return t.reshape(t.shape[0], self.batches, self.rows, *t.shape[2:])


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a way costs; the planner turns it into seconds and bytes.

    Args:
        pair: Multiplications per pair of samples.
        sample: Multiplications per sample, in each block that it is part of.
        traffic: Numbers read or written per pair, apart from the matrix products.
        held: Numbers kept of each sample.
        opened: Numbers per sample in memory while a block is computed.
        least: Further numbers per sample for the smallest step: J of one output unit, or the products with one other
            sample. Steps are larger where there is room.
    """

    pair: int
    sample: int = 0
    traffic: int = 0
    held: int
    opened: int = 0
    least: int = 0


class DifferentUse(Exception):
    """A batch uses some parameters (named in `args`) in another form than the one for which their way was chosen."""


class Way(ABC):
    """One way to contract one layer."""

    name: str
    terms = 1  # length of the longest sum whose result is stored in the format of the kept factors

    @abstractmethod
    def cost(self) -> Cost:
        """Multiplications, memory traffic and memory."""

    @abstractmethod
    def keep(self, layer: LayerJacobian) -> Kept:
        """The tensors, (N, ...) each, that are kept of a batch of N samples."""

    @abstractmethod
    def add(self, out: Block, left: Kept, right: Kept, alpha: float, room: int) -> None:
        """out += alpha ⟨J_n, J_m⟩, using about `room` bytes of working memory.

        On the diagonal of a symmetric kernel, left and right are the same samples and only pairs m ≤ n are needed.
        """


L = TypeVar("L", bound=LayerJacobian)


def alike(layer: LayerJacobian, example: L) -> L:
    """The layer, if it has the same form as `example`, for which a way was chosen; else raises `DifferentUse`."""
    if not isinstance(layer, type(example)) or _form(layer) != _form(example):
        raise DifferentUse
    return layer


def _form(layer: LayerJacobian) -> tuple[object, ...]:
    """What two uses must share for their factors to be contracted with each other."""
    if isinstance(layer, Outer):
        return layer.d.shape[1:], layer.source.shape[1:], layer.locate, layer.order
    return (layer.d.shape[1:],)


def is_plain_convolution(layer: Outer) -> bool:
    """Whether a layer is a convolution with one group."""
    return isinstance(layer.locate, Patches) and layer.groups == 1


def aligned(n: int, unit: int = ALIGN) -> int:
    """n, rounded up to a multiple of `unit`."""
    return math.ceil(n / unit) * unit


def strips(out: Block, left: Kept, right: Kept, samples: int) -> Iterator[tuple[slice, slice]]:
    """Strips of at most `samples` samples, each with its columns: all, or on the diagonal those up to its own end."""
    n, m = out.shape[1], out.shape[3]
    symmetric = left[0] is right[0]
    unit = ALIGN // math.gcd(ALIGN, out.shape[2])  # the fewest samples whose number of rows is a multiple of ALIGN
    kind = out.device.type
    fair = max(math.ceil(n / _STRIPS.get(kind, 8)), _ROWS.get(kind, STRIP) // out.shape[2])
    step = max(1, min(samples, aligned(fair, unit) if symmetric else n))
    if unit < step < n:
        step -= step % unit
    for i in range(0, n, step):
        end = min(i + step, n)
        yield slice(i, end), slice(0, end if symmetric else m)
