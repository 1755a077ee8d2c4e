"""The folder of a run: the results of one study at one scale.

    runs/<study>/<scale>/
        config.json           the full configuration
        parts/<part>.npz      the arrays of a part (no pickle)
        parts/<part>.json     written after them: digest, checksum, seconds, provenance
        claims.json           the verdicts, a list of objects, for other programs (ours judge the arrays anew)
        manifest.json         written last: what is complete; removed as soon as an array changes
        failed/<part>.txt     the traceback of a part that failed

Every file is written under another name and then renamed, so that files are never partial. A part counts
only if its `.json` is there, belongs to the current configuration and has the checksum of the `.npz`. Only
one process at a time writes to the folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, get_args

import numpy as np

from torchtangent.lab.claims import Finding
from torchtangent.lab.provenance import checksum
from torchtangent.lab.study import Arrays, Scale, is_file_name

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

SCHEMA = "torchtangent-run-1"


class Busy(RuntimeError):
    """Another process is writing to the same folder."""


def replace_file(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file under another name, then rename it: readers see either the old or the complete new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with aside.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def write_json(path: Path, data: Any) -> None:
    """Write plain data as JSON, atomically."""
    text = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    replace_file(path, lambda file: file.write(text.encode()))


def read_json(path: Path) -> Any:
    """The data in a JSON file, or None if there is no such file or it is not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None


@dataclass(frozen=True)
class Record:
    """What is known about the arrays of a finished part."""

    part: str
    digest: str
    code: str
    sha256: str
    seconds: float
    config: Mapping[str, Any]
    provenance: Mapping[str, Any]
    data: Mapping[str, str]
    needs: Mapping[str, str] = field(default_factory=dict)  # checksums of the parts it was computed from


def elapsed(records: Iterable[Record]) -> float:
    """The seconds that parts took together, where time in which several ran side by side counts once."""
    total, until = 0.0, 0.0
    spans = []
    for record in records:
        when = record.provenance["finished"].replace(" UTC", "+00:00")
        if "shared by" in record.provenance["device"] and when.count(":") == 3:  # old records have only the minute
            end = datetime.fromisoformat(when).timestamp()
            spans.append((end - record.seconds, end))
        else:
            total += record.seconds
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


