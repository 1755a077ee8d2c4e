"""Where records go besides memory: JSON lines, TensorBoard, any function."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Record = dict[str, Any]
Writer = Callable[[Record], object]


def as_writers(targets: Any) -> list[Writer]:
    """Writers, from one thing or a list of things that `as_writer` takes."""
    several = isinstance(targets, Sequence) and not isinstance(targets, str)
    return [as_writer(one) for one in (targets if several else [targets])]


def as_writer(target: Any) -> Writer:
    """A writer, from a path (JSON lines), a `SummaryWriter` (anything with `add_scalar`) or a function of a record."""
    if isinstance(target, str | os.PathLike):
        return JsonLines(target)
    if hasattr(target, "add_scalar"):
        return TensorBoard(target)
    if callable(target):
        return target
    raise TypeError(
        f"A writer is a path (for JSON lines), a SummaryWriter or a function of a record, got {type(target).__name__}."
    )


class JsonLines:
    """Appends each record to a file as one line of JSON; NaN and infinity, which JSON lacks, become null.

    A last line that an earlier process left unfinished is dropped.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "ab+") as file:
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)

    def __call__(self, record: Record) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(_plain(record), allow_nan=False) + "\n")


class TensorBoard:
    """Writes every float of a record as a scalar `tangent/…`."""

    def __init__(self, board: Any) -> None:
        self.board = board

    def __call__(self, record: Record) -> None:
        for key, value in record.items():
            if isinstance(value, float):
                self.board.add_scalar(f"tangent/{key}", value, record["step"])


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(v) for key, v in value.items()}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
