"""What easy and difficult images should show, and the rules that decide."""

from __future__ import annotations

from torchtangent.lab.claims import Claim
from torchtangent.lab.recipes.baratin2021.claims.noise import CLEARLY
from torchtangent.lab.recipes.baratin2021.measures import mixtures as ours
from torchtangent.lab.recipes.baratin2021.mixtures import DEPTHS, KINDS
from torchtangent.lab.rules import AtLeast, AtMost, Each
from torchtangent.lab.study import Scale

_FULL: tuple[Scale, ...] = ("paper",)
_OVER = "Spearman's correlation with depth, over all depths and seeds; the threshold is ours."

CLAIMS = (
    *(
        claim
        for kind, part in KINDS.items()
        for claim in (
            Claim(
                id="TG-Fig6.4",
                name=f"higher, {kind}",
                statement=f"With {kind} as difficult ones, the kernel aligns more with the labels of easy images.",
                published="higher",
                measure=ours.higher(part),
                rule=AtLeast(1.0),
                note="The share of seeds; largest CKA along training.",
            ),
            Claim(
                id="TG-Fig6.4",
                name=f"earlier, {kind}",
                statement=f"With {kind} as difficult ones, the kernel aligns earlier with the labels of easy images.",
                published="faster",
                measure=ours.delays(part),
                rule=Each({"share of seeds": AtLeast(1.0)}),
                note="When CKA comes to where that of the easy images is half-way up, or the end if it never does; the "
                "delay is a ratio of steps.",
            ),
            Claim(
                id="TG-Fig6.4",
                name=f"ratio, {kind}",
                statement=(
                    f"With {kind} as difficult ones, the ratio of CKA on easy and on difficult images becomes much "
                    "larger than one."
                ),
                published="≫ 1",
                measure=ours.largest_ratio(part),
                rule=Each({"mean": AtLeast(2.0)}),
                scales=_FULL,
                note="Its largest along training; that two counts as much larger is ours.",
            ),
        )
    ),
    Claim(
        id="TG-Fig6.4",
        name="later",
        statement="Other characters are aligned with, too, but later.",
        published="later",
        measure=ours.rise_of_difficult(KINDS["other characters"]),
        rule=Each({"largest over start": AtLeast(1.5), "delay": AtLeast(1.0)}),
        scales=_FULL,
        note="Means over seeds; the delay is that of half of the rise, a ratio of steps. The thresholds are ours.",
    ),
    Claim(
        id="TG-FigB.7",
        name="starts later",
        statement="In deeper networks alignment starts later.",
        published="later",
        measure=ours.with_depth(DEPTHS, ours.onset),
        rule=AtLeast(CLEARLY),
        note=f"The step at which a tenth of the rise on easy images is made, interpolated between few points. {_OVER}",
    ),
    Claim(
        id="TG-FigB.7",
        name="rises faster",
        statement="In deeper networks alignment rises faster.",
        published="faster",
        measure=ours.with_depth(DEPTHS, ours.rise_time),
        rule=AtMost(-CLEARLY),
        note=f"From a tenth to nine tenths of the rise, as a ratio of steps: its duration, not its slope. {_OVER}",
    ),
    Claim(
        id="TG-FigB.7",
        name="rises higher",
        statement="In deeper networks alignment rises higher.",
        published="higher",
        measure=ours.with_depth(DEPTHS, ours.height),
        rule=AtLeast(CLEARLY),
        note=f"The largest on easy images. {_OVER}",
    ),
    Claim(
        id="TG-FigB.7",
        name="ratio peaks higher",
        statement="In deeper networks the ratio of easy and difficult peaks higher.",
        published="higher",
        measure=ours.with_depth(DEPTHS, ours.ratio_peak),
        rule=AtLeast(CLEARLY),
        note=_OVER,
    ),
    Claim(
        id="TG-FigB.7",
        name="ratio peaks shorter",
        statement="In deeper networks the ratio of easy and difficult peaks for fewer steps.",
        published="fewer",
        measure=ours.with_depth(DEPTHS, ours.ratio_time),
        rule=AtMost(-CLEARLY),
        note=f"Steps at which the ratio is at least half of its largest. {_OVER}",
    ),
)
