"""What chapter 6 says about learning rates, on the disk."""

from __future__ import annotations

from torchtangent.lab.claims import Claim
from torchtangent.lab.recipes.baratin2021.measures import rates as ours
from torchtangent.lab.rules import AtLeast, Each, Highest

CLAIMS = (
    Claim(
        id="TG-lr-claim-disk",
        name="larger rates",
        statement="At the same training loss, kernels are more aligned with the labels after larger steps.",
        published="enhances alignment",
        measure=ours.rate_effect,
        rule=AtLeast(0.0),
        note="CKA at the largest rate minus CKA at the smallest, mean over seeds less two standard errors, for "
        "each width.",
    ),
    Claim(
        id="TG-lr-claim-disk",
        name="constant features",
        statement="Wide networks with small steps have constant features.",
        published="constant",
        measure=lambda arrays: ours.corners(arrays)["wide, small"],
        rule=AtLeast(0.95),
        scales=("paper", "test"),
        note="Alignment ⟨K, K₀⟩/‖K‖‖K₀‖ with the kernel at the start; mean over seeds. The threshold is ours.",
    ),
    Claim(
        id="TG-lr-claim-disk",
        name="only those",
        statement="Narrower networks and larger steps change them more.",
        published="both matter",
        measure=ours.corners,
        rule=Highest("wide, small"),
        note="Narrowest and widest, smallest and largest rate; mean over the seeds that reached the loss.",
    ),
    Claim(
        id="TG-lr-claim-disk",
        name="same loss",
        statement="All networks reach the training loss at which they are compared.",
        published="1",
        measure=ours.all_reached,
        rule=Each({"reached": AtLeast(1.0)}),
        note="A check of ours. Beyond the rate that is stable at the start a network may diverge and is left out. One "
        "stops at its first step below the goal: beside it, the lowest of their losses over the goal.",
    ),
)
