"""Tiles shared among the ranks of torchrun; each sample is captured by one rank only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """The processes that work on one kernel; a single one if torch.distributed is not in use."""

    rank: int = 0
    size: int = 1

    @classmethod
    def current(cls) -> Ranks:
        """The processes of the default group."""
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        return cls()

    def mine(self, items: Sequence[T], work: Callable[[T], float]) -> list[T]:
        """This rank's share: in order of decreasing work, each item goes to the rank that has least so far.

        >>> Ranks(1, size=2).mine([4, 3, 2, 1], work=float)
        [3, 2]
        """
        load, shares = [0.0] * self.size, [0] * len(items)
        for k in sorted(range(len(items)), key=lambda k: -work(items[k])):
            shares[k] = load.index(min(load))
            load[shares[k]] += work(items[k])
        return [item for item, rank in zip(items, shares, strict=True) if rank == self.rank]

    def stretch(self, n: int, rank: int | None = None) -> slice:
        """The part of n consecutive samples that a rank (by default this one) captures."""
        r = self.rank if rank is None else rank
        return slice(n * r // self.size, n * (r + 1) // self.size)

    def gather(self, item: T) -> list[T]:
        """The items of all ranks, on every rank."""
        if self.size == 1:
            return [item]
        items: list[Any] = [None] * self.size
        dist.all_gather_object(items, item)
        return items

    def from_first(self, item: T) -> T:
        """The first rank's item, on every rank."""
        items = [item]
        if self.size > 1:
            dist.broadcast_object_list(items, src=0, device=_device())
        return items[0]

    def wait(self) -> None:
        """Wait until all ranks have come this far."""
        if self.size > 1:
            dist.barrier()

    def exchange(self, tensors: Iterable[Tensor]) -> None:
        """Complete tensors of which each rank has only its own `stretch` along the first axis."""
        others = range(self.size if self.size > 1 else 0)
        parts = [(t[self.stretch(len(t), rank)], rank) for t in tensors for rank in others]
        for part, rank in parts:
            if rank != self.rank:
                part.zero_()  # to receive into memory that was never written takes several times as long
        under_way = [dist.broadcast(part, src=rank, async_op=True) for part, rank in parts if len(part)]
        for one in under_way:
            one.wait()


def _device() -> torch.device | None:
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else None
