"""Chapters 3 and 7: gradients of examples, and sums of tangents."""

from __future__ import annotations

from torchtangent.lab.recipes.george2023.figures import gradients as draw
from torchtangent.lab.study import Entry, Panel

ENTRIES = (
    Entry(
        id="TG-Eq-perex",
        title="Gradients of all examples from one backward pass",
        paper=(
            "The gradient of one example in a layer's weight is the product Ds aᵀ of two vectors that a batched "
            "backward pass computes anyway; their sum is the gradient of the batch."
        ),
        setup=(
            "The 1,001-parameter network on {per-example[samples]} samples of {per-example[data]}, float64: every "
            "∂f_c(xᵢ)/∂W from the factors of one pass, beside a backward pass for each example and output."
        ),
        parts=("per-example",),
        panels=(Panel(draw.per_example_norms, "Lengths of the examples' gradients, all above that of their mean."),),
        caption=(
            "Length of the gradient of each example's loss, and of their mean, which is what training sees: much of "
            "the examples' gradients cancels."
        ),
    ),
    Entry(
        id="TG-7",
        title="Training is a sum of linear steps",
        paper="f_T = f₀ + Σ gₜ with gₜ ≈ ⟨δwₜ, Φₜ⟩, a linear increment in the tangents of that moment (eq. 7.1.1).",
        setup=(
            "A ReLU network with {increments[widths]} hidden units, gradient descent on the cross-entropy of "
            "{increments[samples]} samples of {increments[data]} for a time (steps × learning rate) of "
            "{increments[time]}, in {increments[steps]} steps; outputs on as many test samples."
        ),
        parts=("increments",),
        panels=(
            Panel(draw.increments, "The error of summed increments falls with the step; with fixed tangents it stays."),
        ),
        caption=(
            "What the summed increments miss of f_T − f₀, against the learning rate: it vanishes with the step. With "
            "the tangents of the start alone it does not: they rotate on the way."
        ),
    ),
)
