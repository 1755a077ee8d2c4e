"""Tiles that are written behind the computation, and tiles for ranks."""

import warnings
from typing import Any

import pytest
import torch
from torch import nn

from torchtangent.kernel.distributed import Ranks
from torchtangent.kernel.job import Job
from torchtangent.kernel.plan import make_plan
from torchtangent.kernel.tiles import tiles_of
from torchtangent.kernel.writer import Writer

TILES = tiles_of([0, 2, 4], [0, 2, 4], symmetric=True)


class Disk:
    """A store that is full after some tiles."""

    def __init__(self, room: int) -> None:
        self.room, self.written = room, list[Any]()

    def write(self, tile: Any, block: Any) -> None:
        if len(self.written) == self.room:
            raise OSError("disk full")
        self.written.append(tile)


def write(disk: Disk, then: Exception | None = None) -> None:
    with Writer(disk.write) as writer:
        for tile in TILES:
            writer.write(tile, torch.zeros(2, 2))
            if then is not None:
                raise then


@pytest.mark.parametrize("room", [0, 1, 2])
def test_an_error_of_any_tile_is_raised(room: int) -> None:
    disk = Disk(room)
    with pytest.raises(OSError, match="disk full"):
        write(disk)
    assert disk.written == TILES[:room]


def test_an_error_of_the_computation_is_the_one_that_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        write(Disk(0), then=ZeroDivisionError())


def test_tiles_in_their_order() -> None:
    disk = Disk(3)
    write(disk)
    assert disk.written == TILES


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_every_rank_has_its_share_of_the_work(ranks: int) -> None:
    job = Job(nn.Linear(3, 1), torch.randn(2000, 3), reduce="trace", stored=True)
    job.task = job.task.__class__(**{**job.task.__dict__, "ranks": ranks})
    tiles = tiles_of(*make_plan(job.task).edges, symmetric=True)
    shares = [Ranks(rank, ranks).mine(tiles, job._work) for rank in range(ranks)]
    assert sorted(tile.key for share in shares for tile in share) == [tile.key for tile in tiles]
    loads = [sum(map(job._work, share)) for share in shares]
    assert max(loads) <= 1.2 * sum(loads) / ranks


def test_a_store_is_followed_by_more_ranks_without_a_word() -> None:
    job = Job(nn.Linear(3, 1), torch.randn(2000, 3), reduce="trace", stored=True)
    alone = job.plan
    task = job.task.__class__(**{**job.task.__dict__, "ranks": 4})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        followed = make_plan(task).follow(task, alone.to_json())
    assert followed.edges == alone.edges


def test_little_memory_leaves_several_tiles_to_a_panel() -> None:
    x = torch.randn(2000, 30)
    job = Job(nn.Linear(30, 1), x, reduce="trace", stored=True, max_memory=300_000)
    task = job.task.__class__(**{**job.task.__dict__, "ranks": 2})
    plan = make_plan(task)
    assert plan.panel < len(plan.edges[0]) - 1
    assert plan.panel >= 4
