"""The measures of chapter 6: effective rank, trace ratios, centred alignment."""

from __future__ import annotations

from torchtangent.lab.recipes.baratin2021.figures import spectra as draw
from torchtangent.lab.study import Entry, Panel

ENTRIES = (
    Entry(
        id="TG-erank/Tk/CKA",
        title="Effective rank, trace ratios and centred alignment",
        paper=(
            "erank = exp(−Σ μⱼ log μⱼ) with μ = λ/Σλ, T_k is the share of the k largest eigenvalues in the trace, and "
            "CKA the alignment of the centred kernel with the labels; kernels of layers sum to the kernel."
        ),
        setup=(
            "{random-kernels[trials]} random kernels of {random-kernels[samples]} samples and "
            "{random-kernels[classes]} outputs with random labels; and the kernels of all parameters of the "
            "1,001-parameter network on {layer-kernels[samples]} samples of {layer-kernels[data]}, at initialization "
            "and after {layer-kernels[epochs]} epochs."
        ),
        parts=("random-kernels", "layer-kernels"),
        panels=(
            Panel(
                draw.effective_ranks,
                "Effective ranks of random kernels against their ranks, with the limits 1 and the rank.",
            ),
            Panel(
                draw.layer_alignment,
                "Alignment of each parameter's kernel with the labels, at initialization and after training.",
            ),
        ),
        caption=(
            "Left: the effective rank of random kernels; 1 and the rank are dotted. Right: alignment of the "
            "kernel of each parameter, and of their sum, with the labels."
        ),
        notes=(
            "Centering is per class over samples, as in the released code; eq. 6.3.3 centres over samples and classes "
            "together. A last bias has the same gradient for all samples: nothing is left of its kernel by centering, "
            "and its alignment counts as 0."
        ),
    ),
)
