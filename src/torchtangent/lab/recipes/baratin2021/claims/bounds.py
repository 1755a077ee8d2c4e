"""What section 6.4 and appendix B.2 prove about complexities and rescalings."""

from __future__ import annotations

from torchtangent.lab.claims import Claim
from torchtangent.lab.measures import ROUNDING, largest
from torchtangent.lab.recipes.baratin2021.measures import bounds as ours
from torchtangent.lab.rules import AtMost

_EXACT = "Largest ratio of complexity and bound over random features and metrics; exact, over all signs."

CLAIMS = (
    Claim(
        id="TG-Thm6.4.1",
        name="ball",
        statement="One ball: the complexity is at most (M/n) √Tr K_A (proposition B.2.1).",
        published="at most 1",
        measure=largest("single"),
        rule=AtMost(1.0),
        note=_EXACT,
    ),
    Claim(
        id="TG-Thm6.4.1",
        name="sequence",
        statement="A sequence of features and metrics: it is at most Σ (mₜ/n) ‖Aₜ⁻¹Φₜᵀ‖ (theorem 6.4.1).",
        published="at most 1",
        measure=largest("sequence"),
        rule=AtMost(1.0),
        note=_EXACT,
    ),
    Claim(
        id="TG-Thm6.4.1",
        name="supremum",
        statement="No member of a class exceeds the supremum Σ (mₜ/n) ‖Aₜ⁻¹Φₜᵀσ‖ by which the complexity is computed.",
        published="at most 1",
        measure=largest("members"),
        rule=AtMost(1 + ROUNDING),
        note="Largest ratio over random members, one for each vector of signs.",
    ),
    Claim(
        id="TG-Thm6.4.1",
        name="classes",
        statement="c classes: (c/γ) Σ R̂(F_y) is at most c√c M/(γn) √Tr K_A, the bound of theorem B.2.4.",
        published="at most 1",
        measure=largest("multiclass"),
        rule=AtMost(1.0),
        note=_EXACT + " The left-hand side bounds the complexity of the margin losses (lemma B.2.3).",
    ),
    Claim(
        id="TG-Thm6.4.1",
        name="margin losses",
        statement="The complexity of the margin losses itself is below that bound.",
        published="at most 1",
        measure=largest("losses"),
        rule=AtMost(1.0),
        note="Of random members of the ball, over all signs.",
    ),
    Claim(
        id="TG-Thm6.4.1",
        name="along training",
        statement="The Monte-Carlo complexity of what a network's steps can reach never exceeds the bound.",
        published="at most 1",
        measure=ours.largest_ratio,
        rule=AtMost(1.0),
        note="Largest ratio along training, for both metrics.",
    ),
    Claim(
        id="TG-PropB.2.5",
        name="interpolator",
        statement="The bound of the shortest interpolator is smallest for the scales ν ∝ λⱼ/|uⱼᵀy|.",
        published="equal",
        measure=ours.scale_error("interpolator"),
        rule=AtMost(1e-3),
        note="Largest relative difference from scales found numerically, from random starts.",
    ),
    Claim(
        id="TG-PropB.2.5",
        name="SuperNat",
        statement="That of a step of gradient descent is smallest for ν ∝ 1/|uⱼᵀ∇L| (proposition 6.4.2).",
        published="equal",
        measure=ours.scale_error("step"),
        rule=AtMost(1e-3),
        note="Largest relative difference from scales found numerically, from random starts.",
    ),
    Claim(
        id="TG-PropB.2.5",
        name="minimum",
        statement="The minima are those of the formulas, Σ |uⱼᵀy| and Σ λⱼ|uⱼᵀ∇L|.",
        published="equal",
        measure=ours.minimum_error,
        rule=AtMost(ROUNDING),
        note="Largest relative difference.",
    ),
    Claim(
        id="TG-PropB.2.5",
        name="rescaled kernel",
        statement="With the second scales the eigenvalues λⱼ of the kernel become |uⱼᵀ∇L| λⱼ.",
        published="equal",
        measure=ours.rescaled_error,
        rule=AtMost(ROUNDING),
    ),
)
