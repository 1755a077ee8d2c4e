"""Computations as CUDA graphs: recorded once and then replayed, which launches all of their kernels at once."""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

Result = TypeVar("Result")

_PATIENCE = 4  # the call from which on it pays to record
_LARGEST = 1 << 24  # numbers: a graph keeps a few tensors of that size, and large ones keep a GPU busy anyway
_one_at_a_time = threading.RLock()


def record(compute: Callable[[], Result], stream: torch.cuda.Stream | None = None) -> tuple[Result, Callable[[], None]]:
    """Record a computation on the current GPU; returns the tensors that will hold its results, and what replays it.

    Args:
        compute: The computation.
        stream: Where it is recorded: backward passes run on the stream of their forward pass, so it is recorded there.
    """
    device = torch.cuda.current_device()
    graph, pool, stream = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle(), stream or _stream_of(device)
    try:
        # torch does not return to the old stream after a recording that fails.
        with (
            torch.cuda.stream(stream),
            torch.cuda.graph(
                graph,
                pool,
                stream,
                capture_error_mode="thread_local",  # other threads may be loading data
            ),
        ):
            result = compute()
    except BaseException:
        _clean_up(device, pool, stream)
        raise
    return result, graph.replay


def _clean_up(device: int, pool: Any, stream: torch.cuda.Stream) -> None:
    """End what torch leaves begun after a recording that fails: memory is the graph's own, random numbers are too."""
    with suppress(RuntimeError, AttributeError):  # torch's own name for it is not public
        torch._C._cuda_endAllocateToPool(device, pool)
    with suppress(RuntimeError), torch.cuda.stream(stream), torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream):
        torch.zeros(1, device="cuda")


@cache
def _stream_of(device: int) -> torch.cuda.Stream:
    """Where graphs of a GPU are recorded: by default torch takes a stream of the first GPU for all of them."""
    return torch.cuda.Stream(device)


class Repeated:
    """v ↦ f(v) for one tensor, the same every time: on a GPU a CUDA graph from the fourth call in a row on.

    If it cannot be recorded, it is called each time. The result is a new tensor.

    Args:
        function: f. What it reads is kept.
        tensors: All tensors that f reads and that may ask for gradients: if one does, or v, f is called.
        stream: Where it is recorded (see `record`).
        patience: The number of the call from which on it is recorded.
    """

    def __init__(
        self,
        function: Callable[[Tensor], Tensor],
        tensors: Iterable[Tensor] = (),
        stream: torch.cuda.Stream | None = None,
        patience: int = _PATIENCE,
    ) -> None:
        self._function, self._tensors, self._stream = function, list(tensors), stream
        self._patience: float = patience  # infinite where it cannot be recorded
        self._key: Hashable = None
        self._calls = 0  # in a row with this key
        self._graph: _Graph | None = None
        self._lock = threading.RLock()

    def __call__(self, v: Tensor) -> Tensor:
        if v.is_cuda and self._patience < math.inf and self._suits(v):
            with self._lock:
                key = v.shape, v.dtype, v.device, torch.backends.cuda.matmul.fp32_precision
                if key != self._key:
                    self._key, self._calls, self._graph = key, 0, None
                self._calls += 1
                if self._graph is None and self._calls >= self._patience:
                    self._record(v)
                if self._graph is not None:
                    return self._graph(v)
        return self._function(v)

    def _suits(self, v: Tensor) -> bool:
        """Whether the result depends on the values of v only, has no derivative, and is small enough."""
        return (
            v.numel() <= _LARGEST
            and type(v) is Tensor
            and forward_ad._current_level < 0
            and not torch._C._functorch.is_functorch_wrapped_tensor(v)
            and not (torch.is_grad_enabled() and (v.requires_grad or any(t.requires_grad for t in self._tensors)))
            and not torch.compiler.is_compiling()
            and not torch.cuda.is_current_stream_capturing()
        )

    def _record(self, v: Tensor) -> None:
        """Try to record it for vectors like v."""
        with _one_at_a_time, torch.cuda.device(v.device):
            try:
                if not _synchronizes(lambda: self._function(v)):
                    self._graph = _Graph(self._function, v, self._stream)
            except RuntimeError:
                pass
        if self._graph is None:
            self._patience = math.inf


def _synchronizes(compute: Callable[[], object]) -> bool:
    """Whether a computation waits for the GPU, which cannot be recorded."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            compute()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    return any("called a synchronizing" in str(warning.message) for warning in said)


class _Graph:
    """A recorded function of one tensor, with the tensors that it reads from and writes to."""

    def __init__(self, function: Callable[[Tensor], Tensor], v: Tensor, stream: torch.cuda.Stream | None) -> None:
        self._last = torch.cuda.current_stream(v.device)
        with torch.inference_mode(False), torch.no_grad():
            self._given = torch.empty(v.shape, dtype=v.dtype, device=v.device).copy_(v)
            self._result, self._replay = record(lambda: function(self._given), stream)

    def __call__(self, v: Tensor) -> Tensor:
        with torch.cuda.device(v.device):
            now = torch.cuda.current_stream()
            now.wait_stream(self._last)  # all streams share these tensors
            self._last = now
            self._given.copy_(v)
            self._replay()
            return self._result.clone()


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
