"""A study in a file of one's own is run, judged and reported like those of the lab."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from torchtangent.lab import cli, recipes
from torchtangent.lab.recipes import called, load, registry

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "own_study.py"


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is loaded in a test is not there in the next."""
    before, modules = dict(registry()), set(sys.modules)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(recipes, "_files", {})
    yield
    registry().clear()
    registry().update(before)
    for name in ("own_study", "mine"):
        if name not in modules:
            sys.modules.pop(name, None)


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_it_is_run_and_reported(runner: CliRunner, tmp_path: Path, jobs: str) -> None:
    runs, page = str(tmp_path / "runs"), tmp_path / "index.html"
    done = runner.invoke(cli.app, ["reproduce", str(EXAMPLE), "--out", runs, "--jobs", jobs])
    assert done.exit_code == 0, done.output
    assert "1 claim: 1 held" in done.output
    assert f"report {runs} --recipe {EXAMPLE}" in "".join(done.output.split("\n"))
    listed = runner.invoke(cli.app, ["claims", str(EXAMPLE), "--runs", runs])
    assert "smoke scale  held" in listed.output
    shown = runner.invoke(cli.app, ["report", runs, "--recipe", str(EXAMPLE), "--out", str(page)])
    assert shown.exit_code == 0, shown.output
    text = page.read_text()
    assert "torchtangent reproduce own_study.py --scale smoke --only Spread" in text
    assert "Studies that were not run here: baratin2021, george2018" in text
    assert str(EXAMPLE.parent) not in text  # where it is concerns nobody else


def test_runs_of_an_unknown_study_are_named(runner: CliRunner, tmp_path: Path) -> None:
    runner.invoke(cli.app, ["reproduce", str(EXAMPLE), "--out", str(tmp_path)])
    del registry()["width"]
    for command in (["report", "--out", str(tmp_path / "index.html")], ["judge"]):
        done = runner.invoke(cli.app, [*command, str(tmp_path)])
        assert done.exit_code == 1
        assert "no such study is known: width. Name its file with --recipe" in done.output
        assert "no results" not in done.output
    judged = runner.invoke(cli.app, ["judge", str(tmp_path), "--recipe", str(EXAMPLE)])
    assert "1 claim: 1 held" in judged.output


def test_a_file_may_be_loaded_twice() -> None:
    study = load(EXAMPLE)
    assert load(EXAMPLE) is study is registry()["width"]
    assert called(study) == "own_study.py"
    assert called(registry()["george2018"]) == "george2018"


def test_modules_beside_it_are_found(tmp_path: Path) -> None:
    (tmp_path / "beside_mine.py").write_text(EXAMPLE.read_text())
    (tmp_path / "mine.py").write_text("from beside_mine import STUDY\n")
    assert load(tmp_path / "mine.py").key == "width"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("nope.py", None, "there is no file"),
        ("mine.py", "x = 1", "defines no study: it should say STUDY = Study(...)"),
        ("mine.py", "STUDY = 'a string'", "defines no study"),
        ("mine.py", "raise SystemExit(0)", "mine.py cannot be loaded: SystemExit"),
        ("mine.py", "1 / 0", "mine.py cannot be loaded: ZeroDivisionError: division by zero"),
        ("json.py", "x = 1", "there is another module 'json', which Python finds first: rename json.py"),
    ],
)
def test_a_file_that_will_not_do_is_exit_code_2(
    runner: CliRunner, tmp_path: Path, name: str, text: str | None, said: str
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    done = runner.invoke(cli.app, ["reproduce", str(tmp_path / name)])
    assert done.exit_code == 2
    assert said in " ".join(done.output.replace("│", " ").split())


def test_the_key_of_another_study_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(EXAMPLE.read_text().replace('key="width"', 'key="george2018"'))
    with pytest.raises(ValueError, match=r"another study has the key 'george2018': choose another .*mine\.py"):
        load(tmp_path / "mine.py")
    assert called(registry()["george2018"]) == "george2018"
