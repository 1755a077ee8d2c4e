"""What chapters 3 and 7 say about gradients of examples and sums of tangents."""

from __future__ import annotations

from torchtangent.lab.claims import Claim
from torchtangent.lab.measures import ROUNDING, exponent, largest
from torchtangent.lab.rules import AtMost, Between

CLAIMS = (
    Claim(
        id="TG-Eq-perex",
        name="examples",
        statement="∂f(xᵢ)/∂W = Ds aᵀ from one batched backward pass equals the gradient of the example alone.",
        published="equal",
        measure=largest("errors"),
        rule=AtMost(ROUNDING),
        note="Largest relative difference over parameters, for all outputs; convolutions sum over locations.",
    ),
    Claim(
        id="TG-Eq-perex",
        name="sum",
        statement="The gradients of the examples' losses sum to autograd's gradient of the batch.",
        published="equal",
        measure=largest("sum_errors"),
        rule=AtMost(ROUNDING),
        note="Largest relative difference over parameters.",
    ),
    Claim(
        id="TG-7",
        name="small steps",
        statement="f_T = f₀ + Σ ⟨δwₜ, Φₜ⟩ for small steps.",
        published="≈ equal",
        measure=lambda arrays: float(arrays["summed_error"][-1]),
        rule=AtMost(0.02),
        note="What is missing of f_T − f₀ on test samples, for the smallest step.",
    ),
    Claim(
        id="TG-7",
        name="order",
        statement="What is missing vanishes with the step, in proportion to it.",
        published="exponent 1",
        measure=lambda arrays: exponent(arrays["lr"], arrays["summed_error"]),
        rule=Between(0.8, 1.2),
        note="A step of length η adds an error of order η², and there are 1/η of them.",
    ),
)
