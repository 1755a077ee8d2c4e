"""What alignment on held-out images should show, and the rules that decide."""

from __future__ import annotations

from torchtangent.lab.claims import Claim
from torchtangent.lab.recipes.baratin2021.heldout import NETWORKS
from torchtangent.lab.recipes.baratin2021.measures import heldout as ours
from torchtangent.lab.rules import AtLeast, Each

CLAIMS = tuple(
    Claim(
        id=entry,
        name=network,
        statement=f"{network}: {what} with the labels of test images increases during training.",
        published="increases",
        measure=ours.increases(f"held-out-{network}", name),
        rule=Each({"end over start": AtLeast(1.1), "correlation with step": AtLeast(0.5)}),
        note="Means over seeds; Spearman's correlation. The thresholds are ours.",
    )
    for entry, name, what in (
        ("TG-FigB.5", "cka", "centred alignment"),
        ("TG-FigB.6", "uncentred", "uncentred alignment"),
    )
    for network in NETWORKS
)
