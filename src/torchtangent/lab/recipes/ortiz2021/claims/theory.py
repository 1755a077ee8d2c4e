"""What the identities of section 2 should show."""

from __future__ import annotations

from torchtangent.lab.claims import Claim
from torchtangent.lab.measures import DIVIDED, ROUNDING, largest
from torchtangent.lab.recipes.ortiz2021.measures import theory as ours
from torchtangent.lab.rules import AtLeast, AtMost, Between, Each, Near

CLAIMS = (
    Claim(
        id="OJ-Eq1",
        name="order",
        statement="The linearized network differs from the network by O(‖θ − θ₀‖²).",
        published=2.0,
        measure=ours.order,
        rule=Between(1.95, 2.05),
        note="Exponent fitted over steps of up to a tenth of ‖θ₀‖, median over directions.",
    ),
    Claim(
        id="OJ-Eq1",
        name="exact at θ₀",
        statement="At θ₀ both are the same function.",
        published="equal",
        measure=ours.by_network("error_at_start"),
        rule=AtMost(ROUNDING),
    ),
    Claim(
        id="OJ-Eq1",
        name="gradient",
        statement="The gradient of the linearized network at θ₀ is that of the network.",
        published="equal",
        measure=ours.by_network("gradient_error"),
        rule=AtMost(ROUNDING),
    ),
    Claim(
        id="OJ-Eq1",
        name="constant gradient",
        statement="The gradient of the linearized network does not depend on θ.",
        published="equal",
        measure=ours.by_network("gradient_moved"),
        rule=AtMost(ROUNDING),
        note="Relative change from θ₀ to the longest step.",
    ),
    Claim(
        id="OJ-Eq3",
        name="Mercer",
        statement="‖f‖²_Θ = Σ λ_j⁻¹ (E[φ_j f])² is fᵀK⁻¹f.",
        published="equal",
        measure=ours.farthest("solved", "mercer"),
        rule=AtMost(DIVIDED),
        note="Largest relative difference over targets.",
    ),
    Claim(
        id="OJ-Eq3",
        name="nearest θ",
        statement="The nearest θ with a given linearized function is at ‖θ − θ₀‖ = ‖f‖_Θ.",
        published="equal",
        measure=ours.nearest_parameters,
        rule=AtMost(DIVIDED),
        note="Largest relative difference over targets; all others with this function are farther.",
    ),
    Claim(
        id="OJ-Eq3",
        name="same function",
        statement="The linearized network at each of these θ is the target.",
        published="equal",
        measure=largest("misses"),
        rule=AtMost(DIVIDED),
        note="Largest relative error on the samples, detours included.",
    ),
    Claim(
        id="OJ-Eq3",
        name="detours",
        statement="No other θ with the same function is nearer.",
        published="farther",
        measure=ours.nearest_detour,
        rule=AtLeast(1.0),
        note="Smallest ‖θ − θ₀‖ / ‖f‖_Θ over targets and detours.",
    ),
    Claim(
        id="OJ-Lem1",
        name="three ways",
        statement="α from the kernel, from its spectrum and from one backward pass agree.",
        published="equal",
        measure=ours.three_ways,
        rule=AtMost(ROUNDING),
        note="Largest relative difference over targets.",
    ),
    Claim(
        id="OJ-Lem1",
        name="eigenvalues",
        statement="α(φ_j) = λ_j.",
        published="equal",
        measure=ours.eigenvalue_error,
        rule=AtMost(DIVIDED),
        note="λ_j are eigenvalues of K/N and φ_j have unit mean square; with sums, as in the authors' code, both of K.",
    ),
    Claim(
        id="OJ-Lem1",
        name="bound",
        statement="‖f‖²_Θ ≥ ‖f‖₂⁴ / α(f).",
        published="at least 1",
        measure=lambda arrays: float(ours.slack(arrays).min()),
        rule=AtLeast(1 - DIVIDED),
        note="Smallest ratio of the two over targets.",
    ),
    Claim(
        id="OJ-Lem1",
        name="equality",
        statement="For eigenfunctions the bound is an equality, for other targets it is not.",
        published="equal; above",
        measure=ours.slack_by_kind,
        rule=Each({"eigenfunctions, largest": Near(1.0, DIVIDED), "others, smallest": AtLeast(1 + 1e-3)}),
    ),
    Claim(
        id="OJ-Thm1",
        name="Stein",
        statement="For Gaussian inputs α(g_u) = ‖E[∂²f/∂θ∂x] u‖².",
        published=1.0,
        measure=ours.stein_ratio("hessian"),
        rule=Near(1.0, 0.1),
        note=(
            "Left over right side, both by Monte Carlo; 10 % is our allowance for its error. Leading directions only: "
            "for later ones, whose α is far smaller, so many inputs are too few."
        ),
    ),
    Claim(
        id="OJ-Thm1",
        name="singular values",
        statement="Along right singular vectors of E[∂²f/∂θ∂x], α(g_v) = s².",
        published=1.0,
        measure=ours.stein_ratio("singular"),
        rule=Near(1.0, 0.25),
        note="s² of an average over few inputs is somewhat too large, for small s the more so: 25 % is our allowance.",
    ),
)
