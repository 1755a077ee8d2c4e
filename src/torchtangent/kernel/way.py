"""What a way to contract two factored layers is: what it keeps of a sample, what it costs, how samples meet."""

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
Block = Float[Tensor, "B N R M Q"]  # Q = R, the rows of a second sample
REDUCTIONS = ("full", "trace", "sum", "diag")
STRIP = 256  # rows of a fast product, at least
ALIGN = 16  # a matrix product is several times faster on a GPU when its edges are multiples of it
_STRIPS = {"cpu": 16, "cuda": 8}  # a block on the diagonal is computed in so many strips,
_ROWS = {"cpu": STRIP, "cuda": 1024}  # of so many rows at least


@dataclass(frozen=True)
class Outputs:
    """How a sample's C outputs enter the kernel.

    "full": C rows for each sample. "diag": C kernels of one row. "trace": one row, the outputs side by side in J (their
    inner products add up). "sum": one row, J of the sum of the outputs, which is what is pulled back.
    """

    reduce: str
    outputs: int

    @property
    def batches(self) -> int:
        """B, the number of separate kernels."""
        return self.outputs if self.reduce == "diag" else 1

    @property
    def rows(self) -> int:
        """R, the rows of a sample in each."""
        return self.outputs if self.reduce == "full" else 1

    @property
    def folded(self) -> int:
        """How many outputs stand side by side in a row."""
        return self.outputs if self.reduce == "trace" else 1

    def arrange(self, t: Float[Tensor, "N C *S X"]) -> Float[Tensor, "N B R *S Y"]:
        """The outputs' axis, where it belongs."""
        if self.folded > 1:
            t = t.movedim(1, -2).flatten(-2).unsqueeze(1)
        return t.reshape(t.shape[0], self.batches, self.rows, *t.shape[2:])


@dataclass(frozen=True)
class Cost:
    """What a way costs; the planner turns it into seconds.

    Args:
        pair: Multiplications for a pair of samples.
        sample: Multiplications for a sample in each block that it is part of.
        traffic: Numbers read or written for a pair, beside the products.
        held: Numbers kept of a sample.
        opened: Numbers that one sample needs while its block is computed.
        least: Further numbers, for its products with one other sample or unit; more of these as there is room.
    """

    pair: int
    sample: int
    traffic: int
    held: int
    opened: int
    least: int = 0


class DifferentUse(Exception):
    """A batch uses parameters, whose names are its arguments, in a form for which their way was not chosen."""


class Way(ABC):
    """One way to contract one layer."""

    name: str
    terms = 1  # the longest sum that it takes in the format in which factors are held

    @abstractmethod
    def cost(self) -> Cost:
        """What it costs."""

    @abstractmethod
    def keep(self, layer: LayerJacobian) -> Kept:
        """What is kept of some samples, (N, ...) each."""

    @abstractmethod
    def add(self, out: Block, left: Kept, right: Kept, alpha: float, room: int) -> None:
        """out += alpha ⟨J_n, J_m⟩ with about `room` bytes to work in.

        On the diagonal of a symmetric kernel left and right are the same samples: then only pairs m ≤ n are asked for.
        """


L = TypeVar("L", bound=LayerJacobian)


def alike(layer: LayerJacobian, example: L) -> L:
    """The layer, if it has the form of the one for which a way was chosen."""
    same = isinstance(layer, type(example)) and layer.d.shape[1:] == example.d.shape[1:]
    if same and isinstance(layer, Outer) and isinstance(example, Outer):
        same = layer.source.shape[1:] == example.source.shape[1:]
    if same and isinstance(layer, type(example)):
        return layer
    raise DifferentUse


def inputs_of(layer: Outer) -> int:
    """I, without forming patches."""
    return layer.shape.numel() // (layer.groups * layer.d.shape[-1])


def is_plain_convolution(layer: Outer) -> bool:
    """Whether a layer is a convolution in one group."""
    return isinstance(layer.locate, Patches) and layer.groups == 1


def aligned(n: int, unit: int = ALIGN) -> int:
    """The next multiple of `unit`."""
    return math.ceil(n / unit) * unit


def strips(out: Block, left: Kept, right: Kept, samples: int) -> Iterator[tuple[slice, slice]]:
    """Strips of at most so many rows with the columns they meet: all, or those up to the diagonal."""
    n, m = out.shape[1], out.shape[3]
    symmetric = left[0] is right[0]
    unit = ALIGN // math.gcd(ALIGN, out.shape[2])  # samples with a number of rows that is a multiple of it
    kind = out.device.type
    fair = max(math.ceil(n / _STRIPS.get(kind, 8)), _ROWS.get(kind, STRIP) // out.shape[2])
    step = max(1, min(samples, aligned(fair, unit) if symmetric else n))
    if unit < step < n:
        step -= step % unit
    for i in range(0, n, step):
        end = min(i + step, n)
        yield slice(i, end), slice(0, end if symmetric else m)
