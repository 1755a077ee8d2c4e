"""What effective rank, trace ratios and centred alignment must satisfy."""

from __future__ import annotations

import numpy as np

from torchtangent.lab.claims import Claim
from torchtangent.lab.measures import ROUNDING, largest, smallest
from torchtangent.lab.recipes.baratin2021.measures import spectra as ours
from torchtangent.lab.rules import AtLeast, AtMost, Between, Each, Near

CLAIMS = (
    Claim(
        id="TG-erank/Tk/CKA",
        name="effective rank",
        statement="1 ≤ erank ≤ rank.",
        published="0 violations",
        measure=ours.effective_ranks,
        rule=Each({"least erank": AtLeast(1 - ROUNDING), "largest erank/rank": AtMost(1 + ROUNDING)}),
        note="Extremes over random kernels of rank 1 and more.",
    ),
    Claim(
        id="TG-erank/Tk/CKA",
        name="equal eigenvalues",
        statement="The effective rank is the rank if all eigenvalues are equal.",
        published="equal",
        measure=ours.equal_eigenvalues,
        rule=AtMost(ROUNDING),
    ),
    Claim(
        id="TG-erank/Tk/CKA",
        name="trace ratios",
        statement="T_k grows with k and is 1 when k is the rank.",
        published=1.0,
        measure=ours.trace_ratios,
        rule=Each({"falls": AtMost(0.0), "T at the rank": Near(1.0, ROUNDING)}),
    ),
    Claim(
        id="TG-erank/Tk/CKA",
        name="range",
        statement="CKA and kernel alignment lie in [0, 1].",
        published="0 violations",
        measure=ours.alignments,
        rule=Between(0.0, 1 + ROUNDING),
        note="Extremes over random kernels and labels.",
    ),
    Claim(
        id="TG-erank/Tk/CKA",
        name="labels",
        statement="The CKA of the labels' own kernel is 1.",
        published=1.0,
        measure=smallest("cka_labels"),
        rule=Near(1.0, ROUNDING),
    ),
    Claim(
        id="TG-erank/Tk/CKA",
        name="invariances",
        statement="CKA depends neither on scales nor on shifts and rotations of the features.",
        published="0",
        measure=ours.invariances,
        rule=AtMost(ROUNDING),
        note="Largest change over random kernels.",
    ),
    Claim(
        id="TG-erank/Tk/CKA",
        name="printed centring",
        statement="Centred over samples and classes together, as eq. 6.3.3 is printed, it does depend on shifts.",
        published="(I − 11ᵀ/nc) K (I − 11ᵀ/nc)",
        measure=lambda arrays: float(np.median(arrays["printed_change"])),
        rule=AtLeast(1e-3),
        note="Median change over random kernels when a constant is added to each class' features; section 6.3.1 and "
        "the released code centre per class, which the line above tests.",
    ),
    Claim(
        id="TG-erank/Tk/CKA",
        name="layers",
        statement="The kernels of the layers sum to the kernel.",
        published="equal",
        measure=largest("sum_error"),
        rule=AtMost(ROUNDING),
        note="Of a network at initialization and after training.",
    ),
)
