"""Figure 6.6: complexity beside the generalization gap."""

from __future__ import annotations

from torchtangent.lab.recipes.baratin2021.capacity import SWEEPS
from torchtangent.lab.recipes.baratin2021.figures import capacity as draw
from torchtangent.lab.study import Entry, Panel

ENTRIES = (
    Entry(
        id="TG-Fig6.6",
        title="A complexity that follows the generalization gap",
        paper=(
            "C = Σ ‖δw‖ ‖Φ‖ follows the shape of the generalization gap with growing width (MNIST, one hidden "
            "layer), with growing label corruption (256 units) and with the channels of VGG19 (up to 4 million "
            "parameters); among the compared measures only C and that of Neyshabur et al. do."
        ),
        setup=(
            "One hidden layer on {widths[train]} images of {widths[data]}: {widths[values]} units; "
            "{corruption[width]} units and a share {corruption[values]} of random labels. {channels[network]} on "
            "{channels[train]} images of {channels[data]} with {channels[values]} channels at first. SGD with "
            "batches of {widths[batch]}, learning rate {widths[lr]} ({channels[lr]} for the last), momentum 0.9, "
            "until the mean loss of an epoch is {widths[goal]}, for at most {widths[steps]} ({channels[steps]}) "
            "steps; seeds {widths[seeds]} ({channels[seeds]}). Kernels of {widths[samples]} training images, at most "
            "{widths[halts]} times."
        ),
        parts=tuple(SWEEPS),
        panels=(
            Panel(draw.sweep("widths", "Width"), "Complexity and generalization gap against the width."),
            Panel(draw.sweep("corruption", "Random labels"), "Complexity and gap against the share of random labels."),
            Panel(draw.sweep("channels", "Channels"), "Complexity and gap against the number of channels."),
            Panel(draw.rank_correlations, "Rank correlations of all measures with the gap."),
        ),
        caption=(
            "The gap is test error minus training error, the latter on the labels trained on. Marks are seeds, "
            "hollow where the goal was not reached. Last: the rank correlation of every measure with the gap; "
            "dotted, 0.7."
        ),
        notes=(
            "‖δw‖ is the way between points of training, some of the steps 5⌊1.15ᵏ⌋, and ‖Φ‖ the root of the "
            "kernel's mean trace, as in the released code. Norms are over the margin, which all but 5 % of the "
            "samples exceed; C, the Fisher–Rao norm and the number of parameters are as they are. The measure of "
            "Neyshabur et al. is defined for two layers. The paper's widths, corruption levels, learning rates and "
            "baselines are not known to us; training sets are smaller here, and there is one seed for VGG19."
        ),
    ),
)
