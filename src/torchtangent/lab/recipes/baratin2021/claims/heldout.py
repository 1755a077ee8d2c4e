"""What alignment on held-out images should show, and the rules that decide."""

from __future__ import annotations

from torchtangent.lab.claims import Claim
from torchtangent.lab.recipes.baratin2021.heldout import NETWORKS
from torchtangent.lab.recipes.baratin2021.measures import heldout as ours
from torchtangent.lab.rules import AtLeast, Each

_NOTES = {
    "MLP": "Mean over seeds.",
    "VGG19": "One seed at paper scale.",
    "ResNet18": "One seed at paper scale, few epochs, and the kernel in eval mode (in the released code in training "
    "mode): not the published measurement.",
}

CLAIMS = tuple(
    Claim(
        id=entry,
        name=network,
        statement=f"{network}: {what} with the labels of test images increases during training.",
        published="increases",
        measure=ours.increases(f"held-out-{network}", name),
        rule=Each({"end over start": AtLeast(1.1), "correlation with step": AtLeast(0.5)}),
        note=f"{_NOTES[network]} Spearman's correlation. The thresholds are ours.",
    )
    for entry, name, what in (
        ("TG-FigB.5", "cka", "centred alignment"),
        ("TG-FigB.6", "uncentred", "uncentred alignment"),
    )
    for network in NETWORKS
)
