"""What the study's tools should do (section 5.2 and appendix C.4)."""

from __future__ import annotations

from torchtangent.lab.claims import Claim
from torchtangent.lab.measures import smallest
from torchtangent.lab.rules import AtLeast, AtMost, Near

CLAIMS = (
    Claim(
        id="TG-5-API",
        name="probe",
        statement="The probe gives the similarity of signs and alignments of kernel and representation: 1 at first.",
        published="three measures",
        measure=smallest("at_start"),
        rule=Near(1.0, 1e-5),
        note="The smallest of the three and of the representation's by d×d second moments.",
    ),
    Claim(
        id="TG-5-API",
        name="batch statistics",
        statement="With BatchNorm in training mode α(f − f₀) is not defined: α boosts the differences between batches.",
        published="boosted by α",
        measure=lambda arrays: float(arrays["training_output"][arrays["alphas"].tolist().index(100.0)]),
        rule=AtLeast(1.0),
        note=(
            "Root mean square of the outputs with unchanged weights at α = 100, which should be zero; 1 is our "
            "threshold."
        ),
    ),
    Claim(
        id="TG-5-API",
        name="eval mode",
        statement="With BatchNorm at its running statistics they are zero.",
        published="0",
        measure=lambda arrays: float(arrays["eval_output"][0]),
        rule=AtMost(1e-5),
        note="In float32, for α = 1.",
    ),
    Claim(
        id="TG-5-API",
        name="refused",
        statement="So the knob refuses training mode, says why, and takes eval mode.",
        published="ill-defined",
        measure=lambda arrays: {
            "refused": float(arrays["refused"].mean()),
            "accepted": float(arrays["accepted"].mean()),
        },
        rule=AtLeast(1.0),
    ),
)
