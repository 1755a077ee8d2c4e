"""Files in the data folder: where they belong, and whether they are the published ones."""

from __future__ import annotations

import gzip
import hashlib
import os
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

ENVIRONMENT = "TORCHTANGENT_DATA"


class DataError(Exception):
    """A file of a data set is absent or damaged; the message says which one and where it belongs."""


@dataclass(frozen=True)
class File:
    """An official file: where it belongs, its checksum, where it comes from.

    Attributes:
        path: In the data folder.
        md5: The published checksum; none for files of which none is published: what is in them is checked then.
        url: Where it comes from.
        packed: Whether the checksum is that of the gzipped file, and no other is published.
        by_hand: Whether it comes in an archive that `download` does not fetch.
    """

    path: str
    md5: str | None
    url: str
    packed: bool = False
    by_hand: bool = False

    @property
    def published(self) -> str:
        """The path of what the checksum is of."""
        return f"{self.path}.gz" if self.packed else self.path


def root_folder(given: Path | None = None) -> Path:
    """The data folder: the one given, or that of the environment variable.

    Raises:
        DataError: Neither is set.
    """
    if given is not None:
        return given
    if value := os.environ.get(ENVIRONMENT):
        return Path(value)
    raise DataError(f"no data folder: give one with --data or set {ENVIRONMENT}")


def as_found(file: File, root: Path) -> File:
    """The file as it is in the folder: without a checksum if only the gzipped one has one and that is not there."""
    path = root / file.path
    if file.packed and path.exists() and not path.with_name(path.name + ".gz").exists():
        return replace(file, md5=None, packed=False)
    return file


def read(file: File, root: Path) -> bytes:
    """The bytes of an official file, gzipped or not, refused if they are not the published ones."""
    path = root / file.path
    packed = path.with_name(path.name + ".gz")
    if path.exists() and not file.packed:
        blob = path.read_bytes()
        _check(file, blob)
    elif packed.exists():
        raw = packed.read_bytes()
        if file.packed:
            _check(file, raw)
        try:
            blob = gzip.decompress(raw)
        except (OSError, EOFError) as error:
            raise DataError(f"{packed} cannot be unpacked ({error}): fetch it again from {file.url}") from error
        if not file.packed:
            _check(file, blob)
    else:
        hint = "" if file.by_hand else ", or let torchtangent.lab.data.download(folder) fetch it"
        raise DataError(
            f"{file.published} is not in the data folder {root}. Put it there (it comes from {file.url}){hint}."
        )
    return blob


@contextmanager
def understood(file: File) -> Iterator[None]:
    """Within, an error means that the file is not in its format."""
    try:
        yield
    except (ValueError, TypeError, LookupError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{file.path} cannot be read ({error}): fetch it again from {file.url}") from error


def checksum(file: File, blob: bytes) -> str:
    """What a run's record says of a file that was read."""
    if file.md5 is not None:
        return f"md5 {file.md5}"
    return f"sha256 {hashlib.sha256(blob).hexdigest()}, not checked: none is published"


def _check(file: File, blob: bytes) -> None:
    found = hashlib.md5(blob).hexdigest()
    if file.md5 is not None and found != file.md5:
        raise DataError(
            f"{file.published} is damaged or another file: its md5 is {found}, the published one {file.md5}. "
            f"Fetch it again from {file.url}"
        )


def parse_idx(blob: bytes) -> np.ndarray:
    """The array in an idx file of unsigned bytes (two zeros, type 8, rank; sizes, big-endian; data).

    >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]))
    array([7, 8, 9], dtype=uint8)

    Raises:
        ValueError: The bytes are in another format, or fewer or more than the sizes say.
    """
    if len(blob) < 4 or blob[:3] != b"\x00\x00\x08":
        raise ValueError("not an idx file of unsigned bytes")
    rank = blob[3]
    shape = np.frombuffer(blob, dtype=">u4", count=rank, offset=4)
    body = np.frombuffer(blob, dtype=np.uint8, offset=4 + 4 * rank)
    if body.size != int(np.prod(shape)):
        raise ValueError(f"idx file of shape {shape.tolist()} holds {body.size} bytes")
    return body.reshape(shape)
