"""Section 5.4: a regression that can be solved, mode by mode."""

from __future__ import annotations

from torchtangent.lab.recipes.george2022.figures import closed as draw
from torchtangent.lab.study import Entry, Panel

_MODEL = (
    "f = Xθ with θ = ½ Σ w_λ² v_λ, where X = Σ √μ_λ u_λ v_λᵀ, fitted to y by gradient flow in w on ½‖f − y‖²; "
    "y_λ = u_λᵀy, θ*_λ = y_λ/√μ_λ, ỹ_λ = √μ_λ y_λ."
)

ENTRIES = (
    Entry(
        id="TG-Prop5.4.1",
        title="Modes are learned independently, in closed form",
        paper=(
            f"{_MODEL} Each θ_λ follows θ⁰θ* / (θ⁰ − e^(−2ỹt)(θ⁰ − θ*)), or θ⁰ / (1 + 2μθ⁰t) where θ* = 0; of the "
            "linearized network, as printed, θ* + e^(−μθ⁰t)(θ⁰ − θ*) (eq. 5.4.6)."
        ),
        setup=(
            "Random inputs, {closed-forms[samples]} samples in {closed-forms[dimension]} dimensions, labels without a "
            "part in the third mode; θ⁰ = {closed-forms[start]}. The flow in w is integrated in float64 without "
            "telling modes apart (Dormand–Prince of order 8, relative tolerance 10⁻¹³); {closed-forms[problems]} such "
            "problems."
        ),
        parts=("closed-forms",),
        panels=(
            Panel(draw.paths("network"), "Integrated values lie on the closed forms of the network's modes."),
            Panel(
                draw.paths("linearized"),
                "Integrated values lie on the corrected formula; the printed one is too slow.",
            ),
        ),
        caption=(
            "θ_λ against time, integrated (marks) and by formula (lines): two modes, one without labels (θ* = 0), one "
            "that the inputs do not have (μ = 0). Right, dotted: the formula as printed."
        ),
        notes=(
            "Errata. The exponent is −2μθ⁰t, for ∂f/∂w_λ = √μ w⁰ u_λ and (w⁰)² = 2θ⁰; the authors' plots have the 2. "
            "The printed θ̄ = Σ w w⁰ v is not the linearization: it begins at 2θ⁰. The signs of u_λ and v_λ have to be "
            "chosen so that y_λ ≥ 0, or θ* < 0 is out of reach for ½w². Where μ_λ = 0 nothing moves."
        ),
    ),
    Entry(
        id="TG-Eq5.4.7",
        title="How long a mode takes",
        paper=(
            "θ_λ is within ε of θ* after (1/ỹ) log(θ*/εθ⁰), of the linearized network after (1/μθ⁰) log(θ*/ε); the "
            "ratio of two modes' times is ỹ_λ/ỹ_λ′, as printed, for the network and that of μ_λ′θ⁰_λ′ and μ_λθ⁰_λ for "
            "the linearized one."
        ),
        setup=(
            "Modes with μ = {times[mu]} and θ* = {times[targets]}, ε = {times[epsilon]}, all from θ⁰ = σ = 10⁻ᵏ for "
            "k = {times[powers]}; true times are roots of the closed forms."
        ),
        parts=("times",),
        panels=(
            Panel(draw.times("network"), "The corrected formula gives the true times, the printed one twice as much."),
            Panel(draw.times("linearized"), "The same of the linearized network."),
            Panel(draw.ratios, "Ratios of times approach those of labels, and not their inverses."),
        ),
        caption=(
            "Times by formula over true ones, mean and range over modes. Last: how much longer the first mode "
            "takes than another; dotted, the limit ỹ_λ′/ỹ_λ, dashed, its inverse, which is printed."
        ),
        notes=(
            "Errata. From the closed forms the times are (1/2ỹ) log(θ*²/εθ⁰) and (1/2μθ⁰) log(θ*/ε), and the network's "
            "ratio is the inverse of the printed one: the larger ỹ, the sooner."
        ),
    ),
    Entry(
        id="TG-Eq5.4.8",
        title="Modes are learned one after the other",
        paper=(
            "From w⁰ = √σ, as σ → 0: when mode λ is learned, θ_λ′ is θ*_λ′ if ỹ_λ′ > ỹ_λ, and 0 if it is smaller. "
            "Printed with the power 2ỹ_λ′/ỹ_λ − 1 of σ."
        ),
        setup=(
            "Modes with θ* = 1 and ỹ′/ỹ = {sequence[ratios]}, looked at when the mode with ỹ is within "
            "{sequence[epsilon]} of its own θ*; σ = 10⁻ᵏ for k = {sequence[powers]}."
        ),
        parts=("sequence",),
        panels=(
            Panel(draw.learned, "For small sigma faster modes are learned entirely, slower ones not at all."),
            Panel(draw.powers, "The power of sigma lies on the corrected line and crosses zero at equal labels."),
        ),
        caption=(
            "Left: how much of another mode is learned when one is, as σ decreases. Right: the power of σ; where it is "
            "negative the mode is not learned."
        ),
        notes=(
            "Erratum. The power is ỹ′/ỹ − 1. With the printed 2ỹ′/ỹ − 1 modes with ỹ′ > ½ỹ would be learned too; "
            "ỹ′/ỹ = 0.6, 0.75 and 0.9 show that they are not."
        ),
    ),
)
