"""Lemma 6.2.1 and appendix B.1: gradient descent in function space."""

from __future__ import annotations

from torchtangent.lab.recipes.baratin2021.figures import descent as draw
from torchtangent.lab.study import Entry, Panel

ENTRIES = (
    Entry(
        id="TG-Lem6.2.1",
        title="A step of gradient descent in the eigenbasis of the kernel",
        paper=(
            "A step moves the outputs by δf = Σ δfⱼ uⱼ with δfⱼ = −ηλⱼ uⱼᵀ∇L: mostly along the leading eigenvectors of "
            "the tangent kernel. The metric E[ΦΦᵀ] on parameters has the same non-zero spectrum (propositions B.1.1 "
            "and B.1.3)."
        ),
        setup=(
            "The 1,001-parameter network at initialization on {one-step[samples]} samples of {one-step[data]} with "
            "their ten outputs, cross-entropy, float64; the metric is the Gaussian Fisher matrix."
        ),
        parts=("one-step",),
        panels=(
            Panel(
                draw.one_step,
                "What pulls at each mode, that times its eigenvalue, and how far a step of the network moves it.",
            ),
            Panel(draw.shared_spectrum, "Eigenvalues of the metric and of the kernel, by index."),
        ),
        caption=(
            "Left: what pulls at each mode, |uⱼᵀ∇L|, and how far a small step of the network moves it, beside "
            "λⱼ|uⱼᵀ∇L|. Right: the spectrum of the metric (line) and of the kernel (dots)."
        ),
    ),
    Entry(
        id="TG-PropB.1.4/6",
        title="Linear regression by gradient descent, in closed form",
        paper=(
            "f_t = f* + (I − ηK)ᵗ(f₀ − f*), so mode j converges as (1 − ηλⱼ)ᵗ; with η = 1/λ₁ its time constant is "
            "printed as −log(1 − λⱼ/λ₁), without the reciprocal."
        ),
        setup=(
            "The tangent features of the network with one output on {regression[samples]} samples of "
            "{regression[data]} (labels ±1), from its outputs at initialization; {regression[steps]} explicit steps on "
            "½Σ(f − y)²."
        ),
        parts=("regression",),
        panels=(
            Panel(draw.modes, "Some modes along training, by explicit steps and in closed form."),
            Panel(
                draw.time_constants,
                "Time constants against eigenvalues: measured, by the corrected formula and by the printed one.",
            ),
        ),
        caption=(
            "Left: some modes of f − f*, by explicit steps (marks) and in closed form (lines). Right: measured time "
            "constants beside the formula with the reciprocal and the printed one."
        ),
    ),
)
