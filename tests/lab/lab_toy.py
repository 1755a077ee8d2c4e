"""A small study to try the machinery on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from torchtangent.lab.claims import Claim
from torchtangent.lab.rules import AtMost, Near
from torchtangent.lab.runner import Context
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
