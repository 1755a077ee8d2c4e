"""A small study to try the machinery on, and one run of every real one at the `test` scale."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

from torchtangent.lab import report
from torchtangent.lab.claims import Claim
from torchtangent.lab.recipes import registry
from torchtangent.lab.rules import AtMost, Near
from torchtangent.lab.runner import Context, reproduce
from torchtangent.lab.study import Entry, Part, Study

RunPart = Callable[[Context], Mapping[str, Any]]


def draw_numbers(context: Context) -> Mapping[str, Any]:
    """Some random numbers."""
    rng = np.random.default_rng(context.config["seed"])
    return {"x": rng.standard_normal(context.config["count"])}


def add_up(context: Context) -> Mapping[str, Any]:
    """Their sum."""
    return {"total": context.arrays("numbers")["x"].sum()}


def toy_study(numbers: RunPart = draw_numbers, total: RunPart = add_up, seed: int = 0) -> Study:
    """Two parts, the second of which needs the first, and an entry for each."""
    return Study(
        key="toy2000",
        title="A toy",
        reference="Nobody, nowhere.",
        configuration=lambda scale: {"numbers": {"seed": seed, "count": 5}, "total": {}},
        parts=(Part("numbers", numbers), Part("total", total, needs=("numbers",))),
        entries=(
            Entry("TY-Fig1", "Numbers", "There are numbers.", "{numbers[count]} numbers.", ("numbers",)),
            Entry("TY-Tab1–2", "Sum", "They have a sum.", "Added.", ("total",)),
        ),
        claims=(
            Claim("TY-Fig1", "five", "There are five.", 5.0, lambda a: float(a["x"].size), Near(5.0, 1e-9)),
            Claim("TY-Tab1–2", "small", "The sum is tiny.", "tiny", lambda a: float(a["total"]), AtMost(-100.0)),
            Claim(
                "TY-Tab1–2",
                "paper only",
                "At full size it is zero.",
                0.0,
                lambda a: float(a["total"]),
                AtMost(0.0),
                scales=("paper",),
            ),
        ),
    )


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
