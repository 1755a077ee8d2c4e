"""Every example runs as it stands, prints something, warns of nothing, and is about a few lines."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "docs" / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))
LEFT = {"probe_training.py": ["probe.png"]}  # what an example leaves in the folder where it is run


def test_the_readme_lists_them() -> None:
    text = (FOLDER / "README.md").read_text()
    assert EXAMPLES
    assert [path.name for path in EXAMPLES if f"[{path.name}]({path.name})" not in text] == []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_at_most_five_lines_are_ours(path: Path) -> None:
    assert sum("tt." in line for line in path.read_text().splitlines()) <= 5


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_runs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setattr(sys, "argv", [str(path)])
    monkeypatch.delitem(sys.modules, "trained", raising=False)
    runpy.run_path(str(path), run_name="__main__")
    printed, said = capfd.readouterr()
    assert printed.strip()
    assert not said
    assert [left.name for left in tmp_path.iterdir()] == LEFT.get(path.name, [])
