"""What label noise should show (figures 5.2, C.1, C.2, C.3 and C.6)."""

from __future__ import annotations

from collections.abc import Sequence

from torchtangent.lab.claims import Claim
from torchtangent.lab.recipes.george2022.measures import noise as ours
from torchtangent.lab.recipes.george2022.measures.seen import advantage, gap
from torchtangent.lab.rules import AtLeast, AtMost, Between, Each, Rule

EVERY_SEED: Rule = Each({"part of seeds": AtLeast(1.0)})
"""A difference has its sign on every seed."""

NO_START = "without step 0 (left out after verdicts on digits, see the entry)."
_CLEAN = "At equal loss of clean training samples, mean over the range that both runs pass. "
_RATES = "The smallest published rate was not run."
_NEAR = 0.05


def conclusions(id: str, parts: Sequence[str], note: str = "") -> tuple[Claim, ...]:
    """The three conclusions of figure 5.2, bottom left."""
    return (
        Claim(
            id=id,
            name="later",
            statement="With α = 1 noisy samples begin to be memorized later: at a lower loss of clean ones.",
            published="1.25 against 1.5",
            measure=ours.later(parts),
            rule=EVERY_SEED,
            note=(
                "The clean loss where the noisy loss, in means over five looks, is highest, NaN if that is at the end: "
                "α = 100 minus α = 1. Looks between levels of the loss were added after a NaN on digits. " + note
            ),
        ),
        Claim(
            id=id,
            name="noisy loss",
            statement="At equal loss of clean samples the loss of noisy ones is higher with α = 1.",
            published="higher",
            measure=gap(parts, ours.noisy("losses")),
            rule=EVERY_SEED,
            note=_CLEAN + note,
        ),
        Claim(
            id=id,
            name="test loss",
            statement="The best test loss along training is lower with α = 1.",
            published="lower",
            measure=advantage(parts, "losses"),
            rule=EVERY_SEED,
            note="α = 100 minus α = 1. " + note,
        ),
    )


CLAIMS = (
    Claim(
        id="TG-Fig5.2-bottomleft",
        name="first phase",
        statement="At first the loss of noisy samples rises while that of clean ones falls.",
        published="rises",
        measure=ours.rise,
        rule=AtLeast(_NEAR),
        note=(
            "How far it rises above ln 10 while the clean loss is below, the least over seeds; 0.05 is our threshold."
        ),
    ),
    *conclusions("TG-Fig5.2-bottomleft", ours.NOISE),
    Claim(
        id="TG-Fig5.2-bottomleft",
        name="values",
        statement="Memorization begins at clean losses of 1.25 (α = 1) and 1.5 (α = 100).",
        published="1.25, 1.5",
        measure=ours.onset_values,
        rule=Each({"α = 1": Between(1.0, 1.5), "α = 100": Between(1.25, 1.75)}),
        scales=("paper",),
        note=(
            "Read off a single run there; within 0.25 is our tolerance. The two ranges overlap: “later” alone tests "
            "the order. NaN: memorization did not begin in a run."
        ),
    ),
    *(
        Claim(
            id="TG-FigC.1",
            name=f"{group} samples by {word}",
            statement=f"At equal {word} of clean samples the accuracy of {group} samples does not depend on the rate.",
            published="coincide",
            measure=ours.rates_apart(group, axis),  # type: ignore[arg-type]
            rule=AtMost(_NEAR),
            note=(
                "Mean distance from the accuracy at the largest rate, over the range that both runs pass, "
                f"{NO_START} 0.05 is our threshold. {_RATES}"
            ),
        )
        for group in ("noisy", "test")
        for axis, word in (("losses", "loss"), ("accuracies", "accuracy"))
    ),
    Claim(
        id="TG-FigC.1",
        name="not the rate",
        statement="It is not the small rate that makes α = 100 linear: at small rates with α = 1 training is less so.",
        published="≈ 0.9 at η = 10⁻⁶, ≈ 1 with α = 100",
        measure=ours.less_linear("kernel"),
        rule=AtLeast(0.0),
        note=(
            "The kernel's alignment with the first one: α = 100 minus α = 1, at the last loss that both runs reach; "
            f"0 is our threshold. {_RATES}"
        ),
    ),
    *conclusions("TG-FigC.3", ("other-noise-a*",), "One seed."),
    Claim(
        id="TG-FigC.6",
        name="later",
        statement="Also by accuracy noisy samples are memorized later with α = 1.",
        published="later",
        measure=gap(ours.NOISE, ours.noisy("accuracies"), sign=-1, rising=True),
        rule=EVERY_SEED,
        note=(
            "Accuracy on noisy labels at equal accuracy on clean ones: α = 100 minus α = 1, mean over the range, "
            + NO_START
        ),
    ),
    Claim(
        id="TG-FigC.6",
        name="test accuracy",
        statement="The best test accuracy along training is higher with α = 1.",
        published="higher",
        measure=advantage(ours.NOISE, "accuracies"),
        rule=EVERY_SEED,
    ),
)
