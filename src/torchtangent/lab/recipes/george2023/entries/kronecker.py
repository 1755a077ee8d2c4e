"""Chapter 4 and appendix A: Kronecker factorizations."""

from __future__ import annotations

from torchtangent.lab.recipes.george2023.figures import kronecker as draw
from torchtangent.lab.study import Entry, Panel

ENTRIES = (
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
)
