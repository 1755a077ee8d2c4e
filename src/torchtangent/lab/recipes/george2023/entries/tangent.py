"""Figures B.1 and B.2: directions that move the function, and the kernel on a line."""

from __future__ import annotations

from torchtangent.lab.recipes.george2023.figures import tangent as draw
from torchtangent.lab.study import Entry, Panel

ENTRIES = (
    Entry(
        id="TG-FigB.1",
        title="Few directions move the function",
        paper=(
            "A VGG11 after 10 epochs on CIFAR10: steps along the top right singular vectors of the "
            "Jacobian move the outputs on a test set, most directions do not."
        ),
        setup=(
            "VGG11 without normalization, {perturbations[base]} channels in the first layer (64 in the "
            "thesis), {perturbations[epochs]} epochs on {perturbations[data]} padded to 32×32; "
            "{perturbations[samples]} test samples; steps of {perturbations[relative_step]} ‖w‖ (the "
            "thesis names none)."
        ),
        parts=("perturbations",),
        panels=(
            Panel(
                draw.perturbations,
                "Output displacement along singular vectors falls with index and is far above random directions.",
            ),
        ),
        caption=(
            "Change of the outputs (root mean square over samples) after the same step length along "
            "singular vectors and along random directions; and what the singular values predict to first order."
        ),
    ),
    Entry(
        id="TG-FigB.2",
        title="The tangent kernel of a random network on a line",
        paper=(
            "A random MLP with 6 layers of 256 units, 50 equally spaced points of [0, 1]: eigenvectors "
            "follow Fourier modes in order of frequency, remarkably so in the first half of the spectrum,"
            " and λ₁₀/λ₁ ≈ 4 %."
        ),
        setup=(
            "6 weight layers, width {line-kernels[width]}, {line-kernels[points]} points, seeds {line-kernels[seeds]}; "
            "Kaiming-normal weights with PyTorch's default biases, PyTorch's default for both, and Kaiming-normal "
            "weights with zero biases."
        ),
        parts=("line-kernels",),
        panels=(
            Panel(draw.line_eigenvectors, "Eigenvectors 0, 5 and 20 oscillate faster and faster."),
            Panel(draw.line_fourier, "Heat map: the dominant frequency grows with the eigenvector's index."),
            Panel(draw.line_spectrum, ("Eigenvalues and singular values relative to the first, falling with index.")),
        ),
        caption=(
            "Eigenvectors 0, 5, 20 of one kernel; energy of every eigenvector at every cosine frequency "
            "(mean over seeds); eigenvalues and their square roots relative to the first, with range over"
            " seeds and the published 4 %."
        ),
        notes=(
            "The thesis does not say whether 4 % is a ratio of eigenvalues or of singular values, nor "
            "whether the kernel is centred. All readings are in the ledger."
        ),
    ),
)
