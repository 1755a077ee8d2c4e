"""What samples of different difficulty should show (figures 5.2, C.2, C.4, C.5 and C.6)."""

from __future__ import annotations

from collections.abc import Sequence

from torchtangent.lab.claims import Claim
from torchtangent.lab.recipes.george2022.claims.noise import EVERY_SEED, NO_START
from torchtangent.lab.recipes.george2022.claims.noise import conclusions as on_noise
from torchtangent.lab.recipes.george2022.measures import cscores as ours
from torchtangent.lab.recipes.george2022.measures.noise import NOISE
from torchtangent.lab.recipes.george2022.measures.seen import gap
from torchtangent.lab.rules import AtLeast, AtMost, Each

_EQUAL = "At equal mean training loss over the bins, mean over the range that both runs pass: "


def conclusions(id: str, parts: Sequence[str], note: str = "") -> tuple[Claim, ...]:
    """The conclusions of figure 5.2, top left."""
    return (
        Claim(
            id=id,
            name="easiest tenth",
            statement="At equal training loss the samples with the highest C-scores have a lower loss with α = 1.",
            published="lower",
            measure=gap(parts, ours.decile(-1), sign=-1),
            rule=EVERY_SEED,
            note=_EQUAL + "α = 100 minus α = 1. " + note,
        ),
        Claim(
            id=id,
            name="most difficult tenth",
            statement="At equal training loss the samples with the lowest C-scores have a higher loss with α = 1.",
            published="higher",
            measure=gap(parts, ours.decile(0)),
            rule=EVERY_SEED,
            note=_EQUAL + "α = 1 minus α = 100. " + note,
        ),
    )


CLAIMS = (
    Claim(
        id="TG-Cscore",
        name="left out",
        statement="Every sample is judged by networks that were not trained on it.",
        published="subsets that exclude (x, y)",
        measure=lambda arrays: float(arrays["least_subsets"]),
        rule=AtLeast(1.0),
        scales=("smoke", "paper"),
        note="The fewest subsets without the sample, over samples and sizes.",
    ),
    Claim(
        id="TG-Cscore",
        name="reproducible",
        statement="Scores from two halves of the subsets rank the samples alike.",
        published="an estimate",
        measure=ours.halves_agree,
        rule=AtLeast(0.7),
        scales=("smoke", "paper"),
        note="Spearman's correlation; the paper gives none, the threshold is ours.",
    ),
    Claim(
        id="TG-Cscore",
        name="more samples",
        statement="Consistency grows with the size of the subsets.",
        published="averaged over sizes",
        measure=ours.growth,
        rule=AtLeast(0.0),
        note="The smallest gain of the mean over samples from one size to the next.",
    ),
    Claim(
        id="TG-Fig5.2-topleft",
        name="order",
        statement="Samples with high C-scores are learned faster in both regimes.",
        published="faster",
        measure=ours.order(ours.CSCORES),
        rule=AtMost(-0.9),
        note=(
            "Spearman's correlation of the bins' numbers and losses half-way down the mean loss, the worst of seeds; "
            "−0.9 is our threshold."
        ),
    ),
    *conclusions("TG-Fig5.2-topleft", ours.CSCORES),
    *on_noise("TG-FigC.2", NOISE[1:], "The other seed alone."),
    *conclusions("TG-FigC.2", ours.CSCORES[1:], "The other seed alone."),
    *conclusions("TG-FigC.4", ("other-cscores-a*",), "One seed."),
    Claim(
        id="TG-FigC.5",
        name="sign",
        statement="At equal training loss non-linear minus linear loss is negative for easy, positive for hard bins.",
        published="< 0 and > 0",
        measure=ours.signs,
        rule=Each({"easiest": AtMost(0.0), "most difficult": AtLeast(0.0)}),
        note=(
            "Of the easiest and the most difficult tenth, means over the range that all runs pass and over seeds. At "
            "first the order of the bins was part of this claim, which then did not hold on digits."
        ),
    ),
    Claim(
        id="TG-FigC.5",
        name="order",
        statement="At equal training loss non-linear minus linear loss falls from bin to bin, from hard to easy.",
        published="not said",
        measure=ours.tilt,
        rule=AtMost(-0.9),
        note="Spearman's correlation of the bins' means and their numbers; −0.9 is our threshold.",
    ),
    Claim(
        id="TG-FigC.6",
        name="spread",
        statement="Also by accuracy the bins are further apart with α = 1.",
        published="more spread",
        measure=gap(ours.CSCORES, ours.spread, rising=True),
        rule=EVERY_SEED,
        note=(
            "The easiest bin's accuracy minus that of the most difficult one, at equal mean accuracy: α = 1 minus "
            "α = 100, " + NO_START
        ),
    ),
)
