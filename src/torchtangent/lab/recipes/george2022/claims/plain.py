"""What the three examples should show with a plain linear network (figure C.9)."""

from __future__ import annotations

from torchtangent.lab.claims import Claim
from torchtangent.lab.recipes.george2022.measures import examples as ours
from torchtangent.lab.rules import AtLeast, AtMost, Each

_ABOVE, _BELOW = Each({"− 2 s.e.": AtLeast(0.0)}), Each({"+ 2 s.e.": AtMost(0.0)})
_ORDER = (
    "Rank correlation of a mode's index with the step at which half of it is learned, over seeds: ±1 would be the "
    "published order, less is a tendency."
)

CLAIMS = (
    Claim(
        id="TG-FigC.9",
        name="example 1, α = 10",
        statement="A plain network in the linear regime learns low indices first.",
        published="1, 2, 3, 4, 5",
        measure=ours.rank_correlation("linearized"),
        rule=_ABOVE,
        note=_ORDER,
    ),
    Claim(
        id="TG-FigC.9",
        name="example 1, α = 0.1",
        statement="In the non-linear regime it learns high indices first.",
        published="5, 4, 3, 2, 1",
        measure=ours.rank_correlation("network"),
        rule=_BELOW,
        note=_ORDER,
    ),
    Claim(
        id="TG-FigC.9",
        name="example 2, clean first",
        statement="At equal error on clean samples, that on noisy ones is larger in the non-linear regime.",
        published="larger",
        measure=ours.difference("plain-2/network_errors", "plain-2/linearized_errors", ours.second_when_first),
        rule=_ABOVE,
        note="Difference of noisy samples' error over its start, when that of clean samples is halved; over seeds.",
    ),
    Claim(
        id="TG-FigC.9",
        name="example 2, noisy rises",
        statement="In the non-linear regime the error on noisy samples rises at first.",
        published="rises",
        measure=ours.mean("plain-2/network_errors", ours.rise),
        rule=Each({"− 2 s.e.": AtLeast(1.01)}),
        note="Highest error over that at the start, over seeds; 1 if it only falls, and 1 % is our allowance.",
    ),
    Claim(
        id="TG-FigC.9",
        name="example 3, majority first",
        statement="In the non-linear regime samples that agree with the spurious feature are fitted first.",
        published="first",
        measure=ours.mean("plain-3/network_errors", ours.gap),
        rule=_ABOVE,
        note="Error of the other samples less that of these, when that of all is halved; over seeds.",
    ),
    Claim(
        id="TG-FigC.9",
        name="example 3, gap",
        statement="At equal progress the gap between the groups is larger than in the linear regime.",
        published="larger",
        measure=ours.difference("plain-3/network_errors", "plain-3/linearized_errors", ours.gap),
        rule=_ABOVE,
        note="Difference of the gaps, when the error of all is halved; over seeds.",
    ),
)
