"""What the three examples of section 5.4 should show (figure 5.4), solved exactly."""

from __future__ import annotations

from torchtangent.lab.claims import Claim
from torchtangent.lab.measures import ROUNDING
from torchtangent.lab.recipes.george2022.measures import examples as ours
from torchtangent.lab.rules import AtLeast, AtMost, Each, Increasing, Near

_MODES = tuple(f"mode {i}" for i in range(1, 6))
_HALF = "When half of each mode is learned."

CLAIMS = (
    Claim(
        id="TG-Ex-init",
        name="start",
        statement="w⁰ = √σ gives θ⁰ = σ/2.",
        published="θ⁰ = σ in the plotting code",
        measure=lambda arrays: float(arrays["start_printed"].max()),
        rule=Near(0.5, ROUNDING),
        note="θ⁰/σ.",
    ),
    Claim(
        id="TG-Ex-init",
        name="times",
        statement="From θ⁰ = σ/2 the linearized network takes twice as long.",
        published=2.0,
        measure=ours.slowdown,
        rule=Near(2.0, 0.01),
        note="Time until half of a mode is learned, over that from θ⁰ = σ, the mean over modes.",
    ),
    Claim(
        id="TG-Ex-init",
        name="range",
        statement="The range of time of figure 5.4 belongs to θ⁰ = σ: there all modes are learned at its end.",
        published="t ≤ 250",
        measure=ours.least_learned,
        rule=Each({"θ⁰ = σ": AtLeast(0.9), "θ⁰ = σ/2": AtMost(0.9)}),
        note="How much of the slowest mode is learned; 90 % is our reading of “learned”.",
    ),
    Claim(
        id="TG-Ex1",
        name="linearized",
        statement="The linearized network learns in the order of the inputs: low index first.",
        published="1, 2, 3, 4, 5",
        measure=ours.order("linearized"),
        rule=Increasing(*_MODES),
        note=_HALF,
    ),
    Claim(
        id="TG-Ex1",
        name="network",
        statement="The network learns in the order of the labels: high index first.",
        published="5, 4, 3, 2, 1",
        measure=ours.order("network"),
        rule=Increasing(*reversed(_MODES)),
        note=_HALF,
    ),
    Claim(
        id="TG-Ex2",
        name="dominant mode",
        statement="The first mode of the labels is (1 − 2q/n) ȳ, with ȳ the labels before they were flipped.",
        published="equal",
        measure=lambda arrays: float(abs(arrays["first"] - arrays["first_expected"]).max()),
        rule=AtMost(ROUNDING),
    ),
    Claim(
        id="TG-Ex2",
        name="network, clean first",
        statement="The network's error on clean samples falls first, while that on noisy ones rises.",
        published="rises",
        measure=ours.mean("network_bases", ours.second_when_first),
        rule=Each({"− 2 s.e.": AtLeast(1.0)}),
        note="Noisy samples' error over its start, when that of clean samples is halved; over random bases.",
    ),
    Claim(
        id="TG-Ex2",
        name="network, peak",
        statement="The network's error on noisy samples rises towards (2 − 2q/n)², that of the first mode alone.",
        published=2.25,
        measure=ours.mean("network_bases", ours.peak),
        rule=Each({"− 2 s.e.": AtLeast(1.0), "+ 2 s.e.": AtMost(2.25)}),
        note="Highest error on noisy samples, over random bases; asked is that it lies between 1 and 2.25.",
    ),
    Claim(
        id="TG-Ex2",
        name="linearized, together",
        statement="The linearized network's errors on both groups fall together.",
        published="fall",
        measure=lambda arrays: float(ours.each("linearized_bases", ours.rise)(arrays).max()),
        rule=AtMost(1.0 + ROUNDING),
        note="Highest error on noisy samples over that at the start, the largest over bases. Only that it never rises "
        "is asked.",
    ),
    Claim(
        id="TG-Ex2",
        name="basis",
        statement="The basis decides: with one vector along the rest of the labels, noisy samples come first.",
        published="not said",
        measure=lambda arrays: float(ours.each("network_aligned", ours.gap)(arrays)[0]),
        rule=AtMost(0.0),
        note="The network's error on noisy less that on clean samples, when that on all is halved.",
    ),
    Claim(
        id="TG-Ex3",
        name="majority first",
        statement="The network fits samples that agree with the spurious feature first.",
        published="first",
        measure=lambda arrays: ours.gap_at_one(arrays)["network"],  # type: ignore[index]
        rule=AtLeast(0.0),
        note="Error of the other samples less that of these, when that of all is halved; λ = 1.",
    ),
    Claim(
        id="TG-Ex3",
        name="gap",
        statement="At equal progress the gap between the groups is larger than in the linearized network.",
        published="larger",
        measure=ours.gap_at_one,
        rule=Increasing("linearized", "network"),
        note="The same, with λ = 1 as in the released code.",
    ),
    Claim(
        id="TG-Ex3",
        name="gap for all λ",
        statement="The network's gap is larger than the linearized network's for all λ between 0 and 1.",
        published="larger, λ ∈ (0, 1)",
        measure=ours.excess_below_one,
        rule=AtLeast(0.0),
        note="The network's gap less the linearized network's.",
    ),
)
