"""Section 5.2: the measures of linearity."""

from __future__ import annotations

from torchtangent.lab.recipes.george2022.figures import linearity as draw
from torchtangent.lab.study import Entry, Panel

ENTRIES = (
    Entry(
        id="TG-5-metrics",
        title="Three measures of linearity during training",
        paper=(
            "The part of ReLUs that are on or off as at the start, the alignment of the tangent kernel with the first "
            "one, and that of the Gram matrices of the last layer's inputs: for α = 100 all stay near 1, for α = 1 all "
            "decrease (shown there for a ResNet18 on CIFAR-10, figure 5.2)."
        ),
        setup=(
            "A network with {linearity[widths]} hidden units on {linearity[samples]} samples of {linearity[data]}, "
            "trained as in the released code; measured on {linearity[test_samples]} test samples whenever the loss of "
            "a batch first falls below ln 10 · 0.96ᵏ, for every fifth k."
        ),
        parts=("linearity",),
        panels=(
            Panel(draw.linearity(1.0), "Four measures against the training loss for alpha 1."),
            Panel(draw.linearity(100.0), "The same for alpha 100."),
        ),
        caption="Similarity to initialization against the training loss, for α = 1 (left) and α = 100 (right).",
        notes=(
            "Here an MLP takes the ResNet18's place. The released code computes the representation's alignment from "
            "d×d second moments, the thesis defines it with n×n Gram matrices; both are logged. They need not agree: "
            "what all inputs of the last layer have in common weighs much in an uncentred Gram matrix."
        ),
    ),
)
