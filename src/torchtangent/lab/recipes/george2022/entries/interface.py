"""The study's tools: section 5.2 and appendix C.4."""

from __future__ import annotations

from torchtangent.lab.recipes.george2022.figures import interface as draw
from torchtangent.lab.study import Entry, Panel

ENTRIES = (
    Entry(
        id="TG-5-API",
        title="A knob, a probe, and BatchNorm",
        paper=(
            "The study's code has a probe of linearity (signs, tangent kernel, representation) and a knob α. With "
            "BatchNorm in training mode the knob is ill-defined: α boosts the differences of batch statistics (C.4)."
        ),
        setup=(
            "A network with {interface[width]} hidden units and BatchNorm on {interface[train]} samples of "
            "{interface[data]}: α(f − f₀) with unchanged weights, f run on four batches and f₀ on all samples at once; "
            "what `tt.lazy` says to it; what `tt.TangentProbe` measures."
        ),
        parts=("interface",),
        panels=(Panel(draw.at_start, "Root mean square of the outputs against alpha, in training and in eval mode."),),
        caption="The outputs α(f − f₀) before training, which should be zero, in both modes of BatchNorm.",
    ),
)
