"""What section 2.2 and appendix B.2 say about linear models."""

from __future__ import annotations

from torchtangent.lab.claims import Claim
from torchtangent.lab.measures import DIVIDED, largest
from torchtangent.lab.recipes.george2023 import measures as ours
from torchtangent.lab.rules import AtLeast, AtMost, Between, Each

CLAIMS = (
    Claim(
        id="TG-Ridge",
        name="minimizer",
        statement="w* = (ΦᵀΦ + λnI)⁻¹Φᵀy minimizes 1/n Σ(f − y)² + λ‖w‖²: the gradient is zero there.",
        published=0.0,
        measure=largest("gradient"),
        rule=AtMost(DIVIDED),
        note="Relative to the gradient at w = 0, largest over λ.",
    ),
    Claim(
        id="TG-Ridge",
        name="dual",
        statement="c = (K + λnI)⁻¹y gives the same predictions.",
        published="equal",
        measure=largest("dual_error"),
        rule=AtMost(DIVIDED),
        note="Largest relative difference on test samples over λ; K is computed without forming Φ.",
    ),
    Claim(
        id="TG-Ridge",
        name="smoothness",
        statement="|f(x) − f(x′)| ≤ ‖w‖ ‖φ(x) − φ(x′)‖ for all pairs.",
        published="at most 1",
        measure=ours.largest_ratio("moved", "allowed"),
        rule=AtMost(1.0),
        note="Largest ratio of the two sides over pairs of test samples and λ.",
    ),
    Claim(
        id="TG-MinNorm",
        name="interpolates",
        statement="w* = Σ (uⱼᵀy/√λⱼ) vⱼ fits the labels: Φw* = y.",
        published="equal",
        measure=largest("interpolation_error"),
        rule=AtMost(DIVIDED),
    ),
    Claim(
        id="TG-MinNorm",
        name="dual",
        statement="w* is Φᵀ K⁻¹ y, kernel regression without a ridge.",
        published="equal",
        measure=largest("dual_error"),
        rule=AtMost(DIVIDED),
    ),
    Claim(
        id="TG-MinNorm",
        name="least norm",
        statement="No other interpolator is shorter.",
        published="at least 1",
        measure=ours.other_interpolators,
        rule=Each({"norm": AtLeast(1.0), "misfit": AtMost(DIVIDED)}),
        note="Smallest norm, relative to ‖w*‖, of interpolators with random parts that Φ does not see.",
    ),
    Claim(
        id="TG-MinNorm",
        name="covariance",
        statement="Under label noise σ², cov[w*] = Σ (σ²/λⱼ) vⱼvⱼᵀ is σ²Φ⁺Φ⁺ᵀ.",
        published="equal",
        measure=largest("covariance_error"),
        rule=AtMost(DIVIDED),
    ),
    Claim(
        id="TG-MinNorm",
        name="monte carlo",
        statement="The covariance of the regressions on noisy labels tends to it as 1/√draws.",
        published="exponent −½",
        measure=ours.noise_exponent,
        rule=Between(-0.6, -0.4),
        note="Error of the covariance, each direction divided by the deviation that the formula gives it.",
    ),
)
