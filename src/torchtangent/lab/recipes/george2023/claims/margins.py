"""What appendix B.2 says about margins and Rademacher complexities."""

from __future__ import annotations

from torchtangent.lab.claims import Claim
from torchtangent.lab.measures import largest
from torchtangent.lab.recipes.george2023 import measures as ours
from torchtangent.lab.rules import AtMost

CLAIMS = (
    Claim(
        id="TG-Margin",
        name="ramp",
        statement="The ramp loss of a margin μ lies between 1[μ ≤ 0] and 1[μ < γ], so L₀ ≤ Lᵧ.",
        published="0 violations",
        measure=largest("ramp_outside"),
        rule=AtMost(0.0),
    ),
    Claim(
        id="TG-Margin",
        name="B.2.7",
        statement="Two classes: the complexity of the losses is at most R̂(F)/γ.",
        published="at most 1",
        measure=ours.largest_ratio("binary", "binary_bound"),
        rule=AtMost(1.0),
        note="Largest ratio of the two sides over samples and γ; exact, over all signs.",
    ),
    Claim(
        id="TG-Margin",
        name="lemma B.2.3",
        statement="c classes: the complexity of the losses is at most (c/γ) Σ R̂(F_y) over the classes y.",
        published="at most 1",
        measure=ours.largest_ratio("multi", "multi_bound"),
        rule=AtMost(1.0),
        note="Largest ratio of the two sides over samples and γ; exact, over all signs.",
    ),
    Claim(
        id="TG-Margin",
        name="B.2.5",
        statement="With probability 1 − δ, δ = 0.05: L₀ ≤ L̂ᵧ + 2R̂ + 3√(log(2/δ)/2n) for all functions of the class.",
        published="violated with probability ≤ 0.05",
        measure=ours.margin_violations,
        rule=AtMost(0.05),
        note="R̂ is the empirical complexity of the losses.",
    ),
    Claim(
        id="TG-Margin",
        name="prop. 2.5.1",
        statement="With probability 1 − δ, δ = 0.05: Lᵧ ≤ L̂ᵧ + 2R + √(log(1/δ)/2n) for all functions of the class.",
        published="violated with probability ≤ 0.05",
        measure=ours.expected_violations,
        rule=AtMost(0.05),
        note="R is the expected complexity of the losses, here its mean over the samples drawn.",
    ),
)
