"""Figures 6.4 and B.7: easy and difficult images."""

from __future__ import annotations

from torchtangent.lab.recipes.baratin2021.figures import mixtures as draw
from torchtangent.lab.recipes.baratin2021.mixtures import DEPTHS, KINDS
from torchtangent.lab.study import Entry, Panel

ENTRIES = (
    Entry(
        id="TG-Fig6.4",
        title="Easy images are aligned with first",
        paper=(
            "10,000 images of MNIST and 1,000 difficult ones: with random labels (left), or of KMNIST (right). CKA "
            "rises faster and higher on easy images in both; on KMNIST's it rises later in training; the ratio is "
            "much larger than one."
        ),
        setup=(
            "MLP of {mixture-random[depth]} layers with {mixture-random[width]} units, {mixture-random[easy]} images "
            "of {mixture-random[data]} and {mixture-random[difficult]} difficult ones: with random labels, or of "
            "{mixture-kmnist[other]}; SGD with batches of {mixture-random[batch]}, learning rate "
            "{mixture-random[lr]}, momentum 0.9, {mixture-random[steps]} steps. Kernels, all outputs, of "
            "{mixture-random[samples]} easy and as many difficult training images, at {mixture-random[halts]} points. "
            "Seeds {mixture-random[seeds]}."
        ),
        parts=tuple(KINDS.values()),
        panels=(
            *(
                Panel(draw.easy_and_difficult(part, f"Difficult: {kind}"), f"CKA on easy and difficult images: {kind}.")
                for kind, part in KINDS.items()
            ),
            Panel(
                draw.ratios({part: kind for kind, part in KINDS.items()}, "Easy over difficult"),
                "The ratio of both along training.",
            ),
        ),
        caption="CKA of the kernels with the labels trained on; bands are the range over seeds. Last: their ratio.",
        notes=(
            "Layers have weights of their own; the released code ties those of all hidden layers by repeating one. "
            "Pixels are standardized with the mixture's mean and deviation. The other characters are KMNIST at paper "
            "scale (unpacked files have no published checksum and may hold a part of the images; the run's record says "
            "which were read) and digits turned by a quarter at smoke scale."
        ),
    ),
    Entry(
        id="TG-FigB.7",
        title="Deeper networks align later, faster and higher",
        paper=(
            "10,000 images of MNIST and 1,000 with random labels, MLPs with 60 units: in deeper networks alignment "
            "starts later but rises faster and higher, and the ratio of easy and difficult peaks higher and for "
            "fewer steps."
        ),
        setup=(
            f"MLPs of {', '.join(map(str, DEPTHS))} layers "
            "with {depth-3[width]} units, {depth-3[easy]} images of {depth-3[data]} and {depth-3[difficult]} with "
            "random labels; SGD with batches of {depth-3[batch]}, learning rate {depth-3[lr]}, momentum 0.9, "
            "{depth-3[steps]} steps. Kernels of {depth-3[samples]} easy and as many difficult training images, at "
            "{depth-3[halts]} points. Seeds {depth-3[seeds]}."
        ),
        parts=tuple(draw.DEPTH_PARTS),
        panels=(
            *(
                Panel(draw.easy_and_difficult(part, label), f"CKA on easy and difficult images, {label}.")
                for part, label in draw.DEPTH_PARTS.items()
            ),
            Panel(draw.ratios(draw.DEPTH_PARTS, "Easy over difficult"), "The ratio of both for every depth and seed."),
        ),
        caption="CKA by depth; bands are the range over seeds. Last: the ratio of both, a line for each seed.",
        notes="The paper's depths and number of seeds are not known to us; these are ours.",
    ),
)
