"""The directions that networks favour, section 3.2: what the paper says, what is run here, what to see."""

from __future__ import annotations

from torchtangent.lab.recipes.ortiz2021.figures import directions as draw
from torchtangent.lab.recipes.ortiz2021.setting import NETWORKS
from torchtangent.lab.study import Entry, Panel

_LEARNED = (
    f"LeNet {NETWORKS}, on images of {{accuracies[side]}}×{{accuracies[side]}}. Directions number "
    "{accuracies[indices]} (from 0) at the origin. 𝒟(v_j) with {accuracies[sizes]} training and "
    "{accuracies[test_samples]} test samples. SGD on the binary cross-entropy, learning rate {accuracies[lr]} "
    "falling to 0, momentum 0.9, batches of {accuracies[batch]}, {accuracies[epochs]} epochs; the linearized network "
    "in function space, with the same batches."
)

ENTRIES = (
    Entry(
        id="OJ-Data-D(u)",
        title="Data on which one direction tells the label",
        paper="𝒟(u): x = ε y u + w with w ~ N(0, σ(I − uuᵀ)) and y = ±1, ε = σ = 1. Linearly separable by u alone.",
        setup=(
            "{data-set[samples]} samples in {data-set[dimension]} dimensions, u random; once with ε (the paper's text) "
            "and once with ε/2 (the authors' code)."
        ),
        parts=("data-set",),
        panels=(
            Panel(draw.projections, "Histograms of projections: two spikes along u, a bell along another direction."),
            Panel(draw.noise_spectrum, "Spectrum of the noise: between two edges around one, and a zero along u."),
        ),
        caption=(
            "Left: projections on u, times the label, and on a random direction, within classes. Right: eigenvalues of "
            "the covariance within classes; dotted, the edges of Marchenko and Pastur for σ²I."
        ),
        notes="In the code σ is the noise's deviation, in the text its variance: with σ = 1 there is no difference.",
    ),
    Entry(
        id="OJ-NAD",
        title="Directions at the origin and averaged",
        paper=(
            "The directions are computed from ∂²f/∂θ∂x at the origin instead of its average over inputs, without "
            "a significant difference."
        ),
        setup=(
            f"LeNet and ResNet18 (first stage of {{averaged[base]}} channels) {NETWORKS}, on images of "
            "{averaged[side]}×{averaged[side]}, float64. Averages over {averaged[averaged]} Gaussian images, twice."
        ),
        parts=("averaged",),
        panels=(
            Panel(draw.origin_and_average(0), "Alignments of LeNet's directions, at the origin and averaged."),
            Panel(draw.origin_and_average(1), "Alignments of ResNet18's directions, at the origin and averaged."),
            Panel(draw.overlaps, "Overlap of leading subspaces at the origin and averaged, and of two averages."),
        ),
        caption=(
            "Alignments s² at the origin and of an average, and the averaged α of the origin's directions. Last: the "
            "mean squared cosine of the first {averaged[leading]} directions, beside that of two averages with each "
            "other, which is what the number of inputs lets one expect."
        ),
        notes=(
            "At the origin all activations of a network without biases are zero, where the slope of GELU is ½: the "
            "deeper the network, the smaller its derivatives there."
        ),
    ),
    Entry(
        id="OJ-Fig10",
        title="What the first directions look like",
        paper="The first 10 directions of random networks, as images and as magnitudes of their Fourier transforms.",
        setup=(
            f"LeNet and ResNet18 (first stage of {{first-directions[base]}} channels) {NETWORKS}, on images of "
            "{first-directions[side]}×{first-directions[side]}, at the origin."
        ),
        parts=("first-directions",),
        panels=(
            Panel(draw.first_directions(0), "The first ten directions of LeNet with their Fourier transforms."),
            Panel(draw.first_directions(1), "The first ten directions of ResNet18 with their Fourier transforms."),
            Panel(draw.concentrations, "Energy in the strongest Fourier bins, of directions and of random images."),
        ),
        caption=(
            "Directions as images, below each the magnitude of its Fourier transform with frequency zero in the "
            "middle; every picture has its own scale. Last: the part of the energy in the eight strongest entries."
        ),
        notes=(
            "With the last scale of every residual branch at 0, ResNet18 is its shortcuts: the output sees every "
            "eighth pixel and its neighbours, and the first directions are combs of such pixels, in frequency as in "
            "space."
        ),
    ),
    Entry(
        id="OJ-Fig4",
        title="Learning along anisotropy directions",
        paper=(
            "On 𝒟(v_j) network and linearization are more accurate for early directions than for late ones, and the "
            "network is much better than its linearization: a non-linear advantage, unlike on eigenfunctions."
        ),
        setup=_LEARNED,
        parts=("accuracies",),
        panels=(
            Panel(draw.by_index("ε"), "Test accuracy against the index of the direction, margin ε."),
            Panel(draw.by_index("ε/2"), "Test accuracy against the index of the direction, margin ε/2."),
        ),
        caption="Test accuracy on 𝒟(v_j) with the most training samples, for both readings of ε.",
        notes="The paper's indices are not known to us, and it also shows ResNet18.",
    ),
    Entry(
        id="OJ-NADdef",
        title="The order of directions is that of sample complexity",
        paper=(
            "Neural anisotropy directions are an orthonormal basis v_j ordered by the number of samples that it takes "
            "to learn x ↦ sign⟨v_j, x⟩; in the kernel regime, by α(g_v)."
        ),
        setup=_LEARNED,
        parts=("accuracies",),
        panels=(
            Panel(draw.accuracy("ε"), "Test accuracy against the alignment of directions, margin ε."),
            Panel(draw.accuracy("ε/2"), "Test accuracy against the alignment of directions, margin ε/2."),
        ),
        caption="Test accuracy on 𝒟(v_j) against α(g_v), for both readings of ε: it should rise from left to right.",
        notes="Accuracy at a given number of samples stands for sample complexity, which is our reading.",
    ),
)
