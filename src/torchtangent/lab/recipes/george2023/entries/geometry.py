"""Chapter 2: distances between functions."""

from __future__ import annotations

from torchtangent.lab.recipes.george2023.figures import geometry as draw
from torchtangent.lab.study import Entry, Panel

ENTRIES = (
    Entry(
        id="TG-Fig2.1",
        title="The same distance between parameters, two different distances between functions",
        paper=(
            "Normal distributions A = N(0, 1) and B = N(0, 2) overlap heavily; C and D = N(∓½, 1 − √¾) "
            "hardly do. In (μ, σ²) both pairs are at distance 1."
        ),
        setup=(
            "Closed forms, checked by integrating the densities on a grid. The two KL values are derived,"
            " not printed in the thesis."
        ),
        parts=("gaussians",),
        panels=(
            Panel(draw.gaussian_pair(0), "Densities of A and B: two wide bells with the same centre."),
            Panel(draw.gaussian_pair(1), "Densities of C and D: two narrow bells with different centres."),
        ),
        caption=(
            "Densities of both pairs; bars mark the central 95 %. The distance between parameters is the "
            "same left and right."
        ),
    ),
    Entry(
        id="TG-Eq2.4",
        title="The metrics of function space, to second order",
        paper=(
            "For a small step δw, ‖δf‖² = δwᵀGδw with G = E[∇f∇fᵀ], and KL(f at w+δw ‖ f at w) = ½ "
            "δwᵀFδw. Eq. 3.2.4 prints the second without the ½. Generalization gaps are bounded by "
            "Rademacher complexities (eq. 2.5.4)."
        ),
        setup=(
            "The 1,001-parameter network at initialization on {second-order[samples]} samples of {second-"
            "order[data]}, {second-order[directions]} random directions, float64. Threshold classifiers "
            "on [0, 1], {rademacher[draws]} samples of size {rademacher[samples]}, for the bound."
        ),
        parts=("second-order", "rademacher"),
        panels=(
            Panel(
                draw.second_order_ratio,
                "Ratio of KL to the quadratic form goes to one half, of L2 to one, as steps shrink.",
            ),
            Panel(draw.rademacher_gap, "Histogram of generalization gaps beside the much larger bounds."),
        ),
        caption=(
            "Left: true distance over quadratic form against step length; lines are medians over "
            "directions, bands their range. KL goes to ½, not to 1. Right: the generalization gap of "
            "every sample beside the bound with the term of eq. 2.5.4 and of B.2.5."
        ),
        notes=(
            "The last terms of eqs. 2.5.4 and B.2.5 disagree (√(log(2/δ)/n) and 3√(log(2/δ)/2n)); both are checked."
        ),
    ),
)
