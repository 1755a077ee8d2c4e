"""A run's folder never looks more finished than it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from torchtangent.lab import results
from torchtangent.lab.results import Busy, Run, find_runs

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


def test_a_write_that_breaks_off_leaves_what_was_there(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.save("part", {"x": np.zeros(1)}, **RECORD)
    run.write_manifest(["E"], [])

    def break_off(*args: Any, **kwargs: Any) -> None:
        args[0].write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez_compressed", break_off)
    with pytest.raises(OSError, match="disk full"):
        run.save("part", {"x": np.ones(1)}, **RECORD)
    assert run.record("part") is not None
    assert run.load(["part"])["x"].tolist() == [0.0]
    assert list(run.folder.rglob("*.tmp")) == []


def test_a_change_of_arrays_takes_the_manifest_away(run: Run) -> None:
    run.write_manifest([], [])
    run.save("part", {"x": np.zeros(1)}, **RECORD)
    assert not (run.folder / "manifest.json").exists()


@pytest.mark.parametrize("text", ["[1, 2]", '{"digest": "d"}', "{", "\u00fc{"])
def test_what_is_no_record_counts_as_absent(run: Run, text: str) -> None:
    run.save("part", {"x": np.zeros(1)}, **RECORD)
    (run.folder / "parts" / "part.json").write_text(text, encoding="latin-1")
    assert run.record("part") is None


def test_damaged_verdicts_are_an_error_that_names_the_file(run: Run) -> None:
    assert run.read_claims() == []
    run.write_claims([])
    path = run.folder / "claims.json"
    for text in ("[", '[{"id": 1}]', "[3]"):
        path.write_text(text)
        with pytest.raises(ValueError, match=rf"{path} is damaged: .*torchtangent judge"):
            run.read_claims()


def test_what_was_made_from_other_arrays_does_not_count(run: Run) -> None:
    first = run.save("need", {"x": np.zeros(1)}, **RECORD)
    run.save("part", {"x": np.zeros(1)}, **RECORD, needs={"need": first.sha256})
    assert run.record("part") is not None
    run.save("need", {"x": np.ones(1)}, **RECORD)
    assert run.record("part") is None


def test_what_was_made_from_that_does_not_count_either(run: Run) -> None:
    needs: dict[str, str] = {}
    for name in "abc":
        needs = {name: run.save(name, {"x": np.zeros(1)}, **RECORD, needs=needs).sha256}
    assert run.record("c") is not None
    kept = run.said("a")
    run.save("a", {"x": np.ones(1)}, **RECORD)
    assert [run.record(name) is None for name in "abc"] == [False, True, True]
    assert run.save("a", {"x": np.zeros(1)}, **RECORD) == kept
    assert run.record("c") is not None
    (run.folder / "parts" / "a.json").unlink()
    assert [run.record(name) for name in "abc"] == [None, None, None]


def test_arrays_that_many_look_at_cannot_be_changed(run: Run) -> None:
    run.save("part", {"x": np.zeros(1)}, **RECORD)
    with pytest.raises(ValueError, match="read-only"):
        run.load(["part"])["x"][0] = 1
    run.load(["part"], writable=True)["x"][0] = 1


@pytest.mark.parametrize("name", ["a/b", "..", "file", ""])
def test_names_that_lead_elsewhere_are_refused(run: Run, name: str) -> None:
    with pytest.raises(ValueError, match="part 'part' returned arrays with names that cannot be stored"):
        run.save("part", {name: np.zeros(1)}, **RECORD)


def test_one_process_at_a_time(run: Run) -> None:
    with run.alone(), pytest.raises(Busy, match=f"another process works in {run.folder}"), run.alone():
        pass
    with run.alone():
        pass


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


def test_runs_are_found_where_links_lead_and_from_within(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b", "a"):
        Run(tmp_path / name / "study" / "smoke").save("part", {"x": np.zeros(1)}, **RECORD)
        Run(tmp_path / name / "study" / "smoke").write_config({})
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "linked").symlink_to(tmp_path / "a" / "study")
    (tmp_path / "links" / "loop").symlink_to(tmp_path / "links")
    assert [found.study for found in find_runs(tmp_path / "links")] == ["linked"]
    assert [found.folder for found in find_runs(tmp_path)][:2] == [tmp_path / n / "study" / "smoke" for n in "ab"]
    monkeypatch.chdir(tmp_path / "a" / "study" / "smoke")
    assert [(found.study, found.scale) for found in find_runs(Path("."))] == [("study", "smoke")]
