"""What the planner of a kernel knows, and the time it predicts from that."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from torchtangent.jacobians.factors import LayerJacobian, Outer
from torchtangent.kernel.contract import Formed
from torchtangent.kernel.precision import Precision
from torchtangent.kernel.way import Outputs, Way, aligned

COPIES = 4  # how often J is read or written before it is kept
_EDGE = {"cpu": 2048, "cuda": 15360}  # most samples along a tile


@dataclass(frozen=True)
class Machine:
    """Typical rates of a kind of device. They only decide which way is taken, so they need not be exact.

    Args:
        kind: "cpu" or "cuda".
        multiplications: Per second, in large matrix products, by number format.
        bandwidth: Bytes per second.
        exchange: Bytes per second from one rank to the others.
    """

    kind: str
    multiplications: Mapping[str, float]
    bandwidth: float
    exchange: float

    @classmethod
    def of(cls, device: torch.device) -> Machine:
        """A typical machine with such a device."""
        if device.type == "cuda":
            rates = {"float64": 2e13, "float32": 2e13, "tf32": 1.5e14, "bfloat16": 3e14, "float16": 3e14}
            return cls("cuda", rates, 3e12, 5e10)
        threads = torch.get_num_threads()
        rates = dict.fromkeys(("float32", "tf32", "bfloat16", "float16"), 5e10 * threads)
        return cls("cpu", {**rates, "float64": 2.5e10 * threads}, 5e9 * threads, 1e9)


@dataclass(frozen=True, kw_only=True)
class Task:
    """What the planner knows: shapes, formats and sizes.

    Args:
        layers: The layer Jacobians of any few samples.
        outputs: How outputs enter the kernel.
        samples: N1 and N2; N2 is None for a symmetric kernel.
        precision: The format.
        machine: The kind of device.
        captured: Bytes per sample that a capture takes.
        result: Bytes of the kernel if it is in the same memory, else 0.
        budget: Bytes to stay within.
        separate: Whether each parameter's own kernel is wanted.
        ranks: How many processes share the tiles.
    """

    layers: Mapping[str, LayerJacobian]
    outputs: Outputs
    samples: tuple[int, int | None]
    precision: Precision
    machine: Machine
    captured: int
    result: int
    budget: int
    separate: bool = False
    ranks: int = 1

    @property
    def edge(self) -> int:
        """Most samples along a tile: large tiles are fast, but all ranks should have as many of them."""
        most = _EDGE[self.machine.kind]
        if self.ranks == 1:
            return most
        n = max(self.samples[0], self.samples[1] or 0)
        each = math.ceil(n / (most * self.ranks))  # with so many rows of tiles for each rank all tiles share evenly
        return min(most, aligned(math.ceil(n / (each * self.ranks))))

    @property
    def pairs(self) -> int:
        """How many pairs of samples there are; of a symmetric kernel, those with m ≤ n."""
        n, m = self.samples
        return n * (n + 1) // 2 if m is None else n * m

    def seconds(self, way: Way, layer: LayerJacobian, edge: int) -> float:
        """Predicted seconds for one layer, with tiles of `edge` samples."""
        cost, (n, m) = way.cost(), self.samples
        rate = self.machine.multiplications[self.precision.name]
        blocks = math.ceil(max(n, m or 0) / edge)
        samples = n + (m or 0)
        once = copied = 0
        if isinstance(way, Formed):
            once, copied = _forming_once(layer), COPIES * cost.held
        products = self.pairs * cost.pair + samples * (blocks * cost.sample + once)
        moved = self.pairs * cost.traffic * self.precision.total.itemsize
        moved += samples * (blocks * cost.opened + copied) * self.precision.held.itemsize
        shared = samples * cost.held * self.precision.held.itemsize if self.ranks > 1 else 0
        return products / rate + moved / self.machine.bandwidth + shared / self.machine.exchange


def _forming_once(layer: LayerJacobian) -> int:
    """Multiplications that form J of one sample."""
    return layer.d[0].numel() * layer.columns if isinstance(layer, Outer) else 0
