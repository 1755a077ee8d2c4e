"""A kernel on disk that survives being killed at any moment.

    K.npy.partial    while unfinished: the array, every tile in its place; its header is written last
    K.npy.journal    while unfinished: a line with a checksum per tile, appended when the tile is on disk
    K.npy.json       the manifest: what it is the kernel of, the plan and, once it is finished, the checksums
    K.npy            the finished kernel, for np.load(..., mmap_mode="r")

A kernel is finished if `K.npy` exists, and unfinished if `K.npy.partial` does; one rename switches between the two.
The checksums of `K.npy.partial` are in the journal, those of `K.npy` in the manifest. A store keeps no state in memory,
so all threads, ranks and later runs that open the same path agree.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.kernel.manifest import Journal, Manifest, rename
from torchtangent.kernel.tilefile import HEADER, TileFile
from torchtangent.kernel.tiles import Key, Tile, mirror
from torchtangent.notice import dtype_name, listed, warn

_OTHER_FORMATS = {".pt", ".pth", ".npz", ".safetensors", ".h5", ".csv"}


@dataclass(frozen=True)
class KernelStore:
    """A kernel on disk: `open` it, `write` what is `pending`, `finish`.

    Threads and processes may write different tiles of one store at once.
    """

    path: Path
    manifest: Manifest

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        identity: Mapping[str, Any],
        shape: Iterable[int],
        dtype: torch.dtype,
        plan: Mapping[str, Any],
        symmetric: bool,
    ) -> KernelStore:
        """Begin a kernel on disk, or resume the one that is there.

        Every tile on disk is read back and compared with its checksum. A damaged one becomes pending again, with a
        warning, and a finished kernel then becomes unfinished.

        Args:
            path: The `.npy` file to write.
            identity: What the numbers depend on: hashes of parameters and inputs, precision and so on, as JSON.
            shape: (N1, N2), (N1, N2, C) or (N1, N2, C, C).
            dtype: The dtype of the stored numbers: float16, float32 or float64.
            plan: JSON with `edges1` and `edges2`: where tiles begin along the first two axes, and where the last ends.
            symmetric: Whether tiles above the diagonal are mirror images of those below, so that only the latter have
                to be computed.

        Returns:
            The store. If it was begun by an earlier run, its `plan` is the one of that run.

        Raises:
            ValueError: The path holds another kernel (every difference is named), or something that is not a kernel.
            OSError: The folder is missing, the path is a folder, or the disk is too small.
        """
        path = Path(path)
        if path.suffix in _OTHER_FORMATS:
            raise ValueError(
                f"A kernel is written as a NumPy array, '{path.with_suffix('.npy')}', not as '{path.name}'."
            )
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "A kernel is stored in a file, and this is a folder", str(path))
        if not path.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, "The folder for the kernel is missing, make it", str(path.parent))
        wanted = Manifest(_as_json(identity), _as_json(plan), tuple(shape), _name(dtype), symmetric)
        found = _find(path)
        if found is None:
            store = cls(path, wanted)
            store._create()
            return store
        if differences := found.differences(wanted):
            raise ValueError(
                f"The kernel in '{path}' was made for something else: {'; '.join(differences)}. Use another path, or "
                f"delete '{path}*' to compute it again."
            )
        store = cls(path, found)
        store._examine()
        return store

    @property
    def plan(self) -> dict[str, Any]:
        """The plan that the tiles follow."""
        return self.manifest.plan

    @property
    def tiles(self) -> list[Tile]:
        """All tiles, written or not."""
        return list(self.manifest.tiles.values())

    @property
    def complete(self) -> bool:
        """Whether the kernel is finished and can be read."""
        return self.path.exists()

    def pending(self) -> list[Tile]:
        """The tiles that no process has written yet."""
        if self.complete:
            return []
        written = self._checksums()
        return [tile for key, tile in self.manifest.tiles.items() if key not in written]

    def write(self, tile: Tile, block: Float[Tensor, "N M *C"]) -> None:
        """Write a tile and its mirror image. Once this returns, they survive the end of the process."""
        self._check_block(tile, block)
        with self._room(block.nbytes, f"tile {tile.key}"):
            self._journal.append({tile.key: self._file.write(tile, block)})

    def finish(self) -> np.memmap:
        """Make the kernel readable, once every tile is written, and return it (read-only)."""
        if not self.complete:
            if missing := self.pending():
                raise ValueError(
                    f"{len(missing)} of {len(self.tiles)} tiles of '{self.path}' are missing, the first is "
                    f"{missing[0].key}. Write what is pending() first."
                )
            with self._room(HEADER, "the manifest"):
                self._partial.seal()
                self._write_manifest(complete=True, checksums=self._checksums())
            rename(self._partial.path, self.path)
        self._journal.path.unlink(missing_ok=True)
        return np.load(self.path, mmap_mode="r")

    @property
    def _partial(self) -> TileFile:
        return TileFile(_beside(self.path, ".partial"), self.manifest)

    @property
    def _file(self) -> TileFile:
        return TileFile(self.path, self.manifest) if self.complete else self._partial

    @property
    def _journal(self) -> Journal:
        return Journal(_beside(self.path, ".journal"))

    def _checksums(self) -> dict[Key, str]:
        """The checksums of the tiles that are written."""
        if self.complete:
            return self.manifest.checksums
        return {key: checksum for key, checksum in self._journal.read().items() if key in self.manifest.tiles}

    def _write_manifest(self, **changes: Any) -> None:
        replace(self.manifest, **changes).write(_beside(self.path, ".json"))

    def _create(self) -> None:
        """Reserve the space on disk; writing the manifest then makes it a store."""
        for leftover in (".journal", ".json", ".partial"):
            _beside(self.path, leftover).unlink(missing_ok=True)
        file = self._partial
        with self._room(file.size, "the kernel"):
            try:
                if shutil.disk_usage(self.path.parent).free < file.size:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                file.reserve()
                self._write_manifest()
            except OSError:
                file.path.unlink(missing_ok=True)
                raise

    def _examine(self) -> None:
        """Read back all written tiles; damaged ones become pending again, with a warning."""
        checksums = self._checksums()
        damaged = self._file.damaged(checksums)
        if damaged:
            warn(
                f"{len(damaged)} of {len(self.tiles)} tiles of '{self.path}' are damaged on disk and will be computed "
                f"again: {listed([*map(str, damaged)])}.",
            )
        if self.complete and not damaged and self._file.sealed():
            return
        with self._room(self._partial.size, "the kernel"):
            if self.complete:
                # The journal must be right before the rename, from which on it counts instead of the manifest.
                self._journal.append(checksums | dict.fromkeys(damaged))
                rename(self.path, self._partial.path)
            elif damaged:
                self._journal.append(dict.fromkeys(damaged))
            self._partial.reserve()
            if self.manifest.complete:
                self._write_manifest(complete=False, checksums={})

    def _check_block(self, tile: Tile, block: Tensor) -> None:
        """Refuse a block that does not belong to the tile."""
        where = f"Tile {tile.key} of '{self.path}'"
        if self.complete:
            raise ValueError(f"{where}: the kernel is finished, there is nothing to write.")
        if self.manifest.tiles.get(tile.key) != tile:
            raise ValueError(f"{where}, {tile.rows} × {tile.cols}, is not in the store's plan. Take it from pending().")
        shape = (*tile.shape, *self.manifest.shape[2:])
        if tuple(block.shape) != shape or _name(block.dtype) != self.manifest.dtype:
            raise ValueError(
                f"{where} is {shape} of {self.manifest.dtype}, the block {tuple(block.shape)} of {_name(block.dtype)}."
            )
        if self.manifest.symmetric and tile.i == tile.j and not torch.equal(block, mirror(block)):
            raise ValueError(f"{where} is on the diagonal of a symmetric kernel, but is not symmetric or holds NaN.")

    @contextmanager
    def _room(self, needed: int, what: str) -> Iterator[None]:
        """If the disk is full, raise an error that says how much is needed and how much is free."""
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            free = shutil.disk_usage(self.path.parent).free
            message = (
                f"The disk is full: {what} needs {needed:,} bytes and {free:,} are free. "
                "Tiles that were finished are kept: make room and run again"
            )
            raise OSError(error.errno, message, str(self.path)) from error


def load_kernel(path: str | os.PathLike[str], *, verify: bool = False) -> np.memmap:
    """A finished kernel, read-only and mapped into memory.

    Args:
        path: The `.npy` file.
        verify: Whether to read all of it and compare every tile with its checksum.

    Returns:
        The array.

    Raises:
        FileNotFoundError: There is no kernel at this path.
        ValueError: It is not complete, was not written by `ntk`, or was changed since it was finished.
    """
    path = Path(path)
    found = _find(path)
    if found is None:
        raise FileNotFoundError(errno.ENOENT, "There is no kernel here", str(path))
    again = "Run the computation again with this path to go on from what is there."
    store, file = KernelStore(path, found), TileFile(path, found)
    if not store.complete:
        missing = f"{len(store.pending())} of {len(store.tiles)} tiles are missing"
        raise ValueError(f"'{path}' is not complete: {missing}. {again}")
    if not file.sealed():
        raise ValueError(f"'{path}' was cut off or changed after it was finished. {again}")
    if verify and (damaged := file.damaged(found.checksums)):
        raise ValueError(f"'{path}' is damaged on disk, in tiles {damaged}. {again}")
    return np.load(path, mmap_mode="r")


def _find(path: Path) -> Manifest | None:
    """The manifest of the kernel at a path, begun or finished; None if there is nothing to resume.

    Raises on files that none of our runs, even if killed, would leave behind.
    """
    found = Manifest.read(_beside(path, ".json"))
    begun, finished = _beside(path, ".partial").exists(), path.exists()
    killed_early = found is None and not _beside(path, ".journal").exists()  # inside `_create`, if there is a data file
    if not finished and (not begun or killed_early):
        return None
    if found is None and not begun:
        raise ValueError(
            f"'{path}' exists but is no kernel of ours: '{path.name}.json' is missing. "
            "Use another path or delete the file."
        )
    if found is None or (finished and (begun or not found.complete)):
        raise ValueError(
            f"The files of the kernel '{path}' do not belong together: one was deleted, or copied here. "
            f"Delete '{path}*' to compute it again."
        )
    return found


def _as_json(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content after a round trip through JSON, so that it can be compared with what is read from a file."""
    return json.loads(json.dumps(dict(content), allow_nan=False))


def _name(dtype: torch.dtype) -> str:
    """The name of a dtype in both torch and numpy."""
    name = dtype_name(dtype)
    if name not in ("float16", "float32", "float64"):
        raise ValueError(f"A kernel is stored as float16, float32 or float64, not as {name}. Convert it first.")
    return name


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)
