"""What tests of the lab share: one run of every registered study at the `test` scale, and the report on it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from filelock import FileLock
from typer.testing import CliRunner

from torchtangent.lab import report
from torchtangent.lab.recipes import registry
from torchtangent.lab.runner import reproduce


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of the lab come first: many need the run below, for which a second worker would have to wait."""
    items.sort(key=lambda item: not item.path.is_relative_to(Path(__file__).parent))


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    """Runs commands as on a wide terminal without colours."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    return CliRunner()


@pytest.fixture(scope="session")
def all_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every registered study, run once at the `test` scale for all workers together."""
    base = tmp_path_factory.getbasetemp()
    root = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "all-runs"
    with FileLock(f"{root}.lock"):
        for study in registry().values():
            outcome = reproduce(study, "test", root, long=True)
            assert not outcome.failed, outcome.failed
    return root


@pytest.fixture(scope="session")
def page(all_runs: Path) -> Path:
    """The report on them."""
    path = all_runs / "report.html"
    with FileLock(f"{path}.lock"):
        if not path.exists():
            report.write([all_runs], path)
    return path
