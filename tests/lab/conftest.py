"""One run of every registered study at the `test` scale, and the report on it, shared by all tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from filelock import FileLock

from torchtangent.lab import report
from torchtangent.lab.recipes import registry
from torchtangent.lab.runner import reproduce


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of the lab in one worker: they wait for the same run."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.xdist_group("lab"))


@pytest.fixture(scope="session")
def all_runs(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Every registered study, run once at the `test` scale for all workers together."""
    base = tmp_path_factory.getbasetemp()
    root = (base if worker_id == "master" else base.parent) / "all-runs"
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
