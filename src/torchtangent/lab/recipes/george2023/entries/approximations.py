"""Chapter 3: Fisher matrices and their approximations."""

from __future__ import annotations

from torchtangent.lab.recipes.george2023.figures import approximations as draw
from torchtangent.lab.study import Entry, Panel

_NETWORK = (
    "The 1,001-parameter convolutional network of the NNGeometry timing notebook (small enough "
    "for F itself), on {checkpoints[data]} of 28×28 pixels"
)

ENTRIES = (
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
)
