"""Learning rates and widths, on the disk."""

from __future__ import annotations

from torchtangent.lab.recipes.baratin2021.figures import rates as draw
from torchtangent.lab.study import Entry, Panel

ENTRIES = (
    Entry(
        id="TG-lr-claim-disk",
        title="Learning rate, width and alignment, on the disk",
        paper="Larger learning rates enhance alignment; wide networks with small rates have constant features.",
        setup=(
            "The disk with {disk-rates[points]} points; {disk-rates[layers]} layers of widths {disk-rates[widths]}, "
            "Kaiming-normal weights, default biases; gradient descent until the training loss is {disk-rates[goal]}, "
            "at {disk-rates[rates]} times the rate that is stable at the start, seeds {disk-rates[seeds]}."
        ),
        parts=("disk-rates",),
        panels=(
            Panel(
                draw.by_rate("cka", "Alignment with the labels", "CKA on the grid"),
                "Alignment at equal loss against the learning rate, for each width.",
            ),
            Panel(
                draw.by_rate("unchanged", "Alignment with the start", "⟨K, K₀⟩ / ‖K‖‖K₀‖"),
                "Alignment with the first kernel against the learning rate, for each width.",
            ),
        ),
        caption="At the same training loss, from the same weights; means and standard errors over seeds.",
        notes=(
            "The largest stable rate is 2/λ with the largest eigenvalue λ of the loss' Gauss-Newton matrix at the "
            "start. The study makes its claim on images; this is the smallest setting in which it can be tested. "
            "Widths and rates were changed after first results had been seen."
        ),
    ),
)
