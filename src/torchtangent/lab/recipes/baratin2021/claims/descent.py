"""What lemma 6.2.1 and appendix B.1 say about gradient descent in function space."""

from __future__ import annotations

from torchtangent.lab.claims import Claim
from torchtangent.lab.measures import DIVIDED, ROUNDING, largest
from torchtangent.lab.recipes.baratin2021.measures import descent as ours
from torchtangent.lab.rules import AtLeast, AtMost, Each

CLAIMS = (
    Claim(
        id="TG-Lem6.2.1",
        name="eigenbasis",
        statement="A step of gradient descent moves the outputs by δfⱼ = −ηλⱼ uⱼᵀ∇L along the kernel's eigenvectors.",
        published="equal",
        measure=largest("basis_error"),
        rule=AtMost(ROUNDING),
        note="For the linear step ⟨δw, Φ⟩.",
    ),
    Claim(
        id="TG-Lem6.2.1",
        name="first order",
        statement="The step of the network itself is the same to first order in η.",
        published="exponent > 0",
        measure=ours.step_order,
        rule=AtLeast(0.8),
        note="Exponent of the relative error in η; 1 for a smooth network, with jumps where ReLUs switch.",
    ),
    Claim(
        id="TG-Lem6.2.1",
        name="spectrum",
        statement="The metric E[ΦΦᵀ] and the kernel share their non-zero spectrum (proposition B.1.1).",
        published="equal",
        measure=ours.spectra_differ,
        rule=AtMost(ROUNDING),
        note="Largest difference relative to the first eigenvalue, after multiplying the metric by n.",
    ),
    Claim(
        id="TG-Lem6.2.1",
        name="eigenfunctions",
        statement="An eigenvector v of the metric gives one of the kernel, ⟨v, Φ⟩/√λ.",
        published="equal",
        measure=largest("function_error"),
        rule=AtMost(DIVIDED),
        note="Relative residual of the leading ones.",
    ),
    Claim(
        id="TG-Lem6.2.1",
        name="singular values",
        statement="The singular values of the features are √λⱼ, and not λⱼ as printed in B.1.5.2.",
        published="√λⱼ, corrected",
        measure=ours.singular_errors,
        rule=Each({"√λ": AtMost(ROUNDING), "λ, as printed": AtLeast(1e-3)}),
        note="Relative differences of all of them together, the first of the squares. An erratum of the thesis.",
    ),
    Claim(
        id="TG-PropB.1.4/6",
        name="closed form",
        statement="f_t = f* + (I − ηK)ᵗ(f₀ − f*).",
        published="equal",
        measure=largest("closed_error"),
        rule=AtMost(DIVIDED),
        note="Relative difference from explicit gradient descent on the weights, over all times.",
    ),
    Claim(
        id="TG-PropB.1.4/6",
        name="library",
        statement="The library's closed form gives the same.",
        published="equal",
        measure=largest("library_error"),
        rule=AtMost(DIVIDED),
        note="Its loss is a mean without the ½, so its learning rate is ηn/2.",
    ),
    Claim(
        id="TG-PropB.1.4/6",
        name="modes",
        statement="Mode j converges as (1 − ηλⱼ)ᵗ.",
        published="equal",
        measure=ours.decay_error,
        rule=AtMost(DIVIDED),
        note="Largest difference over modes and times, relative to the start.",
    ),
    Claim(
        id="TG-PropB.1.4/6",
        name="time constant",
        statement="With η = 1/λ₁, mode j has the time constant −1/log(1 − λⱼ/λ₁).",
        published="−1/log(1 − λⱼ/λ₁), corrected",
        measure=ours.time_constant_error("tau_formula"),
        rule=AtMost(1e-6),
        note="Largest relative difference from the measured decay; all modes but the first, which converges at once.",
    ),
    Claim(
        id="TG-PropB.1.4/6",
        name="time constant as printed",
        statement="With η = 1/λ₁, mode j has the time constant −log(1 − λⱼ/λ₁), as printed, without the reciprocal.",
        published="−log(1 − λⱼ/λ₁)",
        measure=ours.time_constant_error("tau_printed"),
        rule=AtMost(1e-6),
        note="An erratum of the thesis: this line is expected not to hold, unlike those that call a formula wrong.",
    ),
)
