"""The file with the kernel's numbers, read and written tile by tile."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.kernel.hashing import bytes_of, new_hash, stripes
from torchtangent.kernel.manifest import Manifest
from torchtangent.kernel.tiles import Key, Tile, mirror

HEADER = 4096  # bytes before the data: one page, whatever this version of numpy would choose


@dataclass(frozen=True)
class TileFile:
    """The bytes of the kernel, `K.npy` or `K.npy.partial`: a header, then the array.

    It uses plain reads and writes and no memory map: mapped pages would count as memory of this process, and a full
    disk would kill it instead of raising an error.
    """

    path: Path
    manifest: Manifest

    @property
    def cell(self) -> int:
        """Bytes per pair of samples."""
        return np.dtype(self.manifest.dtype).itemsize * math.prod(self.manifest.shape[2:])

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return HEADER + math.prod(self.manifest.shape[:2]) * self.cell

    def reserve(self) -> None:
        """Create or extend the file, so that a full disk shows now. Tiles in it stay; the header is cleared."""
        self.path.touch()
        with self.path.open("r+b", buffering=0) as file:
            have = os.fstat(file.fileno()).st_size
            if have < self.size:
                try:
                    os.posix_fallocate(file.fileno(), have, self.size - have)
                except (AttributeError, OSError) as error:
                    # macOS lacks this call and some file systems refuse it: there a full disk shows in `write`.
                    if getattr(error, "errno", errno.EINVAL) not in (errno.EINVAL, errno.EOPNOTSUPP):
                        raise
                    os.ftruncate(file.fileno(), self.size)
            _write_all(file.fileno(), memoryview(bytes(HEADER)), 0)
            os.fsync(file.fileno())

    def seal(self) -> None:
        """Write the header, which makes the file readable for numpy."""
        with self.path.open("r+b", buffering=0) as file:
            _write_all(file.fileno(), memoryview(self._header()), 0)
            os.fsync(file.fileno())

    def sealed(self) -> bool:
        """Whether the file has its header and its full length."""
        with self.path.open("rb") as file:
            return file.read(HEADER) == self._header() and self.path.stat().st_size >= self.size

    def write(self, tile: Tile, block: Float[Tensor, "N M *C"]) -> str:
        """Write a block and its mirror image, and return the block's checksum."""
        digest = new_hash()
        with self.path.open("r+b", buffering=0) as file:
            for rows in self._stripes(tile):
                part = block[rows.start - tile.rows.start : rows.stop - tile.rows.start].detach().cpu()
                digest.update(bytes_of(part).numpy().data)
                self._put(file.fileno(), rows, tile.cols, part)
                if self._mirrored(tile):
                    self._put(file.fileno(), tile.cols, rows, mirror(part))
            os.fsync(file.fileno())
        return digest.hexdigest()

    def damaged(self, checksums: Mapping[Key, str]) -> list[Key]:
        """The tiles that do not match their checksums, or whose mirror image differs."""
        tiles = self.manifest.tiles
        with self.path.open("rb", buffering=0) as file:
            return [key for key, checksum in checksums.items() if not self._intact(file.fileno(), tiles[key], checksum)]

    def _header(self) -> bytes:
        """The header of the `.npy` format, padded to `HEADER` bytes."""
        fields = {"descr": np.dtype(self.manifest.dtype).str, "fortran_order": False, "shape": self.manifest.shape}
        text = repr(fields).encode().ljust(HEADER - 11) + b"\n"
        return np.lib.format.magic(1, 0) + len(text).to_bytes(2, "little") + text

    def _intact(self, file: int, tile: Tile, checksum: str) -> bool:
        digest = new_hash()
        try:
            for rows in self._stripes(tile):
                part = bytes_of(self._get(file, rows, tile.cols))
                digest.update(part.numpy().data)
                if self._mirrored(tile) and not torch.equal(bytes_of(mirror(self._get(file, tile.cols, rows))), part):
                    return False
        except (EOFError, OSError):  # cut off, or a bad sector
            return False
        return digest.hexdigest() == checksum

    def _mirrored(self, tile: Tile) -> bool:
        return self.manifest.symmetric and tile.i != tile.j

    def _stripes(self, tile: Tile) -> Iterator[slice]:
        # Each line of a mirror image is as long as a stripe is high, and many short writes would be slow.
        height, width = tile.shape
        return stripes(tile.rows, self.cell * width, least=height // 16)

    def _put(self, file: int, rows: slice, cols: slice, part: Tensor) -> None:
        for offset, line in self._lines(rows, cols, part.contiguous()):
            _write_all(file, line, offset)

    def _get(self, file: int, rows: slice, cols: slice) -> Tensor:
        shape = (rows.stop - rows.start, cols.stop - cols.start, *self.manifest.shape[2:])
        part = torch.empty(shape, dtype=getattr(torch, self.manifest.dtype), device="cpu")
        for offset, line in self._lines(rows, cols, part):
            _read_all(file, line, offset)
        return part

    def _lines(self, rows: slice, cols: slice, part: Tensor) -> Iterator[tuple[int, memoryview]]:
        """The contiguous stretches of a region in the file: the offset of each, and the memory of `part` for it."""
        width, cell = self.manifest.shape[1], self.cell
        count = 1 if cols == slice(0, width) else len(part)
        for row, line in enumerate(bytes_of(part).reshape(count, -1).numpy(), rows.start):
            yield HEADER + (row * width + cols.start) * cell, line.data


def _write_all(file: int, data: memoryview, offset: int) -> None:
    """Write all of `data`, in several calls if the system writes less at a time."""
    while data:
        written = os.pwrite(file, data, offset)
        offset, data = offset + written, data[written:]


def _read_all(file: int, data: memoryview, offset: int) -> None:
    """Fill `data`, in several calls if the system reads less at a time."""
    while data:
        read = os.preadv(file, [data], offset)
        if read == 0:
            raise EOFError
        offset, data = offset + read, data[read:]
