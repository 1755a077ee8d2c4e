"""Figures B.5 and B.6: alignment on held-out images."""

from __future__ import annotations

from torchtangent.lab.recipes.baratin2021.figures import heldout as draw
from torchtangent.lab.recipes.baratin2021.heldout import NETWORKS
from torchtangent.lab.study import Entry, Panel

_PARTS = tuple(f"held-out-{network}" for network in NETWORKS)
_SETUP = (
    "MLP of 6 layers with 80 units on {held-out-MLP[data]}, VGG19 (at smoke scale {held-out-VGG19[network]}) and "
    "ResNet18 with BatchNorm ({held-out-ResNet18[base]} channels at first) on {held-out-VGG19[data]}, trained on "
    "{held-out-MLP[train]} images with batches of {held-out-MLP[batch]} and learning rates {held-out-MLP[lr]} and "
    "{held-out-VGG19[lr]} for {held-out-MLP[steps]}, {held-out-VGG19[steps]} and {held-out-ResNet18[steps]} steps; "
    "kernels, all outputs, of {held-out-MLP[samples]} test images. Seeds {held-out-MLP[seeds]} (MLP) and "
    "{held-out-VGG19[seeds]} (others)."
)
_NOTES = (
    "The released code computes the kernel of ResNet18 with BatchNorm in training mode, where an output depends on "
    "the whole batch and has no tangent features of its own. Here it is taken in eval mode, with running statistics, "
    "which some batches of training images set before the first step. Training sets and numbers of steps are smaller "
    "than published; learning rates of these runs are not known to us."
)

ENTRIES = (
    Entry(
        id="TG-FigB.5",
        title="Alignment on test images",
        paper="Centred alignment on held-out images increases during training, for MLP, VGG19 and ResNet18.",
        setup=_SETUP,
        parts=_PARTS,
        panels=(
            Panel(
                draw.alignment("cka", "Centred alignment", "CKA, test images"), "CKA along training, three networks."
            ),
        ),
        caption="CKA of the kernel of test images with their labels; bands are the range over seeds.",
        notes=_NOTES,
    ),
    Entry(
        id="TG-FigB.6",
        title="… also without centering",
        paper="Uncentred alignment with the labels increases, too.",
        setup=_SETUP,
        parts=_PARTS,
        panels=(
            Panel(
                draw.alignment("uncentred", "Uncentred alignment", "⟨K, YYᵀ⟩ / ‖K‖ ‖YYᵀ‖"),
                "Uncentred alignment along training, three networks.",
            ),
        ),
        caption="Alignment of the kernel of test images with their one-hot labels, neither of them centred.",
        notes=_NOTES,
    ),
)
