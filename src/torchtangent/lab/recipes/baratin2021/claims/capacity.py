"""What the complexity of training runs should show beside the generalization gap, and the rules that decide."""

from __future__ import annotations

from torchtangent.lab.claims import Claim
from torchtangent.lab.recipes.baratin2021.capacity import SWEEPS
from torchtangent.lab.recipes.baratin2021.measures import capacity as ours
from torchtangent.lab.rules import AtLeast, AtMost, Each
from torchtangent.lab.study import Scale

_FULL: tuple[Scale, ...] = ("paper",)
_RANKS = (
    "Spearman's correlation over the runs of a seed that came to the goal (at least three), mean over seeds. The "
    "threshold is ours."
)
_GAPS = f"{_RANKS} Ranks also count gaps that differ by less than the sampling error of the test images."

CLAIMS = (
    *(
        Claim(
            id="TG-Fig6.6",
            name=f"C, {part}",
            statement=f"C follows the generalization gap ({part}).",
            published="follows",
            measure=ours.follows(part),
            rule=Each({"mean": AtLeast(ours.FOLLOWS)}),
            note=_GAPS,
        )
        for part in SWEEPS
    ),
    Claim(
        id="TG-Fig6.6",
        name="width",
        statement="C does not grow with the width.",
        published="decreasing or flat",
        measure=ours.with_value("widths"),
        rule=Each({"mean": AtMost(0.0)}),
        note="Spearman's correlation of C with the width, over the runs of a seed that came to the goal; one learning "
        "rate for all widths.",
    ),
    Claim(
        id="TG-Fig6.6",
        name="random labels",
        statement="C grows with the share of random labels.",
        published="increasing",
        measure=ours.with_value("corruption"),
        rule=Each({"mean": AtLeast(ours.FOLLOWS)}),
        note=_RANKS,
    ),
    *(
        Claim(
            id="TG-Fig6.6",
            name=f"Neyshabur et al., {part}",
            statement=f"The measure of Neyshabur et al. follows the generalization gap ({part}).",
            published="follows",
            measure=ours.follows(part, ours.THEIRS),
            rule=Each({"mean": AtLeast(ours.FOLLOWS)}),
            note=_GAPS,
        )
        for part in ("widths", "corruption")
    ),
    Claim(
        id="TG-Fig6.6",
        name="only these",
        statement="No other of the compared measures follows the gap.",
        published=0.0,
        measure=ours.others_following("widths", "corruption"),
        rule=AtMost(0.0),
        scales=_FULL,
        note="How many do, with width and with random labels alike; it says little where C does not follow either. The "
        "paper's measures are not known to us; these are those of the protocol that it cites.",
    ),
)
