"""The entries: what the thesis says, what is run here, what to see in the plots."""

from __future__ import annotations

from torchtangent.lab.recipes.george2023 import figures as draw
from torchtangent.lab.study import Entry, Panel

_NETWORK = (
    "The 1,001-parameter convolutional network of the NNGeometry timing notebook (small enough "
    "for F itself), on {checkpoints[data]} of 28×28 pixels"
)

ENTRIES = (
    Entry(
        id="TG-Fig2.1",
        title="The same distance between parameters, two different distances between functions",
        paper=(
            "Normal distributions A = N(0, 1) and B = N(0, 2) overlap heavily; C and D = N(∓½, 1 − √¾) "
            "hardly do. In (μ, σ²) both pairs are at distance 1."
        ),
        setup=(
            "Closed forms, checked by integrating the densities on a grid. The two KL values are derived,"
            " not printed in the thesis."
        ),
        parts=("gaussians",),
        panels=(
            Panel(draw.gaussian_pair(0), "Densities of A and B: two wide bells with the same centre."),
            Panel(draw.gaussian_pair(1), "Densities of C and D: two narrow bells with different centres."),
        ),
        caption=(
            "Densities of both pairs; bars mark the central 95 %. The distance between parameters is the "
            "same left and right."
        ),
    ),
    Entry(
        id="TG-Eq2.4",
        title="The metrics of function space, to second order",
        paper=(
            "For a small step δw, ‖δf‖² = δwᵀGδw with G = E[∇f∇fᵀ], and KL(f at w+δw ‖ f at w) = ½ "
            "δwᵀFδw. Eq. 3.2.4 prints the second without the ½. Generalization gaps are bounded by "
            "Rademacher complexities (eq. 2.5.4)."
        ),
        setup=(
            "The 1,001-parameter network at initialization on {second-order[samples]} samples of {second-"
            "order[data]}, {second-order[directions]} random directions, float64. Threshold classifiers "
            "on [0, 1], {rademacher[draws]} samples of size {rademacher[samples]}, for the bound."
        ),
        parts=("second-order", "rademacher"),
        panels=(
            Panel(
                draw.second_order_ratio,
                "Ratio of KL to the quadratic form goes to one half, of L2 to one, as steps shrink.",
            ),
            Panel(draw.rademacher_gap, "Histogram of generalization gaps beside the much larger bounds."),
        ),
        caption=(
            "Left: true distance over quadratic form against step length; lines are medians over "
            "directions, bands their range. KL goes to ½, not to 1. Right: the generalization gap of "
            "every sample beside the bound with the term of eq. 2.5.4 and of B.2.5."
        ),
        notes=(
            "The last terms of eqs. 2.5.4 and B.2.5 disagree (√(log(2/δ)/n) and 3√(log(2/δ)/2n)); both are checked."
        ),
    ),
    Entry(
        id="TG-Fig3.1",
        title="One call, any representation: vᵀFv",
        paper=(
            "The same call gives vᵀFv with a KFAC or a dense representation: comparable, not equal. The "
            "implicit representation agrees with the dense one to float precision."
        ),
        setup=_NETWORK
        + (
            ", trained; exact Fisher of {quadratic-forms[samples]} samples; v = θ and {quadratic-"
            "forms[draws]} random directions."
        ),
        parts=("quadratic-forms",),
        panels=(Panel(draw.quadratic_forms, ("Ratios of quadratic forms to the dense one for each representation.")),),
        caption=(
            "vᵀMv over vᵀFv for v = θ (crosses) and random v (dots). Implicit sits on 1; KFAC scatters around it."
        ),
        notes=(
            "The thesis' listing for the implicit representation passes PMatDense; the claim is about "
            "what the text says."
        ),
    ),
    Entry(
        id="TG-FIM-def",
        title="The Fisher matrix in closed form, and from samples",
        paper=(
            "F = 1/n Σᵢ Σ_c p_c ∇log p_c ∇log p_cᵀ in closed form; sampling labels from the model gives "
            "an unbiased estimate. F and the kernel of the same outputs share their non-zero spectrum."
        ),
        setup=_NETWORK
        + (
            ", trained; {definitions[samples]} samples; {definitions[mc_repeats]} repetitions for each "
            "number of sampled labels."
        ),
        parts=("definitions",),
        panels=(
            Panel(
                draw.monte_carlo,
                "Error of the sampled Fisher falls as one over the square root of the number of samples.",
            ),
            Panel(draw.shared_spectrum, ("Eigenvalues of the Fisher matrix and of the kernel lie on each other.")),
        ),
        caption=(
            "Left: relative Frobenius error of the sampled Fisher against labels drawn per input, with "
            "the slope −½ for the eye. Right: the spectrum of F (line) and of the kernel of √p_c log p_c "
            "with p held fixed (dots)."
        ),
    ),
    Entry(
        id="TG-Fig3.3",
        title="Solving with an approximation of F",
        paper=(
            "v′ = (F_approx + λI)⁻¹(F + λI)v for v on the unit sphere, at several points of training of a"
            " ResNet50: KFAC is the best for inverse operations, and everything tends to a cosine of 1 as"
            " λ grows."
        ),
        setup=_NETWORK
        + (
            ", at epochs 0 and {checkpoints[epochs]}; F over {quality[samples]} samples, approximations "
            "with {quality[mc_samples]} sampled labels per input; {quality[draws]} draws of v."
        ),
        parts=("quality", "checkpoints"),
        panels=(
            Panel(
                draw.solve_residual,
                "Residual of solves against damping for each representation at the last checkpoint.",
            ),
            Panel(
                draw.solve_cosine, ("Cosine of solves against damping for each representation at the last checkpoint.")
            ),
        ),
        caption="At the last checkpoint, median over v. Residual: lower is better; cosine: higher is better.",
        notes=(
            "Two readings of damped KFAC: here (B⊗A + λI)⁻¹ exactly (KFAC), as for every other "
            "representation; and, as in the thesis' code, √λ split between the factors by the π rule "
            "(KFAC-π). BlockDiag, which the thesis' network was too large for, is drawn for reference and"
            " takes no part in the comparison. The published network and λ grid are not available."
        ),
    ),
    Entry(
        id="TG-Fig3.4",
        title="Multiplying by an approximation of F",
        paper="Comparing F_approx v with Fv by residual and cosine: EKFAC is the best for forward products.",
        setup="As TG-Fig3.3.",
        parts=("quality", "checkpoints"),
        panels=(
            Panel(draw.product_residual, "Residual of products along training for each representation."),
            Panel(draw.product_cosine, "Cosine of products along training for each representation."),
        ),
        caption="Median over v along training. Residual: lower is better; cosine: higher is better.",
    ),
    Entry(
        id="TG-Fig3.5",
        title="Quadratic forms with an approximation of F",
        paper="|vᵀF_approx v − vᵀFv| / vᵀFv is lowest for EKFAC.",
        setup="As TG-Fig3.3.",
        parts=("quality", "checkpoints"),
        panels=(Panel(draw.quad_error, "Relative error of quadratic forms along training."),),
        caption="Median over v along training; lower is better (the thesis' caption says higher, a slip).",
    ),
    Entry(
        id="TG-Fig3.6",
        title="Traces of approximations of F",
        paper=("Diag, QuasiDiag and EKFAC have the trace of F up to Monte-Carlo noise; KFAC's is less accurate."),
        setup=("As TG-Fig3.3; and once more with exact expectations, where the first three must agree to rounding."),
        parts=("quality", "checkpoints"),
        panels=(
            Panel(draw.trace_error("sampled"), "Relative error of traces with sampled labels."),
            Panel(draw.trace_error("exact"), "Relative error of traces with exact expectations."),
        ),
        caption=(
            "Relative error of the trace along training: approximations from 5 sampled labels (left), and"
            " from the exact expectation (right)."
        ),
    ),
    Entry(
        id="TG-Prop4.2.1",
        title="When the Kronecker factorization is exact",
        paper=(
            "If aaᵀ and DsDsᵀ have no covariance, F = E[aaᵀ] ⊗ E[DsDsᵀ] exactly. Appendix A.1 lists the "
            "identities of Kronecker products."
        ),
        setup=(
            "{independence[trials]} random layers ({independence[inputs]} inputs, {independence[outputs]}"
            " outputs). All pairs of {independence[inputs_drawn]} a's and {independence[outputs_drawn]} "
            "d's make a sample of covariance exactly 0; scaling d by 1 + ρ(‖a‖²/mean − 1) brings some in."
        ),
        parts=("independence",),
        panels=(
            Panel(
                draw.independence, ("Error of the factorization grows from rounding with the strength of dependence.")
            ),
        ),
        caption=(
            "Relative Frobenius error of A ⊗ B against the strength ρ of the dependence: rounding at ρ = "
            "0, then growing. Median and range over layers."
        ),
    ),
    Entry(
        id="TG-ThmA.1–3",
        title="EKFAC is the best diagonal in KFAC's eigenbasis",
        paper=(
            "(1) Among diagonals D, ‖G − UDUᵀ‖ is least for D = s* = E[(Uᵀ∇)²]. (2) So EKFAC is never "
            "further from G than KFAC. (3) In G's own eigenbasis s* are the eigenvalues."
        ),
        setup=(
            "{random-layers[trials]} random layers of random sizes with dependent a and d, {random-"
            "layers[perturbations]} other diagonals for each; and every layer of the 1,001-parameter "
            "network along training ({real-layers[samples]} samples of {real-layers[data]})."
        ),
        parts=("random-layers", "real-layers"),
        panels=(
            Panel(
                draw.errors_scatter("random-layers"),
                "EKFAC's error against KFAC's on random layers: all on or below the diagonal.",
            ),
            Panel(
                draw.errors_scatter("real-layers"),
                "EKFAC's error against KFAC's on real layers: all on or below the diagonal.",
            ),
        ),
        caption=(
            "Relative Frobenius error of EKFAC against that of KFAC, a point a layer; no point may lie "
            "above the line. Left random layers, right the network's."
        ),
    ),
    Entry(
        id="TG-A.4",
        title="Damping both factors",
        paper=(
            "Adding √ε to the eigenvalues of both factors adds ε′ = εI + S_A ⊗ √εI + √εI ⊗ S_B to those "
            "of their product: a damping that grows with the eigenvalue."
        ),
        setup="Random spectra of sizes {damping[inputs]} and {damping[outputs]}, ε ∈ {damping[epsilons]}.",
        parts=("damping",),
        panels=(
            Panel(draw.damping, ("Added damping against eigenvalue for three epsilons: at least epsilon and growing.")),
        ),
        caption="What is added to each eigenvalue of A ⊗ B (dots) beside the constant ε (lines).",
        notes=("The thesis' words say to add ε, its formula √ε. The formula satisfies the identity; the words do not."),
    ),
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
            "6 weight layers, width {line-kernels[width]}, {line-kernels[points]} points, seeds {line-"
            "kernels[seeds]}; Kaiming-normal weights with PyTorch's default biases, and PyTorch's default"
            " for both."
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
