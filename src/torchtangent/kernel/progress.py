"""A line that shows how far a long computation is, its rate and when it will end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import datetime, timedelta

Report = Callable[[int, int], None]  # (work done, total work)
_PATIENCE = 2.0  # seconds before the line appears
_PAUSE = 0.2  # seconds between updates


class Progress:
    """Counts work; shows it on a terminal, or reports it to a function.

    Args:
        total: The total work.
        show: True, False, None (on a terminal only), or a function of (done, total).
        what: The name of the computation.
        unit: The unit of work.
    """

    def __init__(self, total: int, show: bool | Report | None, what: str = "kernel", unit: str = "pairs") -> None:
        self.total, self.done, self.what, self.unit = total, 0, what, unit
        self.report = show if callable(show) else None
        self.line = sys.stderr.isatty() if show is None else show is True
        self.start = self.last = time.monotonic()
        self.shown = False

    def add(self, work: int) -> None:
        """Record that some work is done."""
        self.done += work
        if self.report:
            self.report(self.done, self.total)
        now = time.monotonic()
        if self.line and now - self.start > _PATIENCE and (now - self.last > _PAUSE or self.done >= self.total):
            self.last, self.shown = now, True
            rate = self.done / (now - self.start)
            end = datetime.now() + timedelta(seconds=(self.total - self.done) / rate)
            text = f"\r{self.what} {self.done / self.total:5.1%}  {rate:.3g} {self.unit}/s  ends at {end:%H:%M:%S}"
            print(text, end="", file=sys.stderr, flush=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self.shown:
            print(file=sys.stderr)
