"""What section 5.2 says about the measures of linearity."""

from __future__ import annotations

from torchtangent.lab.claims import Claim
from torchtangent.lab.recipes.george2022.measures import lazy as ours
from torchtangent.lab.rules import AtLeast, AtMost

_ALL = ("signs", "kernel", "representation", "representation, d×d")
_FALLS = (
    "Spearman's correlation of the median over seeds with the progress of training, −1 if it only falls; ranks also "
    "count small moves on a plateau. −0.9 is our threshold."
)

CLAIMS = (
    Claim(
        id="TG-5-metrics",
        name="α = 100",
        statement="For α = 100 all measures stay near 1.",
        published="≈ 1",
        measure=ours.lowest(100.0, *_ALL),
        rule=AtLeast(0.9),
        note="Smallest value during training, the median over seeds; 0.9 is our threshold.",
    ),
    Claim(
        id="TG-5-metrics",
        name="less linear",
        statement="At the same training loss they are lower for α = 1.",
        published="lower",
        measure=ours.at_the_end(1.0, 100.0, *_ALL),
        rule=AtLeast(0.01),
        note="The difference at the last level of the loss, the median over seeds; 0.01 is our threshold.",
    ),
    Claim(
        id="TG-5-metrics",
        name="signs",
        statement="For α = 1 the similarity of signs decreases steadily.",
        published="decreases",
        measure=ours.steadiness(1.0, "signs"),
        rule=AtMost(-0.9),
        note=_FALLS,
    ),
    Claim(
        id="TG-5-metrics",
        name="kernel",
        statement="For α = 1 the alignment of the tangent kernel decreases steadily.",
        published="decreases",
        measure=ours.steadiness(1.0, "kernel"),
        rule=AtMost(-0.9),
        note=_FALLS,
    ),
    Claim(
        id="TG-5-metrics",
        name="representation",
        statement="For α = 1 the alignment of the representation decreases steadily.",
        published="decreases",
        measure=ours.steadiness(1.0, "representation"),
        rule=AtMost(-0.9),
        note=_FALLS,
    ),
    Claim(
        id="TG-5-metrics",
        name="representation, d×d",
        statement=(
            "For α = 1 the alignment of the representation by d×d second moments, as in the released code, decreases "
            "steadily."
        ),
        published="decreases",
        measure=ours.steadiness(1.0, "representation, d×d"),
        rule=AtMost(-0.9),
        note=_FALLS,
    ),
)
