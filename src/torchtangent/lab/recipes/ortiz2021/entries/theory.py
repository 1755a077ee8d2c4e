"""The identities of section 2: what the paper says, what is run here, what to see in the plots."""

from __future__ import annotations

from torchtangent.lab.recipes.ortiz2021.figures import theory as draw
from torchtangent.lab.recipes.ortiz2021.setting import NETWORKS
from torchtangent.lab.study import Entry, Panel

ENTRIES = (
    Entry(
        id="OJ-Eq1",
        title="The linearized network",
        paper=(
            "f̂_θ(x) = f_θ₀(x) + (θ − θ₀)ᵀ∇f_θ₀(x) approximates the network near θ₀ to first order. It is linear in θ, "
            "so its gradient is always ∇f_θ₀."
        ),
        setup=(
            f"LeNet and ResNet18 (first stage of {{linearization[base]}} channels) {NETWORKS}. "
            "{linearization[samples]} images of {linearization[data]}, {linearization[directions]} random directions, "
            "float64."
        ),
        parts=("linearization",),
        panels=(
            Panel(
                draw.linearization_error,
                "Difference of network and linearization against step length: straight lines of slope two.",
            ),
        ),
        caption=(
            "Difference of the outputs, root mean square over images, after a step in a random direction; bands are "
            "the range over directions, the dotted line has slope 2."
        ),
    ),
    Entry(
        id="OJ-Eq3",
        title="The norm of a function is a distance between parameters",
        paper=(
            "‖f‖²_Θ = Σ_j λ_j⁻¹ (E[φ_j f])², with λ_j and φ_j the eigenvalues and eigenfunctions of the kernel. Of a "
            "linearized network it is ‖θ − θ₀‖² for the nearest θ that gives this function."
        ),
        setup=(
            f"LeNet {NETWORKS}; {{norms[samples]}} images of {{norms[data]}}, float64. Targets: eigenfunctions, the "
            "labels of CIFAR2 (classes 0–4 against 5–9), linear and random functions. For each, the nearest θ by "
            "Jᵀ K⁻¹ f, and others that differ from it by {norms[detours]} times its distance where the linearized "
            "network does not notice."
        ),
        parts=("norms",),
        panels=(
            Panel(
                draw.distances,
                "Distances of parameters against norms of functions: nearest ones on the diagonal, detours above it.",
            ),
        ),
        caption="Each target at its norm: filled, the nearest parameters with this function; hollow, detours.",
        notes="Expectations are means over the images; E[φ_j²] = 1.",
    ),
    Entry(
        id="OJ-Lem1",
        title="Alignment, three ways, and the bound that it gives",
        paper=(
            "α(f) = E[f(x) Θ(x, x′) f(x′)] = Σ_j λ_j (E[φ_j f])² = ‖E[f(x) ∇f_θ₀(x)]‖², and ‖f‖²_Θ ≥ ‖f‖₂⁴ / α(f). The "
            "third form needs no kernel."
        ),
        setup=(
            f"LeNet {NETWORKS}; {{alignments[samples]}} images of {{alignments[data]}}, float64; targets as in OJ-Eq3."
        ),
        parts=("alignments",),
        panels=(
            Panel(draw.three_ways, "Alignment of every target by three formulas: the marks lie on each other."),
            Panel(
                draw.bound,
                "Squared norms against their lower bounds: eigenfunctions on the diagonal, all others above it.",
            ),
        ),
        caption=(
            "Left: α of every target, in the order of the kernel's value. Right: the squared norm against its lower "
            "bound, an equality for eigenfunctions alone."
        ),
        notes=(
            "α is a mean over images as in the paper; the authors' code has sums instead, which is N² times this, and "
            "unit eigenvectors, so that its α(φ_j) is the eigenvalue of K."
        ),
    ),
    Entry(
        id="OJ-Thm1",
        title="Alignment of linear predictors, from second derivatives",
        paper=(
            "For x ~ N(0, I) and g_u(x) = uᵀx, α(g_u) = ‖E[∂²f/∂θ∂x] u‖². The right singular vectors of this "
            "matrix are the directions that the kernel favours, with α(g_v) = s²."
        ),
        setup=(
            f"LeNet {NETWORKS}, on Gaussian images of {{stein[side]}}×{{stein[side]}}. Directions: right singular "
            "vectors, number {stein[indices]} (from 0), of the average over {stein[averaged]} images. Left side by "
            "Lemma 1 from {stein[sizes]} images, right side from {stein[hessians]} others."
        ),
        parts=("stein",),
        panels=(
            Panel(
                draw.stein,
                "Ratio of the two sides against the number of inputs: it falls to one.",
            ),
        ),
        caption=(
            "α(g_v) by Lemma 1 over ‖E[∂²f/∂θ∂x] v‖². An average over N inputs is too large by a term in 1/N (lines); "
            "without it (marks) what is left is noise."
        ),
        notes=(
            "Inputs come in pairs x, −x, and the term in 1/N is removed by comparing all inputs with two halves of "
            "them; both only reduce the error. With ReLU second derivatives exist almost everywhere but miss the "
            "kinks, and the theorem does not apply."
        ),
    ),
)
