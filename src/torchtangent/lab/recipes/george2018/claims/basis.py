"""What the algorithm, its eigenbasis and the initialization without normalization should show."""

from __future__ import annotations

from torchtangent.lab.claims import Claim
from torchtangent.lab.measures import DIVIDED, largest
from torchtangent.lab.recipes.george2018.measures import basis as ours
from torchtangent.lab.rules import AtLeast, AtMost, Each, Near

_STEPS = "Largest relative difference over steps, with a convolution and linear layers, in float64."

CLAIMS = (
    *(
        Claim(
            id="TG-Alg4.1",
            name=name,
            statement=statement,
            published="equal",
            measure=ours.step_errors(variant),
            rule=AtMost(DIVIDED),
            note=_STEPS,
        )
        for name, variant, statement in (
            ("EKFAC", "EKFAC, single", "A step of EKFAC is −η U (Uᵀ∇ / (s* + ε)), with s* = E[(Uᵀ∇_n)²] of the batch."),
            ("EKFAC-ra", "EKFAC-ra, single", "A step of EKFAC-ra is the same with s a running average of N (Uᵀ∇)²."),
            ("KFAC", "KFAC, factored", "A step of KFAC is −η B⁻¹ ∇ A⁻¹ with damped factors."),
        )
    ),
    Claim(
        id="TG-Alg4.1",
        name="one sample",
        statement="For one linear layer and one sample EKFAC is preconditioning with the full matrix, (∇∇ᵀ + ε)⁻¹∇.",
        published="equal",
        measure=largest("one_sample"),
        rule=AtMost(DIVIDED),
        note="Then G has rank one, and its eigenvector is a Kronecker product.",
    ),
    Claim(
        id="TG-A.4",
        name="steps",
        statement="EKFAC steps with ε′ = εI + S_A ⊗ √εI + √εI ⊗ S_B; KFAC with √ε added to both factors.",
        published="equal",
        measure=ours.step_errors("EKFAC, root", "EKFAC-ra, root", "KFAC, root"),
        rule=AtMost(DIVIDED),
        note=_STEPS,
    ),
    Claim(
        id="TG-A.4",
        name="same eigenvalues",
        statement="Damped so, EKFAC with KFAC's eigenvalues is KFAC: (S_A + √ε) ⊗ (S_B + √ε) = S_A ⊗ S_B + ε′.",
        published="equal",
        measure=largest("same_eigenvalues"),
        rule=AtMost(DIVIDED),
        note="Steps of the two optimizers; EKFAC-ra keeps the eigenvalues it starts with.",
    ),
    Claim(
        id="TG-Fig4.2-left",
        name="decorrelated",
        statement="In the KFE gradients are nearly uncorrelated.",
        published="off-diagonal correlations vanish",
        measure=ours.correlation_ratio,
        rule=AtMost(0.5),
        note="Mean |correlation| off the diagonal over that in the parameters' basis, the largest over seeds; the "
        "threshold is ours.",
    ),
    Claim(
        id="TG-Fig4.2-right",
        name="never above",
        statement="With s* and F of the same samples EKFAC's error is at most KFAC's, also in an old basis.",
        published="0 violations",
        measure=ours.error_violations,
        rule=AtMost(0.0),
    ),
    Claim(
        id="TG-Fig4.2-right",
        name="drift",
        statement="Until the basis is computed again, KFAC's error grows quickly, EKFAC's far less.",
        published="EKFAC ≪ KFAC",
        measure=ours.drift_ratio,
        rule=AtMost(0.5),
        note="Growth of the error over a period, EKFAC's over KFAC's, means over periods and seeds; the threshold is "
        "ours.",
    ),
    Claim(
        id="TG-A.3",
        name="variances",
        statement="Weights have the variance 2/n behind a ReLU, 1/n on shortcuts, 0.2/n at the end of a branch.",
        published="2, 1, 0.2",
        measure=ours.variances(),
        rule=Each({"behind ReLU": Near(2.0, 0.05), "shortcut": Near(1.0, 0.05), "last of a branch": Near(0.2, 0.05)}),
        scales=("smoke", "paper"),
        note="n times the variance, mean over layers and seeds.",
    ),
    Claim(
        id="TG-A.3",
        name="words",
        statement="The thesis' words: at the end of a branch the scale is divided by 10, so the variance is 0.02/n.",
        published="0.02",
        measure=ours.variances(("last of a branch",)),
        rule=Near(0.02, 0.05),
        note="Words and formula disagree; the formula divides the variance by 10, and is what is used.",
    ),
    Claim(
        id="TG-A.3",
        name="bounded",
        statement="So activations keep their size through all blocks.",
        published="of order one",
        measure=ours.growth("formula"),
        rule=AtMost(10.0),
        note="Mean square behind the last block over that behind the first; the bound is ours.",
    ),
    Claim(
        id="TG-A.3",
        name="needed",
        statement="Without the division they grow with every block.",
        published="grow",
        measure=ours.growth("no division"),
        rule=AtLeast(100.0),
        note="The same with the variance 2/n everywhere; the bound is ours.",
    ),
)