@dataclass(frozen=True)
class Run:
    """One study at one scale, in its folder."""

    folder: Path

    @property
    def study(self) -> str:
        """The study's key."""
        return self.folder.parent.name

    @property
    def scale(self) -> str:
        """The scale it was run at."""
        return self.folder.name

    def _npz(self, part: str) -> Path:
        return self.folder / "parts" / f"{part}.npz"

    def _json(self, part: str) -> Path:
        return self.folder / "parts" / f"{part}.json"

    def scratch(self, part: str) -> Path:
        """A folder for what is too large to keep, such as kernels and checkpoints."""
        folder = self.folder / "scratch" / part
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @contextmanager
    def alone(self) -> Iterator[None]:
        """A context in which no other process works in this folder, if the system has file locks.

        Raises:
            Busy: If another process does.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        if fcntl is None:
            yield
            return
        handle = os.open(self.folder, os.O_RDONLY)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise Busy(f"another process works in {self.folder}: wait for it, or choose another folder") from error
            except OSError:  # a file system without locks
                pass
            yield
        finally:
            os.close(handle)

    def record(self, part: str, digest: str | None = None, code: str | None = None) -> Record | None:
        """The record of a part if it is valid, and made by this configuration and code if they are given.

        It is valid if its arrays have the recorded checksum, and if all parts that it was computed from, directly or
        indirectly, are still the same.
        """
        record, npz = self.said(part), self._npz(part)
        if record is None or digest not in (None, record.digest) or code not in (None, record.code):
            return None
        if not npz.exists() or checksum(npz) != record.sha256:
            return None
        return record if self._is_current(record) else None

    def _is_current(self, record: Record) -> bool:
        """Whether all parts that this one was computed from, directly or indirectly, are still the same."""
        return all(
            (now := self.said(name)) is not None and now.sha256 == sha256 and self._is_current(now)
            for name, sha256 in record.needs.items()
        )

    def said(self, part: str) -> Record | None:
        """The record of a part, whether it is valid or not; None if there is none."""
        try:
            return Record(part=part, **read_json(self._json(part)))
        except TypeError:
            return None

    def save(self, part: str, arrays: Mapping[str, Any], **record: Any) -> Record:
        """Save a finished part: first its arrays, then the record that makes them count."""
        plain = {name: np.asarray(array) for name, array in arrays.items()}
        objects = [name for name, array in plain.items() if array.dtype == object]
        if objects:
            raise TypeError(
                f"part {part!r} returned arrays of objects, which only pickle can store: {', '.join(objects)}"
            )
        if wrong := [name for name in plain if not is_file_name(name) or name in ("file", "allow_pickle")]:
            raise ValueError(f"part {part!r} returned arrays with names that cannot be stored: {', '.join(wrong)}")
        (self.folder / "manifest.json").unlink(missing_ok=True)
        replace_file(self._npz(part), lambda file: np.savez_compressed(file, allow_pickle=False, **plain))
        fields = {**record, "sha256": checksum(self._npz(part))}
        write_json(self._json(part), fields)
        self.failed(part).unlink(missing_ok=True)
        return Record(part=part, **fields)

    def failed(self, part: str) -> Path:
        """The file with the traceback of a part, if it failed."""
        return self.folder / "failed" / f"{part}.txt"

    def write_failure(self, part: str, text: str) -> None:
        """Write down why a part failed."""
        replace_file(self.failed(part), lambda file: file.write(text.encode()))

    def load(self, parts: Sequence[str], *, writable: bool = False) -> Arrays:
        """The arrays of finished parts; read-only by default, as several readers share them."""
        loaded = {}
        for part in parts:
            with np.load(self._npz(part), allow_pickle=False) as file:
                loaded[part] = {name: file[name] for name in file.files}
            for array in loaded[part].values():
                array.setflags(write=writable)
        return Arrays(loaded)

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Write the full configuration."""
        write_json(self.folder / "config.json", config)

    def write_claims(self, findings: Sequence[Finding]) -> None:
        """Write the verdicts; those at paper scale also to the study's folder, where a reader looks first."""
        folders = [self.folder, *([self.folder.parent] if self.scale == "paper" else [])]
        for folder in folders:
            write_json(folder / "claims.json", [finding.as_json() for finding in findings])

    def read_claims(self) -> list[Finding]:
        """The verdicts from when the run was last judged; an empty list if it never was.

        Raises:
            ValueError: If the file is damaged.
        """
        path = self.folder / "claims.json"
        if not path.exists():
            return []
        try:
            return [Finding.from_json(item) for item in read_json(path)]
        except (TypeError, KeyError, ValueError) as error:
            raise ValueError(f"{path} is damaged: write it again with `torchtangent judge {self.folder}`") from error

    def write_manifest(self, entries: Sequence[str], missing: Sequence[str]) -> None:
        """Write down what is complete; this is the last file of a run to be written."""
        parts = sorted(path.stem for path in (self.folder / "parts").glob("*.json"))
        records = {part: record.sha256 for part in parts if (record := self.record(part))}
        manifest = {
            "schema": SCHEMA,
            "study": self.study,
            "scale": self.scale,
            "complete": not missing,
            "entries": list(entries),
            "missing": list(missing),
            "parts": records,
        }
        write_json(self.folder / "manifest.json", manifest)


def find_runs(root: Path) -> Iterator[Run]:
    """Every run below a folder, following links, sorted by study, with the largest scale first."""
    folders, seen = list[Path](), set[str]()
    left = [os.path.abspath(root)]
    for top in left:  # which grows: links are followed last, and only to folders not seen yet
        for path, below, files in os.walk(top):
            if os.path.realpath(path) in seen:
                below.clear()
                continue
            seen.add(os.path.realpath(path))
            below.sort()
            left += [link for name in below if os.path.islink(link := os.path.join(path, name))]
            if "config.json" in files and "parts" in below and os.path.basename(path) in get_args(Scale):
                folders.append(Path(path))
    yield from map(Run, sorted(folders, key=lambda path: (path.parent.name, path.name)))
