"""What the measures of linearity should show while networks are trained on images (figure 5.2, right)."""

from __future__ import annotations

from torchtangent.lab.claims import Claim
from torchtangent.lab.recipes.george2022.measures import linearity_images as ours
from torchtangent.lab.rules import AtLeast, AtMost, Each, Increasing

_THREE = ("signs", "kernel", "representation")

CLAIMS = (
    Claim(
        id="TG-Fig5.2-right",
        name="α = 100",
        statement="With α = 100 all three measures stay near 1 throughout, in both experiments.",
        published="≈ 1",
        measure=ours.lowest(*_THREE),
        rule=AtLeast(0.9),
        note="The smallest value in any run: where α = 100 ends at a higher loss than α = 1, “throughout” is tested "
        "down to there. 0.9 is our threshold.",
    ),
    *(
        Claim(
            id="TG-Fig5.2-right",
            name=name,
            statement=f"With α = 1 the {words} decreases steadily.",
            published="decreases",
            measure=ours.steadiness(name),
            rule=AtMost(-0.9),
            note=(
                "Spearman's correlation with the progress of training, −1 if it only falls, mean over seeds; ranks "
                "also count small moves on a plateau. −0.9 is our threshold."
            ),
        )
        for name, words in {
            "signs": "similarity of signs",
            "kernel": "alignment of the tangent kernel",
            "representation": "alignment of the representation",
            "representation, d×d": "alignment of the representation by d×d second moments, as in the released code,",
        }.items()
    ),
    Claim(
        id="TG-Fig5.2-right",
        name="linearized",
        statement="Training with α = 100 is that of the linearized network.",
        published="assumed",
        measure=ours.from_linearized,
        rule=Each({"α = 100": AtMost(0.1)}),
        note=(
            "Distance of the outputs on test samples after the last of the steps, relative to how far the linearized "
            "network's moved on the same batches; one seed, few steps, float32. The paper does not compare; 0.1 is our "
            "threshold."
        ),
    ),
    Claim(
        id="TG-Fig5.2-right",
        name="order in α",
        statement="The larger α, the closer is training to that of the linearized network.",
        published="→ 0",
        measure=ours.from_linearized,
        rule=Increasing("α = 100", "α = 10", "α = 1"),
    ),
)
