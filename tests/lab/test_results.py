"""A run's folder never looks more finished than it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from torchtangent.lab import results
from torchtangent.lab.results import Run, find_runs

RECORD: dict[str, Any] = {"digest": "d", "code": "c", "seconds": 1.0, "config": {}, "provenance": {}, "data": {}}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "study" / "smoke")


def test_arrays_come_back(run: Run) -> None:
    run.save("part", {"x": np.arange(3), "names": ["a", "b"], "scalar": 2.5}, **RECORD)
    arrays = run.load(["part"])
    assert arrays["x"].tolist() == [0, 1, 2]
    assert arrays["names"].tolist() == ["a", "b"]
    assert float(arrays["scalar"]) == 2.5
    record = run.record("part", "d", "c")
    assert record is not None
    assert record.seconds == 1.0


def test_objects_are_refused_because_nothing_is_pickled(run: Run) -> None:
    with pytest.raises(TypeError, match="pickle"):
        run.save("part", {"x": np.array([{}], dtype=object)}, **RECORD)
    assert run.record("part") is None


@pytest.mark.parametrize(("digest", "code"), [("other", "c"), ("d", "other")])
def test_another_configuration_or_code_does_not_count(run: Run, digest: str, code: str) -> None:
    run.save("part", {"x": np.zeros(1)}, **RECORD)
    assert run.record("part", digest, code) is None
    assert run.record("part", "d") is not None


def test_damaged_arrays_do_not_count(run: Run) -> None:
    run.save("part", {"x": np.zeros(100)}, **RECORD)
    path = run.folder / "parts" / "part.npz"
    path.write_bytes(path.read_bytes()[:-7])
    assert run.record("part") is None


def test_arrays_without_their_record_do_not_count(run: Run) -> None:
    run.save("part", {"x": np.zeros(1)}, **RECORD)
    (run.folder / "parts" / "part.json").unlink()
    assert run.record("part") is None


def test_a_write_that_breaks_off_leaves_nothing_behind(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.save("part", {"x": np.zeros(1)}, **RECORD)
    run.write_manifest(["E"], [])

    def break_off(*args: Any, **kwargs: Any) -> None:
        args[0].write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez_compressed", break_off)
    with pytest.raises(OSError, match="disk full"):
        run.save("part", {"x": np.ones(1)}, **RECORD)
    assert run.record("part") is None
    assert run.manifest() is None
    assert list(run.folder.rglob("*.tmp")) == []


def test_json_is_replaced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    results.write_json(path, {"old": 1})
    with pytest.raises(ValueError):
        results.write_json(path, {"new": float("nan")})
    assert json.loads(path.read_text()) == {"old": 1}


def test_runs_are_found_below_a_folder(run: Run, tmp_path: Path) -> None:
    run.save("part", {"x": np.zeros(1)}, **RECORD)
    assert list(find_runs(tmp_path)) == []
    run.write_config({})
    (found,) = find_runs(tmp_path)
    assert (found.study, found.scale) == ("study", "smoke")
