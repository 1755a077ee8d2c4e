"""Two small files beside a kernel on disk: what it is the kernel of, and which of its tiles are written."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any

from torchtangent.kernel.tiles import Key, Tile, tiles_of

FORMAT = "torchtangent-kernel"
VERSION = 2


@dataclass(frozen=True)
class Manifest:
    """`K.npy.json`: what it is the kernel of, and how it is cut into tiles."""

    identity: dict[str, Any]
    plan: dict[str, Any]
    shape: tuple[int, ...]
    dtype: str
    symmetric: bool
    complete: bool = False
    checksums: dict[Key, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.checksums.keys() != self.tiles.keys() and self.complete:
            raise ValueError("The checksums of a complete kernel must be those of its tiles.")

    @cached_property
    def tiles(self) -> dict[Key, Tile]:
        """All tiles of the plan, by key; see `tiles_of`."""
        return {tile.key: tile for tile in tiles_of(self._edges(1), self._edges(2), self.symmetric)}

    def _edges(self, axis: int) -> list[int]:
        edges, size = self.plan.get(f"edges{axis}", []), self.shape[axis - 1]
        if edges[:1] != [0] or edges[-1:] != [size] or any(a >= b for a, b in pairwise(edges)):
            raise ValueError(f"The plan's edges{axis} must rise from 0 to the kernel's size {size}; they are {edges}.")
        return edges

    def differences(self, other: Manifest) -> list[str]:
        """The entries that show that the other manifest is of another kernel. Plans may differ."""
        pairs = [(key, self.identity.get(key), other.identity.get(key)) for key in self.identity | other.identity]
        pairs += [(key, getattr(self, key), getattr(other, key)) for key in ("shape", "dtype", "symmetric")]
        return [f"{key} {_change(old, new)}" for key, old, new in pairs if old != new]

    def write(self, path: Path) -> None:
        """Write to a temporary file and rename it, so that a reader sees the old manifest or the new one."""
        content = {"format": FORMAT, "version": VERSION, **asdict(self), "checksums": _entries(self.checksums)}
        aside = path.with_name(path.name + ".tmp")
        with aside.open("w", encoding="utf-8") as file:
            json.dump(content, file, indent=1, allow_nan=False)
            file.flush()
            os.fsync(file.fileno())
        rename(aside, path)

    @classmethod
    def read(cls, path: Path) -> Manifest | None:
        """The manifest in a file; None if there is no file."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content.pop("format") != FORMAT:
                raise ValueError(f"its format is not {FORMAT}")
            if (version := content.pop("version")) != VERSION:
                raise ValueError(f"it has version {version}, this code reads {VERSION}")
            checksums = dict(map(_parse, content.pop("checksums")))
            return cls(shape=tuple(content.pop("shape")), checksums=checksums, **content)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"'{path}' is not readable as a kernel's manifest ({error}). Use another path, or delete it and "
                "the data beside it to compute the kernel again."
            ) from error


@dataclass(frozen=True)
class Journal:
    """`K.npy.journal`: the checksums of the tiles that are written. Several processes may append at once."""

    path: Path

    def append(self, checksums: Mapping[Key, str | None]) -> None:
        """Record that tiles are written or, with None, that they no longer count as written."""
        # The leading newline ends a line that an earlier process, killed while writing, left incomplete.
        text = "\n".join(["", *map(json.dumps, _entries(checksums)), ""]).encode()
        with self.path.open("ab", buffering=0) as file:
            if os.write(file.fileno(), text) < len(text):  # a nearly full disk first writes less, without an error
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(file.fileno())

    def read(self) -> dict[Key, str]:
        """The checksums; of several entries for a tile, the last one counts."""
        checksums: dict[Key, str | None] = {}
        for line in self.path.read_bytes().split(b"\n") if self.path.exists() else []:
            try:
                key, checksum = _parse(json.loads(line))
            except (ValueError, KeyError, TypeError):  # empty, or incomplete because its writer was killed
                continue
            checksums[key] = checksum
        return {key: checksum for key, checksum in checksums.items() if checksum is not None}


def rename(old: Path, new: Path) -> None:
    """Rename a file so that the new name survives a power cut."""
    os.replace(old, new)
    folder = os.open(new.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _change(old: object, new: object) -> str:
    """What was and what is; of two texts, the first line in which they differ."""
    if isinstance(old, str) and isinstance(new, str):
        lines = zip_longest(old.split("\n"), new.split("\n"))
        old, new = next((a, b) for a, b in lines if a != b)
    return f"{old!r} → {new!r}"


def _entries(checksums: Mapping[Key, str | None]) -> list[dict[str, Any]]:
    """Checksums as JSON."""
    return [{"tile": key, "blake2b": checksum} for key, checksum in checksums.items()]


def _parse(entry: dict[str, Any]) -> tuple[Key, Any]:
    """A tile's key and its checksum, from JSON."""
    i, j = entry["tile"]
    return (i, j), entry["blake2b"]
