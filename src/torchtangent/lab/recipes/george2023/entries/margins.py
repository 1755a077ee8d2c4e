"""Appendix B.2: margins and Rademacher complexities."""

from __future__ import annotations

from torchtangent.lab.recipes.george2023.figures import margins as draw
from torchtangent.lab.study import Entry, Panel

ENTRIES = (
    Entry(
        id="TG-Margin",
        title="Margin losses and their complexity",
        paper=(
            "The margin is f·y, or f[y] − max f over the other classes; the ramp loss falls from 1 at margin 0 to 0 "
            "at γ. The risk is bounded by the empirical margin loss, twice its complexity and a term in n (eq. B.2.5), "
            "the complexity by R̂(F)/γ for two classes (B.2.7) and (c/γ) Σ R̂(F_y) for c (lemma B.2.3)."
        ),
        setup=(
            "Linear classifiers of the plane on a grid of weights, so that every supremum is a maximum. Complexities: "
            "{contraction[trials]} samples of size {contraction[samples]}, all signs, {contraction[classes]} classes "
            "with {contraction[matrices]} random weight matrices. Gaps: {generalization[draws]} samples of size "
            "{generalization[samples]} from two Gaussians, whose risks are known exactly."
        ),
        parts=("contraction", "generalization"),
        panels=(
            Panel(draw.contraction, "Complexities of losses against margin, each below its bound."),
            Panel(draw.gaps, "Histogram of gaps beside the much larger bounds."),
        ),
        caption=(
            "Left: complexity of the margin losses and its bounds; median and range over samples. Right: the largest "
            "L₀ − L̂ᵧ in the class for every sample, beside what (B.2.5) allows."
        ),
        notes=(
            "The last terms of eqs. 2.5.4 and B.2.5 disagree; (B.2.5) is used here, both in TG-Eq2.4. Chapter 2 "
            "defines complexities with an absolute value, chapter 6 without; here they are without, which is never "
            "larger."
        ),
    ),
)
