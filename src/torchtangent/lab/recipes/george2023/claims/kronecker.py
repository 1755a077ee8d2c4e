"""What chapter 4 and appendix A prove about Kronecker factorizations."""

from __future__ import annotations

import numpy as np

from torchtangent.lab.claims import Claim
from torchtangent.lab.measures import ROUNDING
from torchtangent.lab.recipes.george2023 import measures as ours
from torchtangent.lab.rules import AtLeast, AtMost

CLAIMS = (
    Claim(
        id="TG-Prop4.2.1",
        name="exact",
        statement="Without covariance of aaᵀ and ddᵀ, F = E[aaᵀ] ⊗ E[ddᵀ] exactly.",
        published="equal",
        measure=lambda arrays: float(arrays["errors"][:, 0].max()),
        rule=AtMost(ROUNDING),
        note="Largest relative error over random layers.",
    ),
    Claim(
        id="TG-Prop4.2.1",
        name="needed",
        statement="With covariance (ρ = 1) the factorization is not exact.",
        published="differs",
        measure=lambda arrays: float(arrays["errors"][:, -1].min()),
        rule=AtLeast(1e-3),
        note="Smallest relative error over random layers.",
    ),
    Claim(
        id="TG-Prop4.2.1",
        name="identities",
        statement="Kronecker products: inverse, mixed product, transpose, rank, singular values and vectors.",
        published="equal",
        measure=lambda arrays: dict(
            zip(arrays["identity_names"].tolist(), arrays["identity_errors"].max(0), strict=True)
        ),
        rule=AtMost(ROUNDING),
        note="Largest relative errors over random matrices.",
    ),
    Claim(
        id="TG-ThmA.1–3",
        name="theorem 1",
        statement="No other diagonal in KFAC's eigenbasis is closer to G than s*.",
        published="0 violations",
        measure=lambda arrays: float(np.sum(arrays["best_other"] < arrays["random-layers/ekfac"] * (1 - 1e-12))),
        rule=AtMost(0.0),
    ),
    Claim(
        id="TG-ThmA.1–3",
        name="theorem 2, random layers",
        statement="‖G − EKFAC‖ ≤ ‖G − KFAC‖, always, on random layers.",
        published="0 violations",
        measure=ours.violations("random-layers"),
        rule=AtMost(0.0),
    ),
    Claim(
        id="TG-ThmA.1–3",
        name="theorem 2, real layers",
        statement="‖G − EKFAC‖ ≤ ‖G − KFAC‖ on every layer of the network, at every checkpoint.",
        published="0 violations",
        measure=ours.violations("real-layers"),
        rule=AtMost(0.0),
    ),
    Claim(
        id="TG-ThmA.1–3",
        name="theorem 3",
        statement="In the true eigenbasis the second moments E[(Uᵀ∇)²] are the eigenvalues.",
        published="equal",
        measure=lambda arrays: float(arrays["eigenvalue_error"].max()),
        rule=AtMost(ROUNDING),
    ),
    Claim(
        id="TG-A.4",
        name="formula",
        statement="(S_A + √ε) ⊗ (S_B + √ε) = S_A ⊗ S_B + ε′.",
        published="equal",
        measure=lambda arrays: float(arrays["formula_error"].max()),
        rule=AtMost(1e-14),
    ),
    Claim(
        id="TG-A.4",
        name="words",
        statement="As the words have it, adding ε (not √ε) to both factors gives the same.",
        published="equal",
        measure=lambda arrays: float(arrays["words_error"].max()),
        rule=AtMost(1e-14),
        note="An erratum of the thesis: this line is expected not to hold.",
    ),
)
