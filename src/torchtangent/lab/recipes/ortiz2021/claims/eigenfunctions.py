"""What learning the kernel's eigenfunctions should show, and the rules that decide."""

from __future__ import annotations

from torchtangent.lab.claims import Claim
from torchtangent.lab.recipes.ortiz2021.measures import eigenfunctions as ours
from torchtangent.lab.rules import AtLeast, AtMost, Between, Each
from torchtangent.lab.study import Scale

CLEARLY = 0.5
"""A rank correlation that counts as clear; the threshold is ours."""

_FULL: tuple[Scale, ...] = ("paper",)
_DEEP = "Fewer indices and epochs than published (see the set-up); BatchNorm with the batch's statistics in training."

CLAIMS = (
    Claim(
        id="OJ-Gram",
        name="seconds",
        statement="The kernel of all 60,000 samples takes 3 minutes (MLP), 20 minutes (LeNet), 32 hours (ResNet18).",
        published="180 s, 1,200 s, up to 115,200 s on V100s",
        measure=ours.seconds,
        rule=Each({"MLP": AtMost(180.0), "LeNet": AtMost(1200.0), "ResNet18": AtMost(115_200.0)}),
        scales=_FULL,
        note="Ours is on the device named with the run; ResNet18's has products in float16, summed in float32.",
    ),
    Claim(
        id="OJ-Bin",
        name="binarized",
        statement="The inner product of an eigenvector and its normalized signs is about 0.78.",
        published=0.78,
        measure=ours.binarized,
        rule=Between(0.73, 0.83),
        scales=_FULL,
        note="Mean over all eigenfunctions that were computed; entries with a normal distribution would give 0.798.",
    ),
    Claim(
        id="OJ-Bin",
        name="random",
        statement="Inner products of random vectors are of the order of 10⁻⁴ on average.",
        published="10⁻⁴",
        measure=ours.random_products,
        rule=AtMost(5e-4),
        scales=_FULL,
        note="The signed average; a single one has the deviation 1/√m = 4 × 10⁻³.",
    ),
    Claim(
        id="OJ-Fig2",
        name="decay",
        statement="The accuracy of networks and of linearizations decreases with the index of the eigenfunction.",
        published="decreases",
        measure=ours.falls_with_index(),
        rule=AtMost(-CLEARLY),
        note="Spearman's correlation with the index.",
    ),
    Claim(
        id="OJ-Fig2",
        name="linear advantage",
        statement="Linearizations learn eigenfunctions better than networks do, on average over the indices.",
        published="> 0, a large gap",
        measure=ours.linear_advantage(),
        rule=AtLeast(0.0),
    ),
    Claim(
        id="OJ-Fig2",
        name="nearly everywhere",
        statement="… and at nearly all of them.",
        published="nearly all",
        measure=ours.indices_won(),
        rule=AtLeast(0.8),
        note="The fraction of indices at which the linearization is at least as accurate.",
    ),
    Claim(
        id="OJ-Fig2",
        name="same order",
        statement="Networks and linearizations find the same eigenfunctions easy.",
        published="orders agree",
        measure=ours.same_order(),
        rule=AtLeast(CLEARLY),
        note="Spearman's correlation of their accuracies.",
    ),
    Claim(
        id="OJ-Fig2",
        name="decay, ResNet18",
        statement="The same decay for ResNet18 and its linearization.",
        published="decreases",
        measure=ours.falls_with_index(among=ours.DEEP),
        rule=AtMost(-CLEARLY),
        scales=_FULL,
        note=_DEEP,
    ),
    Claim(
        id="OJ-Fig2",
        name="linear advantage, ResNet18",
        statement="ResNet18's linearization learns eigenfunctions better than ResNet18, on average over the indices.",
        published="> 0, a large gap",
        measure=ours.linear_advantage(among=ours.DEEP),
        rule=AtLeast(0.0),
        scales=_FULL,
        note=_DEEP,
    ),
    Claim(
        id="OJ-Fig2",
        name="same order, ResNet18",
        statement="ResNet18 and its linearization find the same eigenfunctions hard.",
        published="orders agree",
        measure=ours.same_order(ours.DEEP),
        rule=AtLeast(CLEARLY),
        scales=_FULL,
        note=_DEEP,
    ),
    *(
        Claim(
            id=entry,
            name="growth",
            statement=f"Training time, ℓ2 distance and cosine distance of the {network} increase with the index.",
            published="increase",
            measure=ours.grows_with_index(network),
            rule=AtLeast(CLEARLY),
            scales=_FULL,
            note="Spearman's correlation. A run that never reaches the loss 0.01 counts as one epoch longer.",
        )
        for entry, network in (("OJ-Fig3", "ResNet18"), ("OJ-Fig13", "MLP"), ("OJ-Fig14", "LeNet"))
    ),
    Claim(
        id="OJ-Fig14",
        name="ranges",
        statement="They stay within the published axes.",
        published="40 epochs, 7.5, 0.6",
        measure=ours.ranges("LeNet"),
        rule=Each({"epochs": AtMost(40.0), "ℓ2 distance": AtMost(7.5), "cosine distance": AtMost(0.6)}),
        scales=_FULL,
    ),
    Claim(
        id="OJ-Fig7",
        name="spike",
        statement="After training on φ₅₀₀ its alignment has grown more than that of every other eigenfunction.",
        published="a spike at 500",
        measure=ours.spikes("LeNet", (500,)),
        rule=AtLeast(1.0),
        scales=_FULL,
        note="Growth of the target's alignment over the largest growth of another. LeNet: the caption does not say.",
    ),
    Claim(
        id="OJ-Fig7",
        name="order",
        statement="The order of the other alignments barely changes.",
        published="barely changes",
        measure=ours.order_kept("LeNet", (500,)),
        rule=AtLeast(0.9),
        scales=_FULL,
        note="Spearman's correlation before and after.",
    ),
    *(
        Claim(
            id=entry,
            name="spikes",
            statement=f"After training the {network} on an eigenfunction, its alignment has grown the most.",
            published="a spike at the trained index",
            measure=ours.spikes(network),
            rule=AtLeast(1.0),
            scales=_FULL,
            note="Growth of the target's alignment over the largest growth of another.",
        )
        for entry, network in (("OJ-Fig15", "MLP"), ("OJ-Fig16", "LeNet"))
    ),
    Claim(
        id="OJ-Fig11",
        name="decay",
        statement="With Adam, too, the accuracy of both decreases with the index.",
        published="decreases",
        measure=ours.adam_falls,
        rule=AtMost(-CLEARLY),
        note="The paper gives no learning rate; 0.05 is the released code's default, 0.001 Adam's usual one.",
    ),
    Claim(
        id="OJ-Fig11",
        name="linear advantage",
        statement="With Adam, too, linearizations learn eigenfunctions better.",
        published="> 0",
        measure=ours.adam_advantage,
        rule=AtLeast(0.0),
        note="Each at the rate that is better for it on average.",
    ),
    Claim(
        id="OJ-Fig12",
        name="decay",
        statement="On MNIST, too, the accuracy of both decreases with the index.",
        published="decreases",
        measure=ours.falls_with_index("mnist"),
        rule=AtMost(-CLEARLY),
        scales=_FULL,
    ),
    Claim(
        id="OJ-Fig12",
        name="crossing",
        statement="The curves of LeNet and its linearization cross around φ₅₀₀.",
        published=500.0,
        measure=ours.crossing,
        rule=Between(250.0, 750.0),
        scales=_FULL,
    ),
    Claim(
        id="OJ-Claim-speed",
        name="faster",
        statement="Networks reach a training loss of 0.01 in fewer epochs than their linearizations, on every task.",
        published="in all experiments",
        measure=ours.converged_faster(),
        rule=AtLeast(0.95),
        scales=_FULL,
        note="The fraction of eigenfunctions; a tie, also of two that never reach it, does not count.",
    ),
    Claim(
        id="OJ-Claim-speed",
        name="faster, ResNet18",
        statement="So does ResNet18.",
        published="in all experiments",
        measure=ours.converged_faster(ours.DEEP),
        rule=AtLeast(0.95),
        scales=_FULL,
        note=_DEEP,
    ),
)
