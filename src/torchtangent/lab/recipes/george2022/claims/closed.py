"""What section 5.4 says about the modes of a regression, and what its formulas should have said."""

from __future__ import annotations

from torchtangent.lab.claims import Claim
from torchtangent.lab.measures import ROUNDING, largest, smallest
from torchtangent.lab.recipes.george2022.measures import closed as ours
from torchtangent.lab.rules import AtLeast, AtMost, Each, Near

_ERROR = "Largest difference from the integrated flow over times, modes and seeds, relative to the largest θ."
_ALLOWANCE = "For the smallest θ⁰; what is left is the ratio of logarithms, for which 20 % is our allowance."

CLAIMS = (
    Claim(
        id="TG-Prop5.4.1",
        name="network",
        statement="θ_λ(t) = θ⁰θ* / (θ⁰ − e^(−2ỹt)(θ⁰ − θ*)), θ⁰ / (1 + 2μθ⁰t) where θ* = 0, and θ⁰ where μ = 0.",
        published="equal",
        measure=largest("network_errors"),
        rule=AtMost(ROUNDING),
        note=_ERROR,
    ),
    Claim(
        id="TG-Prop5.4.1",
        name="linearized",
        statement="Of the linearized network θ_λ(t) = θ* + e^(−2μθ⁰t)(θ⁰ − θ*).",
        published="equal",
        measure=largest("linearized_errors"),
        rule=AtMost(ROUNDING),
        note=_ERROR,
    ),
    Claim(
        id="TG-Prop5.4.1",
        name="exponent as printed",
        statement="The printed exponent −μθ⁰t is off by a factor 2.",
        published="e^(−μθ⁰t) (eq. 5.4.6)",
        measure=smallest("printed_errors"),
        rule=AtLeast(0.1),
        note=f"{_ERROR} Here the smallest over seeds; that it is not small is what has to be shown.",
    ),
    Claim(
        id="TG-Prop5.4.1",
        name="linearization as printed",
        statement="The printed θ̄ = Σ w w⁰ v begins at 2θ⁰: what is missing is −½(w⁰)².",
        published="θ̄(w⁰) = θ⁰",
        measure=largest("linearization_start"),
        rule=Near(2.0, ROUNDING),
    ),
    Claim(
        id="TG-Prop5.4.1",
        name="signs",
        statement="Where y_λ < 0 the network learns nothing: θ_λ goes to 0, not to θ*. So u_λ and v_λ must be flipped.",
        published="not said",
        measure=largest("unflipped"),
        rule=AtMost(0.01),
        note="Largest θ_λ at t = 200 over modes with ỹ_λ < −0.05 before flipping, relative to the largest |θ*|.",
    ),
    Claim(
        id="TG-Eq5.4.7",
        name="network",
        statement="θ_λ is within ε of θ* from t_λ = (1/2ỹ) log((θ* − ε)(θ* − θ⁰) / εθ⁰) on.",
        published="the root of the closed form",
        measure=ours.farthest("network", "network_root"),
        rule=AtMost(ROUNDING),
        note="Largest relative difference from the root found by bisection, over modes and θ⁰.",
    ),
    Claim(
        id="TG-Eq5.4.7",
        name="linearized",
        statement="Of the linearized network, from t = (1/2μθ⁰) log((θ* − θ⁰) / ε) on.",
        published="the root of the closed form",
        measure=ours.farthest("linearized", "linearized_root"),
        rule=AtMost(ROUNDING),
        note="The same.",
    ),
    Claim(
        id="TG-Eq5.4.7",
        name="small θ⁰",
        statement="For θ⁰, ε ≪ θ* these are (1/2ỹ) log(θ*²/εθ⁰) and (1/2μθ⁰) log(θ*/ε).",
        published="equal in the limit",
        measure=ours.over_true("small"),
        rule=Near(1.0, 1e-4),
        note="Their ratio to the true times for the smallest θ⁰; 10⁻⁴ is ε.",
    ),
    Claim(
        id="TG-Eq5.4.7",
        name="as printed",
        statement="The printed times are twice too long.",
        published="(1/ỹ) log(θ*/εθ⁰), (1/μθ⁰) log(θ*/ε)",
        measure=ours.over_true("printed"),
        rule=Near(2.0, 0.02),
        note="Printed over true time for the smallest θ⁰, of the mode for which it is farthest from 1.",
    ),
    Claim(
        id="TG-Eq5.4.7",
        name="ratio of times",
        statement="Up to logarithms t_λ/t_λ′ is ỹ_λ′/ỹ_λ for the network and μ_λ′/μ_λ for the linearized one.",
        published="ỹ_λ/ỹ_λ′ printed",
        measure=ours.ratio_errors,
        rule=AtMost(0.2),
        note=f"Largest relative difference over pairs. {_ALLOWANCE}",
    ),
    Claim(
        id="TG-Eq5.4.7",
        name="ratio as printed",
        statement="The printed ratio of the network's times is upside down.",
        published="t_λ/t_λ′ = ỹ_λ/ỹ_λ′",
        measure=ours.printed_ratio_error,
        rule=AtLeast(0.2),
        note="Smallest relative difference over pairs, for the smallest θ⁰.",
    ),
    Claim(
        id="TG-Eq5.4.8",
        name="one after the other",
        statement="As σ → 0, when mode λ is learned, modes with ỹ′ > ỹ are learned and those with ỹ′ < ỹ are not.",
        published="1 and 0",
        measure=ours.learned,
        rule=Each({"faster": AtLeast(1 - 1e-3), "slower": AtMost(1e-3)}),
        note="θ′/θ*′ for the smallest σ, of each kind what is nearest to the other; 0.6 and 0.75 are among ỹ′/ỹ.",
    ),
    Claim(
        id="TG-Eq5.4.8",
        name="exponent",
        statement="θ*′/θ′ − 1 goes as σ to the power ỹ′/ỹ − 1.",
        published="2ỹ′/ỹ − 1 printed",
        measure=ours.exponent_error,
        rule=AtMost(ROUNDING),
        note="Largest difference over ỹ′/ỹ of the power between the two smallest σ.",
    ),
    Claim(
        id="TG-Eq5.4.8",
        name="exponent as printed",
        statement="The printed power 2ỹ′/ỹ − 1 is wrong: modes with ỹ′ > ½ỹ would be learned.",
        published="2ỹ′/ỹ − 1",
        measure=ours.printed_exponent_error,
        rule=AtLeast(0.1),
        note="Smallest difference over ỹ′/ỹ; it is ỹ′/ỹ itself.",
    ),
)
