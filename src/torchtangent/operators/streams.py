"""Streams of a GPU: work that goes on at the same time, or in an order of its own."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor

Found = TypeVar("Found")
_THREADS = 4  # each with its own stream: a single decomposition leaves most of a GPU idle


@contextmanager
def following(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """A context on another stream, after all that was begun on this one, and before all that comes after it here."""
    if stream is None:
        yield
        return
    here = torch.cuda.current_stream(stream.device)
    stream.wait_stream(here)
    with torch.cuda.stream(stream):
        yield
    here.wait_stream(stream)


@contextmanager
def any_stream() -> Iterator[None]:
    """Without torch's warning that a parameter and its gradient are of different streams: nothing is accumulated."""
    if not torch.cuda.is_initialized():
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The AccumulateGrad node's stream")
        yield


def concurrently(
    tasks: Sequence[Callable[[], Found]], device: torch.device, made: Callable[[Found], Iterable[Tensor]]
) -> list[Found]:
    """The results of tasks; on a GPU several decompositions run at the same time.

    Args:
        tasks: What is to be computed, each by itself.
        device: Where.
        made: The tensors of a result.
    """
    if device.type != "cuda" or len(tasks) < 2:
        return [task() for task in tasks]
    _load(device)
    here = torch.cuda.current_stream(device)

    def run(task: Callable[[], Found]) -> Found:
        stream = torch.cuda.Stream(device)
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            found = task()
        here.wait_stream(stream)
        for t in made(found):
            t.record_stream(here)  # keeps its memory until this stream is done with it
        return found

    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(run, tasks))


@cache
def _load(device: torch.device) -> None:
    """Make torch load its library of decompositions, which it does on demand, but not safely from several threads."""
    torch.linalg.eigh(torch.eye(2, device=device))
