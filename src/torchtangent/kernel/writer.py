"""Writes tiles to disk while the next ones are computed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

from jaxtyping import Float
from torch import Tensor

from torchtangent.kernel.tiles import Tile


class Writer:
    """Writes tiles in a thread of its own, at most one at a time.

    An error there is raised at the next call, or at the end.
    """

    def __init__(self, put: Callable[[Tile, Tensor], None]) -> None:
        self._put, self._thread = put, ThreadPoolExecutor(1)
        self._last: Future[None] | None = None

    def write(self, tile: Tile, block: Float[Tensor, "N M *C"]) -> None:
        """Start to write a tile, once the previous one is on disk."""
        self._wait()
        block = block.detach().cpu()
        self._last = self._thread.submit(self._put, tile, block)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._thread.shutdown()
        if error is None:
            self._wait()

    def _wait(self) -> None:
        last, self._last = self._last, None
        if last is not None:
            last.result()
