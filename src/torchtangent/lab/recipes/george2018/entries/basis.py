"""Algorithm 4.1, figure 4.2 and appendices A.3 and A.4."""

from __future__ import annotations

from torchtangent.lab.recipes.george2018.figures import basis as draw
from torchtangent.lab.study import Entry, Panel

_CLASSIFIER = (
    "A classifier of {classifier[data]} with four sigmoid layers of {classifier[width]} and a linear one, trained by "
    "Adam (rate {classifier[lr]}, batches of {classifier[batch]}, {classifier[steps]} steps, seeds "
    "{classifier[seeds]}). Layer {classifier[layer]}, gradients of {classifier[samples]} samples' own losses. "
)

ENTRIES = (
    Entry(
        id="TG-Alg4.1",
        title="Steps of KFAC and EKFAC",
        paper=(
            "Every n minibatches: A = E[hhᵀ] and B = E[δδᵀ] and their eigenvectors. Every minibatch: s* = E[((U_A ⊗ "
            "U_B)ᵀ∇)²]; the mean gradient is projected, divided by s* + ε and projected back. EKFAC-ra: s is a running "
            "average of squared mean gradients. KFAC: δW = −η B⁻¹ ∇ A⁻¹."
        ),
        setup=(
            "{one-step[steps]} steps of each optimizer on a convolution and two linear layers, batches of "
            "{one-step[samples]}, decompositions every {one-step[basis_every]} steps, in float64. The formula takes "
            "every sample's gradient from autograd and forms U_B ⊗ U_A as a matrix."
        ),
        parts=("one-step",),
        panels=(Panel(draw.steps("usual"), "Relative differences of steps to the formulas, all at rounding."),),
        caption="Difference of the parameters' step and the formula's, relative to it; dotted, what is asked for.",
        notes=(
            "Gradients are those of the loss (empirical), as published. EKFAC-ra has the released code's α = 0.75, its "
            "factor N and its start at KFAC's eigenvalues. KFAC's damping is shared by the factors' mean eigenvalues "
            "(the π rule)."
        ),
    ),
    Entry(
        id="TG-Fig4.2-left",
        title="Gradients are less correlated in the KFE",
        paper=(
            "Correlations of gradients of 250 parameters of the second layer of a classifier of MNIST: large in the "
            "parameters' basis, largely gone in the KFE."
        ),
        setup=_CLASSIFIER + "After training, the first {classifier[block]} coordinates in both bases.",
        parts=("classifier",),
        panels=(
            Panel(
                draw.correlations(0), "Magnitudes of correlations in the parameters' basis: bright off the diagonal."
            ),
            Panel(draw.correlations(1), "Magnitudes of correlations in the eigenbasis: dark off the diagonal."),
        ),
        caption="|E[g_i g_j]| / √(E[g_i²] E[g_j²]) of the first seed: in the parameters' basis and in the KFE.",
        notes=(
            "The paper's widths and stage of training are not known to us. Correlations are not centred, as G is not. "
            "Coordinates of the KFE are in order of decreasing eigenvalues."
        ),
    ),
    Entry(
        id="TG-Fig4.2-right",
        title="EKFAC's error stays low in an old basis",
        paper=(
            "‖F − F̂‖/‖F‖ along training with the KFE and KFAC's inverse recomputed every 100 iterations: in between "
            "KFAC's error grows quickly, EKFAC's much less."
        ),
        setup=_CLASSIFIER + "The basis is computed every {classifier[basis_every]} iterations.",
        parts=("classifier",),
        panels=(Panel(draw.errors, "KFAC's error is a saw-tooth; EKFAC's lies below it and is flatter."),),
        caption="Relative Frobenius error; vertical lines where the basis is computed. Bands are the range over seeds.",
        notes="F, the basis and s* are of the same samples, those that are measured.",
    ),
    Entry(
        id="TG-A.3",
        title="Initialization without normalization",
        paper=(
            "Weights N(0, 2/n) behind a ReLU, N(0, 1/n) where no activation comes before, N(0, 0.2/n) in the last "
            "convolution of a residual block; biases 0."
        ),
        setup=(
            "ResNet34 of base width {initialization[base]} on {initialization[train]} images of "
            "{initialization[data]}, seeds {initialization[seeds]}."
        ),
        parts=("initialization",),
        panels=(
            Panel(draw.variances, "Measured variances beside the formula's."),
            Panel(draw.squares, "Activations stay of order one with the formula and grow without the division."),
        ),
        caption="Fan-in times the weights' variance; mean square of what each block gives, for three ways to begin.",
        notes=(
            "The thesis' words divide the scale of the last convolution by 10, its formula the variance. We follow the "
            "formula; `words` in the plot is the other reading."
        ),
    ),
    Entry(
        id="TG-A.4",
        title="Damping both factors, in the optimizers",
        paper="For deep networks √ε is added to the eigenvalues of both factors: ε′ = εI + S_A ⊗ √εI + √εI ⊗ S_B.",
        setup="As for the algorithm, with this damping; steps of KFAC beside steps of EKFAC with KFAC's eigenvalues.",
        parts=("one-step",),
        panels=(Panel(draw.steps("root"), "Relative differences of steps to the formulas, all at rounding."),),
        caption="Difference of the parameters' step and the formula's, relative to it; dotted, what is asked for.",
        notes="The identity itself, on random spectra, is part of the study of the thesis.",
    ),
)
