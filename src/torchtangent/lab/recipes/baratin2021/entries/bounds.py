"""Section 6.4 and appendix B.2: complexities and rescalings."""

from __future__ import annotations

from torchtangent.lab.recipes.baratin2021.figures import bounds as draw
from torchtangent.lab.study import Entry, Panel

ENTRIES = (
    Entry(
        id="TG-Thm6.4.1",
        title="Complexity bounds that follow the features",
        paper=(
            "Functions Σ ⟨δwₜ, Φₜ⟩ with steps of length ‖δwₜ‖ ≤ mₜ in the metrics Aₜ have a Rademacher complexity of "
            "at most Σ (mₜ/n) ‖Aₜ⁻¹Φₜᵀ‖ (theorem 6.4.1; one ball: proposition B.2.1; margin losses of c classes: "
            "theorem B.2.4)."
        ),
        setup=(
            "{random-balls[trials]} classes with random features, metrics and radii on {random-balls[samples]} "
            "samples, all signs counted; {random-balls[classes]} classes for theorem B.2.4. And "
            "{along-training[steps]} steps of the network with one output on {along-training[samples]} samples of "
            "{along-training[data]}, {along-training[signs]} random signs."
        ),
        parts=("random-balls", "along-training"),
        panels=(
            Panel(draw.tightness, "Ratios of complexity and bound, sorted; one is dotted."),
            Panel(draw.along_training, "Complexity and bound along training, in two metrics."),
        ),
        caption=(
            "Left: complexity over bound of random classes; none may exceed 1. Right: summed over the steps of a "
            "network, in the Euclidean metric and in the one that makes the bound of each step smallest."
        ),
        notes=(
            "The supremum over a ball is known: the complexity is M/n times the mean of √(σᵀ K_A σ) over the signs σ."
        ),
    ),
    Entry(
        id="TG-PropB.2.5",
        title="The rescaling of the features that makes a bound smallest",
        paper=(
            "Among scales ν along the singular directions of the features, ν ∝ λⱼ/|uⱼᵀy| makes the bound of the "
            "shortest interpolator smallest (proposition B.2.5), ν ∝ 1/|uⱼᵀ∇L| that of a step of gradient descent "
            "(proposition 6.4.2, used by SuperNat)."
        ),
        setup=(
            "The tangent features of the network with one output on {rescaling[samples]} samples of {rescaling[data]}; "
            "the bounds ‖Aᵀw‖ ‖A⁻¹Φᵀ‖ are minimized numerically from {rescaling[starts]} random starts."
        ),
        parts=("rescaling",),
        panels=(
            Panel(draw.scales("interpolator", "Shortest interpolator"), "Scales by formula and by minimization."),
            Panel(draw.scales("step", "Step of gradient descent"), "Scales by formula and by minimization."),
        ),
        caption="The optimal scales found numerically (dots) and by the formulas (lines), direction by direction.",
        notes=(
            "The scales are determined up to a common factor. The propositions are about metrics in the singular basis "
            "of the features; other metrics can make the bounds smaller still."
        ),
    ),
)
