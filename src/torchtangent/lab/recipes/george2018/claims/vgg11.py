"""What VGG11 should show; one seed, so a verdict is that of single runs."""

from __future__ import annotations

from torchtangent.lab.claims import Claim
from torchtangent.lab.recipes.george2018.measures import images as ours
from torchtangent.lab.recipes.george2018.measures.curves import EPOCHS
from torchtangent.lab.recipes.george2018.training import COMPARED
from torchtangent.lab.rules import AtLeast, AtMost, Each, Increasing, Lowest
from torchtangent.lab.study import Scale

SCALES: tuple[Scale, ...] = ("paper", "test")
"""Not `smoke`: a dozen steps on digits say nothing about CIFAR-10."""

ENVELOPE = f"{EPOCHS}, of envelopes (the lowest loss over settings at each epoch); positive: lower."
SECONDS = "Seconds of training until the lowest loss with which one of the others ends; ∞: not reached."
_OTHERS = ("KFAC", "SGD", "SGD+BN")

CLAIMS = (
    *(
        Claim(
            id="TG-Fig4.5",
            name=f"a: {name}",
            statement=f"At the same epoch {name} has a lower training loss than KFAC and SGD.",
            published="lower",
            measure=ours.lower_envelope("VGG11", name, _OTHERS),
            rule=AtLeast(0.0),
            scales=SCALES,
            note=ENVELOPE,
        )
        for name in ("EKFAC", "EKFAC-ra")
    ),
    Claim(
        id="TG-Fig4.5",
        name="b: wall-clock",
        statement="EKFAC-ra gains some wall-clock time.",
        published="EKFAC-ra first",
        measure=ours.seconds_to_best("VGG11", COMPARED["VGG11"], _OTHERS),
        rule=Lowest("EKFAC-ra"),
        scales=SCALES,
        note=SECONDS,
    ),
    Claim(
        id="TG-Fig4.5",
        name="b: small batches",
        statement="KFAC with smaller batches catches up with EKFAC in wall-clock time, but not with EKFAC-ra.",
        published="with EKFAC, not with EKFAC-ra",
        measure=ours.small_batches_catch_up("VGG11", ("EKFAC", "EKFAC-ra")),
        rule=Each({"EKFAC": AtMost(1.1), "EKFAC-ra": AtLeast(1.0)}),
        scales=SCALES,
        note="KFAC's seconds with the smallest batches over theirs, to the higher of the two last losses.",
    ),
    Claim(
        id="TG-Fig4.5",
        name="c: validation",
        statement="EKFAC's validation error is comparable to KFAC's.",
        published="comparable",
        measure=ours.validation_difference("VGG11", ("EKFAC", "EKFAC-ra"), "KFAC"),
        rule=AtMost(0.03),
        scales=SCALES,
        note="Best over settings and epochs, less KFAC's; the three points are ours.",
    ),
    Claim(
        id="TG-FigA.1",
        name="small batches",
        statement="At the same epochs EKFAC's gain over KFAC shrinks as batches get smaller.",
        published="shrinks",
        measure=ours.ends(ours.gain_by_batch("VGG11", "EKFAC")),
        rule=Increasing("smallest batch", "largest batch"),
        scales=SCALES,
        note=f"{EPOCHS}, with KFAC's loss; each at its best setting for the published batch size.",
    ),
    Claim(
        id="TG-FigA.2",
        name="per iteration",
        statement="At the same iterations EKFAC's gain over KFAC grows with the batch.",
        published="grows",
        measure=ours.ends(ours.gain_by_iteration("VGG11", "EKFAC")),
        rule=Increasing("smallest batch", "largest batch"),
        scales=SCALES,
        note="Mean over the first steps (as many as the largest batches have) of ln(KFAC's loss / ours).",
    ),
    Claim(
        id="TG-FigA.2",
        name="wall-clock",
        statement="EKFAC does not gain wall-clock time over KFAC, whatever the batch size.",
        published="no gain",
        measure=ours.time_ratio_by_batch("VGG11", "EKFAC"),
        rule=AtLeast(1.0),
        scales=SCALES,
        note="EKFAC's seconds over KFAC's, to the higher of the two last losses.",
    ),
    Claim(
        id="TG-FigA.4",
        name="halved rates",
        statement="With a learning rate that is halved EKFAC and EKFAC-ra keep some benefit.",
        published="some",
        measure=ours.lower_when_halved("VGG11", ("EKFAC", "EKFAC-ra"), "KFAC"),
        rule=AtLeast(0.0),
        scales=SCALES,
        note=f"{EPOCHS}, with KFAC's loss.",
    ),
)
