"""Figure 6.5 and appendix B.2: SuperNat."""

from __future__ import annotations

from torchtangent.lab.recipes.baratin2021.figures import supernat as draw
from torchtangent.lab.study import Entry, Panel

ENTRIES = (
    Entry(
        id="TG-Fig6.5",
        title="SuperNat freezes where there is only noise",
        paper=(
            "Linear regression on one feature that matters and d = 10 that fit the noise, n = 50, σ² = 0.1: SuperNat "
            "freezes in the directions of the noise and ends with a lower test error than gradient descent."
        ),
        setup=(
            "{supernat[samples]} samples, {supernat[noise_features]} noise features, σ² = {supernat[variance]}; from "
            "w = 0 on ½ mean (f − y)², {supernat[steps]} steps at rates {supernat[lrs]}, seeds {supernat[seeds]}; "
            "`tt.optim.SuperNat`."
        ),
        parts=("supernat",),
        panels=(
            Panel(draw.errors("orthogonal"), "Test errors of gradient descent and four versions of SuperNat."),
            Panel(draw.errors("printed"), "The same with the noise as printed."),
            Panel(draw.last, "Last test errors of SuperNat against gradient descent's."),
        ),
        caption=(
            "Medians and quartiles over seeds at the largest rate. κ is such that the largest factor is 1 "
            "(max) or that the trace of the kernel stays (trace), or there is none, for the mean and for the summed "
            "loss. Last: on the dotted line both methods end with the same error."
        ),
        notes=(
            "Rate, steps and κ are not published (the rescaling is given up to a factor). Printed is P = φφᵀ of the "
            "noise features, which is no projector; both are run. Test labels have no noise. Errors above 10⁶ count as "
            "10⁶."
        ),
    ),
    Entry(
        id="TG-SuperNat-id",
        title="SuperNat is natural gradient descent",
        paper=(
            "Rescaling the features after every step, Φₜ₊₁ = Ãₜ⁻¹Φₜ, is natural gradient descent in the first features "
            "with metric AₜAₜᵀ, Aₜ = Ã₀ … Ãₜ; the step moves the function by ⟨δw, Φₜ⟩."
        ),
        setup=(
            "{supernat-identity[samples]} samples, {supernat-identity[noise_features]} noise features, "
            "{supernat-identity[steps]} steps, seeds {supernat-identity[seeds]}; all matrices formed, float64."
        ),
        parts=("supernat-identity",),
        panels=(Panel(draw.identities, "Relative differences of steps, functions and norms, sorted."),),
        caption="Relative differences of the optimizer from the thesis' matrices; the printed norm lacks a root.",
    ),
)
