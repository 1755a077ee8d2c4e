"""Section 5.4: three examples of what is learned first (figure 5.4)."""

from __future__ import annotations

from torchtangent.lab.recipes.george2022.figures import examples as draw
from torchtangent.lab.study import Entry, Panel

_EXACT = (
    "Solved exactly by the closed forms of TG-Prop5.4.1, θ⁰ = σ = {{{part}[sigma]}}; t ≤ {{{part}[network_end]}}, and "
)
_EXACT += "t ≤ {{{part}[linearized_end]}} for the linearized network."
NOISE = ("clean samples", "noisy samples")
SPURIOUS = ("majority, feature agrees", "minority, it does not")

ENTRIES = (
    Entry(
        id="TG-Ex-init",
        title="Where the examples begin",
        paper="w⁰ = √σ, which is θ⁰ = σ/2; the authors' plots have θ⁰ = σ.",
        setup="Example 1 (see TG-Ex1) by the closed forms from both starts, with σ = {example-1[sigma]}.",
        parts=("example-1",),
        panels=(Panel(draw.starts, "From half the start the linearized network takes twice as long."),),
        caption=(
            "How much of the modes the linearized network has learned: the slowest one (lines) to the fastest one "
            "(upper edge of the bands)."
        ),
        notes="The ranges of time of figure 5.4 belong to θ⁰ = σ, which all examples here begin with.",
    ),
    Entry(
        id="TG-Ex1",
        title="Inputs against labels (figure 5.4, left)",
        paper=(
            "Inputs √μ_i e_i and labels μ_{n−i+1}/√μ_i: the linearized network learns modes in the order of μ_i, low "
            "index first; the network in the order of ỹ_i = μ_{n−i+1}, high index first."
        ),
        setup="μ = {example-1[mu]}. " + _EXACT.format(part="example-1"),
        parts=("example-1",),
        panels=(
            Panel(draw.modes("linearized"), "The linearized network learns the first mode first."),
            Panel(draw.modes("network"), "The network learns the last mode first."),
        ),
        caption="How much of every mode is learned: the order is turned round.",
        notes=(
            "The released script does not reverse μ (on an array of one row the reversal does nothing) and reverses "
            "the linear rates instead; here the definition is run."
        ),
    ),
    Entry(
        id="TG-Ex2",
        title="Noisy labels (figure 5.4, middle)",
        paper=(
            "Inputs κ_i y_i e₁ + η e_{i+1}, with κ_i = −1 for q of n samples: these labels are noise. The first mode "
            "of the labels is (1 − 2q/n) ȳ. The network fits clean samples first, and its error on noisy ones rises; "
            "the linearized network fits both together."
        ),
        setup=(
            "n = {example-2[samples]}, q = {example-2[flipped]}, η = {example-2[noise]}. "
            + _EXACT.format(part="example-2")
            + " All modes but the first share μ = η²: {example-2[bases]} random bases of them."
        ),
        parts=("example-2",),
        panels=(
            Panel(draw.groups("bases", "linearized", NOISE), "Linearized, both errors fall from the start."),
            Panel(
                draw.groups("bases", "network", NOISE, top=2.25),
                "The network's error on clean samples falls while that on noisy ones rises, then both fall.",
            ),
            Panel(
                draw.groups("aligned", "network", NOISE),
                "With the bad basis the error on noisy samples falls first.",
            ),
        ),
        caption=(
            "Mean squared errors of both groups; bands are two standard errors over bases. Dotted: the noisy "
            "samples' error with the first mode learned and no other. Last: the same network with one basis vector "
            "along what is left of the labels."
        ),
        notes=(
            "w lives in the basis of right singular vectors, and η² is an (n − 1)-fold singular value: the network "
            "itself depends on which vectors the decomposition returns. With a random basis the first mode's ỹ = 15 is "
            "the largest. With one vector along the rest of the labels that one has ỹ = 5√15 ≈ 19.4, and the order is "
            "turned round. The thesis does not say which basis it takes."
        ),
    ),
    Entry(
        id="TG-Ex3",
        title="A spurious feature (figure 5.4, right)",
        paper=(
            "Inputs κ_i y_i e₁ + λ y_i e₂ + η e_{i+2}, λ ∈ (0, 1), with κ_i = −1 for q of n samples: e₁ is spurious, "
            "e₂ the core. The network fits the majority first, with a larger gap between the groups than the "
            "linearized network at equal progress."
        ),
        setup=(
            "n = {example-3[samples]}, q = {example-3[flipped]}, η = {example-3[noise]}, λ = 1 as in the released "
            "code, and λ in {example-3[cores]}. " + _EXACT.format(part="example-3")
        ),
        parts=("example-3",),
        panels=(
            Panel(draw.groups("errors", "linearized", SPURIOUS), "Linearized, both errors fall almost together."),
            Panel(draw.groups("errors", "network", SPURIOUS), "The network's error falls for the majority first."),
            Panel(draw.gaps, "The network's gap is large for lambda near one and negative for small lambda."),
        ),
        caption=(
            "Mean squared errors of both groups for λ = 1, and the gap between them, when the error on all samples is "
            "half of that at the start, against λ."
        ),
        notes=(
            "For λ = 1 the two modes that carry labels are the two groups themselves, with ỹ² = 130 · 15 and 110 · 5. "
            "As λ falls the labels move into the second mode, which agrees with the minority; from some λ on it is "
            "learned first. The thesis' λ ∈ (0, 1) is not enough, and its figure has λ = 1. Modes beyond these two "
            "have no labels: their basis does not matter."
        ),
    ),
)
