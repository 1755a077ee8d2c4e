"""What the experiments on directions, section 3.2, should show."""

from __future__ import annotations

from torchtangent.lab.claims import Claim
from torchtangent.lab.measures import ROUNDING
from torchtangent.lab.recipes.ortiz2021.measures import directions as ours
from torchtangent.lab.recipes.ortiz2021.predictors import MARGINS
from torchtangent.lab.rules import AtLeast, AtMost, Between

CLAIMS = (
    Claim(
        id="OJ-Data-D(u)",
        name="margin",
        statement="Along u every sample is at ε (text) or ε/2 (code) on the side of its label, with ε = 1.",
        published="ε; ε/2",
        measure=ours.by_margin(ours.margin_error),
        rule=AtMost(ROUNDING),
        note="Largest relative difference to the margin.",
    ),
    Claim(
        id="OJ-Data-D(u)",
        name="noise along u",
        statement="The noise has no part along u.",
        published=0.0,
        measure=ours.by_margin(lambda arrays, i: abs(float(arrays["eigenvalues"][i, -1]))),
        rule=AtMost(ROUNDING),
        note="Smallest eigenvalue of the covariance within classes.",
    ),
    Claim(
        id="OJ-Data-D(u)",
        name="noise across",
        statement="Orthogonal to u the covariance is σ²I.",
        published="equal",
        measure=ours.by_margin(ours.outside_edges),
        rule=AtMost(0.1),
        note="How far eigenvalues lie beyond Marchenko and Pastur's edges for so many samples; 10 % is our allowance.",
    ),
    Claim(
        id="OJ-Data-D(u)",
        name="only u",
        statement="Orthogonal to u the classes do not differ.",
        published=1.0,
        measure=ours.by_margin(lambda arrays, i: float(arrays["apart_elsewhere"][i])),
        rule=Between(0.5, 1.5),
        note="Squared distance of the classes' means there, over that of two samples of one distribution.",
    ),
    Claim(
        id="OJ-NAD",
        name="anisotropy",
        statement="α(g_v) falls steeply: the first direction is aligned far better than a middle one.",
        published="falls",
        measure=ours.anisotropy,
        rule=AtLeast(10.0),
        note="First over median s² at the origin; the order itself is by construction. The threshold is ours.",
    ),
    Claim(
        id="OJ-NAD",
        name="same directions",
        statement="Directions at the origin and of the average do not differ significantly: they span the same space.",
        published="no significant difference",
        measure=ours.same_subspace,
        rule=AtLeast(0.8),
        note="Mean squared cosine of the leading subspaces at the origin and averaged. The threshold is ours.",
    ),
    Claim(
        id="OJ-NAD",
        name="same directions, as far as can be seen",
        statement="They differ no more than two averages over other inputs do.",
        published="no significant difference",
        measure=ours.same_subspace_as_expected,
        rule=AtLeast(0.8),
        note="The same, over that of two averages with each other. Added after the first had been seen.",
    ),
    Claim(
        id="OJ-NAD",
        name="same order",
        statement="The directions at the origin have averaged alignments in the same order.",
        published="no significant difference",
        measure=ours.same_order(1.0),
        rule=AtLeast(0.9),
        note="Spearman's correlation of s² and averaged α over all directions. The threshold is ours.",
    ),
    Claim(
        id="OJ-NAD",
        name="same order, first half",
        statement="The first half of them has averaged alignments in the same order.",
        published="no significant difference",
        measure=ours.same_order(0.5),
        rule=AtLeast(0.9),
        note="Added after the first had been seen: of the last directions an average over few inputs is mostly noise.",
    ),
    Claim(
        id="OJ-NAD",
        name="same size",
        statement="The alignment of the first direction is the same at the origin and averaged.",
        published="no significant difference",
        measure=ours.same_size,
        rule=Between(0.5, 2.0),
        note="Averaged over at the origin. That sizes are meant, too, and the factor of two, are our reading.",
    ),
    *(
        Claim(
            id="OJ-Fig10",
            name=f"few frequencies, {name}",
            statement=f"{name}'s first directions are concentrated in few frequencies.",
            published="visibly structured",
            measure=ours.concentration(i, ours.by_frequency),
            rule=AtLeast(3.0),
            scales=("smoke", "paper"),
            note=(
                "Part of the energy in the eight strongest of all Fourier entries, median of the first directions, "
                "over that of random images. The paper shows pictures; the number and the threshold are ours."
            ),
        )
        for i, name in enumerate(("LeNet", "ResNet18"))
    ),
    Claim(
        id="OJ-Fig10",
        name="few pixels, ResNet18",
        statement="ResNet18's first directions are concentrated in few pixels or in few frequencies.",
        published="visibly structured",
        measure=ours.concentration(1, ours.by_frequency, ours.by_pixel),
        rule=AtLeast(3.0),
        scales=("smoke", "paper"),
        note="The same for pixels. Added after the pictures were seen.",
    ),
    Claim(
        id="OJ-Fig4",
        name="early directions",
        statement="Networks and linearizations learn early directions better than late ones.",
        published="better",
        measure=ours.early_over_late,
        rule=AtLeast(0.0),
        note="Mean accuracy on the first third of the directions minus that on the last.",
    ),
    Claim(
        id="OJ-Fig4",
        name="non-linear advantage",
        statement="On these tasks the network is better than its linearization.",
        published="> 0, strong",
        measure=ours.nonlinear_advantage,
        rule=AtLeast(0.0),
        note="Mean over directions.",
    ),
    *(
        Claim(
            id="OJ-NADdef",
            name=f"{model}, {margin}",
            statement=f"With margin {margin}, the {words} learns 𝒟(v_j) the better the larger α(g_v).",
            published="ordered by sample complexity",
            measure=ours.order_by_alignment(model, margin),
            rule=AtLeast(0.5),
            note="Spearman's correlation of α and test accuracy over directions, for each m. The threshold is ours.",
        )
        for margin in MARGINS
        for model, words in {"linearized": "linearized network", "network": "network"}.items()
    ),
)
