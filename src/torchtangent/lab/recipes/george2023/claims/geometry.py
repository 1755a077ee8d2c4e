"""What chapter 2 says about distances between functions."""

from __future__ import annotations

import numpy as np

from torchtangent.lab.claims import Claim
from torchtangent.lab.recipes.george2023 import measures as ours
from torchtangent.lab.rules import AtLeast, AtMost, Each, Near

CLAIMS = (
    Claim(
        id="TG-Fig2.1",
        name="distance",
        statement="Both pairs are at distance 1 in (μ, σ²).",
        published=1.0,
        measure=ours.pair("distance"),
        rule=Near(1.0, 1e-12),
    ),
    Claim(
        id="TG-Fig2.1",
        name="kl",
        statement="KL(A‖B) = ½(ln 2 − ½) and KL(C‖D) = 1/(2(1 − √¾)), by integration.",
        published="0.0966 and 3.73 (derived)",
        measure=ours.pair("kl_integrated"),
        rule=Each({"A, B": Near(0.5 * (np.log(2) - 0.5), 1e-6), "C, D": Near(1 / (2 - 3**0.5), 1e-6)}),
    ),
    Claim(
        id="TG-Fig2.1",
        name="overlap",
        statement="A and B overlap heavily, C and D hardly (area under both densities).",
        published="heavily; hardly",
        measure=ours.pair("overlap"),
        rule=Each({"A, B": AtLeast(0.75), "C, D": AtMost(0.25)}),
    ),
    Claim(
        id="TG-Eq2.4",
        name="kl",
        statement="KL(f at w+δw ‖ f at w) = ½ δwᵀFδw to second order: the ratio of KL to δwᵀFδw tends to ½.",
        published=0.5,
        measure=ours.smallest_step("kl", "quadratic_fisher"),
        rule=Near(0.5, 0.01),
    ),
    Claim(
        id="TG-Eq2.4",
        name="kl as printed",
        statement="As printed in eq. 3.2.4, without the ½: the ratio tends to 1.",
        published=1.0,
        measure=ours.smallest_step("kl", "quadratic_fisher"),
        rule=Near(1.0, 0.01),
        note="An erratum of the thesis: this line is expected not to hold.",
    ),
    Claim(
        id="TG-Eq2.4",
        name="remainder",
        statement="The remainder is o(‖δw‖²): relative to the quadratic form it vanishes with the step.",
        published="exponent > 0",
        measure=ours.remainder_order,
        rule=AtLeast(0.8),
        note="Exponent fitted for steps between 0.001 and 0.05; 1 for a smooth function.",
    ),
    Claim(
        id="TG-Eq2.4",
        name="l2",
        statement="‖δf‖² = δwᵀGδw to second order: their ratio tends to 1.",
        published=1.0,
        measure=ours.smallest_step("l2", "quadratic_l2"),
        rule=Near(1.0, 0.01),
    ),
    Claim(
        id="TG-Eq2.4",
        name="rademacher",
        statement=("With probability 1 − δ, δ = 0.05, the generalization gap is at most 2R̂ plus the last term."),
        published="violated with probability ≤ 0.05",
        measure=ours.bound_violations,
        rule=AtMost(0.05),
    ),
)
