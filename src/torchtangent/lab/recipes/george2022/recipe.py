"""What is run: the knob α between lazy and rich training, a toy, examples that can be solved, and images."""

from __future__ import annotations

from typing import Any

from torchtangent.lab.recipes.george2022 import (
    closed,
    consistency,
    cscores,
    examples,
    interface,
    lazy,
    linearity,
    linearized,
    noise,
    plain,
    spurious,
    toy,
)
from torchtangent.lab.recipes.george2022.claims import CLAIMS
from torchtangent.lab.recipes.george2022.entries import ENTRIES
from torchtangent.lab.study import Part, Scale, Study, picker

PARTS = (
    Part("first-step", lazy.first_step),
    Part("trajectories", lazy.trajectories),
    Part("linearity", linearity.linearity, long=True),
    *toy.PARTS,
    *closed.PARTS,
    *examples.PARTS,
    *plain.PARTS,
    *interface.PARTS,
    *consistency.PARTS,
    *cscores.PARTS,
    *noise.PARTS,
    *linearized.PARTS,
    *spurious.PARTS,
)


def configuration(scale: Scale) -> dict[str, dict[str, Any]]:
    """Everything that is fixed before the run, by part. `smoke` uses digits, `paper` MNIST."""
    pick = picker(scale)
    alphas = [1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0]
    small = {
        "data": pick("digits", "mnist", "digits"),
        "samples": pick(128, 1000, 16),
        "test_samples": pick(50, 100, 6),
        "widths": pick([32, 32], [256, 256], [8]),
        "lr": 0.05,
    }
    return {
        "first-step": {**small, "alphas": alphas},
        "trajectories": {
            **small,
            "alphas": pick(alphas, alphas, [1.0, 10.0, 100.0]),
            "epochs": pick(3, 5, 1),
            "batch": pick(32, 100, 8),
        },
        "linearity": {
            **small,
            "samples": pick(1437, 10000, 200),
            "widths": pick([256, 256], [512, 512, 512], [16]),
            "lr": 0.01,
            "alphas": [1.0, 100.0],
            "batch": pick(50, 100, 20),
            "seeds": pick([0], [0, 1, 2, 3, 4], [0]),
            "levels": pick(8, 12, 2),
            "most_steps": pick(5000, 200000, 5000),
        },
        **toy.configuration(pick),
        **closed.configuration(pick),
        **examples.configuration(pick),
        **plain.configuration(pick),
        **interface.configuration(pick),
        **consistency.configuration(pick),
        **cscores.configuration(pick),
        **noise.configuration(pick),
        **linearized.configuration(pick),
        **spurious.configuration(pick),
    }


STUDY = Study(
    key="george2022",
    title="Lazy vs hasty: linearization in deep networks impacts learning schedule based on example difficulty",
    reference=(
        "Thomas George, Guillaume Lajoie and Aristide Baratin, TMLR 2022; chapter 5 and appendix C of Thomas George's "
        "thesis, whose numbers the entries have: TG-Fig5.2 is its figure 5.2."
    ),
    configuration=configuration,
    parts=PARTS,
    entries=ENTRIES,
    claims=CLAIMS,
)
