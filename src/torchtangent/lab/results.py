"""A run's folder: what one study gave at one scale.

    runs/<study>/<scale>/
        config.json           the full configuration
        parts/<part>.npz      the arrays of a part (no pickle)
        parts/<part>.json     written after them: digest, checksum, seconds, provenance
        claims.json           the verdicts, a list of objects
        manifest.json         written last: what is whole

Every file is written aside and renamed, so that what is there is whole; a part counts only when its
`.json` is there, belongs to the present configuration and names the checksum of the `.npz`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from torchtangent.lab.claims import Finding
from torchtangent.lab.provenance import checksum
from torchtangent.lab.study import Arrays

SCHEMA = "torchtangent-run-1"


def _replace(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file aside, then rename it: readers see the old one or the whole new one."""
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
    _replace(path, lambda file: file.write(text.encode()))


def read_json(path: Path) -> Any:
    """The data in a JSON file, or None if there is no such file or it is not JSON."""
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
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


def elapsed(records: Iterable[Record]) -> float:
    """The seconds that parts took together: time in which some ran side by side counts once."""
    total, until = 0.0, 0.0
    spans = []
    for record in records:
        when = record.provenance["finished"].replace(" UTC", "+00:00")
        if "shared by" in record.provenance["device"] and when.count(":") == 3:  # old records know the minute only
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

    def record(self, part: str, digest: str | None = None, code: str | None = None) -> Record | None:
        """The record of a part if it is whole, and made by this configuration and code where they are given."""
        data = read_json(self._json(part))
        if data is None or digest not in (None, data["digest"]) or code not in (None, data["code"]):
            return None
        npz = self._npz(part)
        if not npz.exists() or checksum(npz) != data["sha256"]:
            return None
        return Record(part=part, **data)

    def save(self, part: str, arrays: Mapping[str, Any], **record: Any) -> Record:
        """Keep a finished part: first its arrays, then the record that makes them count."""
        plain = {name: np.asarray(array) for name, array in arrays.items()}
        objects = [name for name, array in plain.items() if array.dtype == object]
        if objects:
            raise TypeError(
                f"part {part!r} returned arrays of objects, which only pickle can store: {', '.join(objects)}"
            )
        self.discard(part)
        self.failed(part).unlink(missing_ok=True)
        _replace(self._npz(part), lambda file: np.savez_compressed(file, allow_pickle=False, **plain))
        fields = {**record, "sha256": checksum(self._npz(part))}
        write_json(self._json(part), fields)
        return Record(part=part, **fields)

    def failed(self, part: str) -> Path:
        """Where the traceback is of a part that failed."""
        return self.folder / "failed" / f"{part}.txt"

    def discard(self, part: str) -> None:
        """Forget a part, and that the run was whole."""
        (self.folder / "manifest.json").unlink(missing_ok=True)
        self._json(part).unlink(missing_ok=True)
        self._npz(part).unlink(missing_ok=True)

    def load(self, parts: Sequence[str]) -> Arrays:
        """The arrays of finished parts."""
        loaded = {}
        for part in parts:
            with np.load(self._npz(part), allow_pickle=False) as file:
                loaded[part] = {name: file[name] for name in file.files}
        return Arrays(loaded)

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Keep the full configuration."""
        write_json(self.folder / "config.json", config)

    def write_claims(self, findings: Sequence[Finding]) -> None:
        """Keep the verdicts; those at paper scale also beside the study's scales, where a reader looks first."""
        folders = [self.folder, *([self.folder.parent] if self.scale == "paper" else [])]
        for folder in folders:
            write_json(folder / "claims.json", [finding.as_json() for finding in findings])

    def read_claims(self) -> list[Finding]:
        """The verdicts; an empty list if nothing was judged yet."""
        return [Finding.from_json(item) for item in read_json(self.folder / "claims.json") or []]

    def write_manifest(self, entries: Sequence[str], missing: Sequence[str]) -> None:
        """Say what is whole; the last file of a run to be written."""
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

    def manifest(self) -> Mapping[str, Any] | None:
        """What `write_manifest` said, or None if the run never came to its end."""
        data = read_json(self.folder / "manifest.json")
        return data if data and data.get("schema") == SCHEMA else None


def find_runs(root: Path) -> Iterator[Run]:
    """Every run below a folder, the largest scale of a study first."""
    folders = {path.parent for path in root.rglob("config.json")}
    for folder in sorted(folders, key=lambda path: (path.parent.name, path.name)):
        if (folder / "parts").is_dir():
            yield Run(folder)
