"""What section 5.2 says about the knob α."""

from __future__ import annotations

from torchtangent.lab.claims import Claim
from torchtangent.lab.measures import ROUNDING, largest
from torchtangent.lab.recipes.george2022.measures import lazy as ours
from torchtangent.lab.rules import AtMost, Between, Near

CLAIMS = (
    Claim(
        id="TG-5-lin",
        name="function step",
        statement="To first order, a step at the learning rate η/α² moves the outputs by the same for every α.",
        published="O(1)",
        measure=largest("linear_change"),
        rule=AtMost(ROUNDING),
        note="Largest relative difference from α = 1.",
    ),
    Claim(
        id="TG-5-lin",
        name="parameter step",
        statement="It moves the parameters by O(1/α).",
        published="exponent −1",
        measure=ours.parameter_exponent,
        rule=Near(-1.0, 1e-6),
    ),
    Claim(
        id="TG-5-lin",
        name="true step",
        statement="For large α the step is the one to first order.",
        published="→ 0",
        measure=lambda arrays: float(arrays["step_errors"][-1]),
        rule=AtMost(0.01),
        note="Relative difference of the outputs' step for the largest α; 0.01 is our threshold.",
    ),
    Claim(
        id="TG-5-lin",
        name="order in α",
        statement="The larger α, the closer training ends to the linearized network.",
        published="0 exceptions",
        measure=ours.rises,
        rule=AtMost(0.0),
    ),
    Claim(
        id="TG-5-lin",
        name="limit",
        statement="For the largest α training follows the linearized network.",
        published="→ 0",
        measure=ours.at_largest_alpha,
        rule=AtMost(0.1),
        note="Distance of the outputs on test samples at the end, relative to how far they moved; threshold ours.",
    ),
    Claim(
        id="TG-5-lin",
        name="rate",
        statement="Of a smooth network the distance falls as 1/α (Chizat et al.).",
        published="exponent −1",
        measure=ours.trajectory_exponent("tanh"),
        rule=Between(-1.2, -0.8),
        note=f"With tanh instead of ReLU; fitted from α = {ours.LARGE:g} on. Within 0.2 is our tolerance.",
    ),
    Claim(
        id="TG-5-lin",
        name="released code",
        statement="The slope of the loss at α(f − f₀), pulled back through f, with the learning rate η/α: the same.",
        published="equal",
        measure=largest("released_errors"),
        rule=AtMost(ROUNDING),
        note="Largest relative difference of outputs for the smallest and the largest α, after training with momentum.",
    ),
)
