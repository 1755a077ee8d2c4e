"""A line that shows how far a long computation is, its rate and when it will end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import datetime, timedelta

Report = Callable[[int, int | None], None]  # (work done, total work; None if it is not known)
_PATIENCE = 2.0  # seconds before the line appears
_PAUSE = 0.2  # seconds between updates


class Progress:
    """Counts work; shows it on a terminal, or reports it to a function.

    Args:
        total: The total work, if it is known.
        show: True, False, None (on a terminal only), or a function of (done, total).
        what: The name of the computation.
        unit: The unit of work.
    """

    def __init__(self, total: int | None, show: bool | Report | None, what: str, unit: str) -> None:
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
        if self.line and now - self.start > _PATIENCE and (now - self.last > _PAUSE or self.done == self.total):
            self.last, self.shown = now, True
            print(f"\r{self.what} {self._text(self.done / (now - self.start))}", end="", file=sys.stderr, flush=True)

    def _text(self, rate: float) -> str:
        if self.total is None:
            return f"{self.done:,} {self.unit}  {rate:.3g} {self.unit}/s"
        end = datetime.now() + timedelta(seconds=(self.total - self.done) / rate)
        return f"{self.done / self.total:5.1%}  {rate:.3g} {self.unit}/s  ends at {end:%H:%M:%S}"

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self.shown:
            print(file=sys.stderr)
