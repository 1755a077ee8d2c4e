"""Computations as CUDA graphs: recorded once and then replayed, which launches all of their kernels at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")


def record(compute: Callable[[], Result]) -> tuple[Result, Callable[[], None]]:
    """Record a computation; returns the tensors that will hold its results, and the function that replays it."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads may be loading data
        result = compute()
    return result, graph.replay


class Recorded:
    """Runs a function of tensors that returns nothing on a GPU: directly the first time, as a CUDA graph from then on.

    Small kernels take less time than launching them one by one. The function must be the same every time; it is not
    kept, as it may refer to what refers to this object.
    """

    def __init__(self) -> None:
        self._called = False
        self._given: list[Tensor] = []
        self._replay: Callable[[], None] | None = None

    def __call__(self, function: Callable[..., None], given: Sequence[Tensor]) -> None:
        if not self._called:
            self._called = True
            function(*given)
            return
        if self._replay is None:
            self._given = [t.clone() for t in given]
            _, self._replay = record(lambda: function(*self._given))
        for mine, t in zip(self._given, given, strict=True):
            mine.copy_(t)
        self._replay()
