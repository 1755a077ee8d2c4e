"""Samples of different difficulty: C-scores, figure 5.2, top left, and figures C.4 and C.5."""

from __future__ import annotations

from torchtangent.lab.recipes.george2022.entries.noise import LENGTH, PROGRESS, UNMEASURED, named
from torchtangent.lab.recipes.george2022.figures import cscores as draw
from torchtangent.lab.recipes.george2022.measures.cscores import CSCORES
from torchtangent.lab.study import Entry, Panel

_SETUP = (
    "{cscores-a1-s0[network]} without normalization on {cscores-a1-s0[train]} images of {cscores-a1-s0[data]}; "
    "cross-entropy of α(f − f₀), SGD with η = {cscores-a1-s0[lr]} (η/α²), momentum 0.9, batches of "
    "{cscores-a1-s0[batch]}, at most {cscores-a1-s0[epochs]} epochs for α = 1 and {cscores-a100-s0[epochs]} for "
    "α = 100. Looked at are {cscores-a1-s0[watched]} training samples of every tenth of the C-scores. " + PROGRESS
)
_SCORES = "C-scores are the published ones for CIFAR-10; for digits, at the smoke scale, those of TG-Cscore. "

ENTRIES = (
    Entry(
        id="TG-Cscore",
        title="How consistently a sample is learned from others",
        paper=(
            "Ĉ(x, y) for n samples is the mean of P(f(x; D) = y) over subsets D of size n that exclude (x, y); the "
            "C-score is its average over n (eq. 5.3.2)."
        ),
        setup=(
            "Of the first {consistency[train]} samples of {consistency[data]}, {consistency[subsets]} random subsets "
            "of each fraction {consistency[fractions]}; on each a network with {consistency[widths]} hidden units is "
            "trained for {consistency[steps]} steps with batches of {consistency[batch]}."
        ),
        parts=("consistency",),
        panels=(Panel(draw.by_size, "Sorted consistencies for subsets of several sizes, and their mean."),),
        caption="The samples sorted by how often they are classified right, for each size of the subsets.",
    ),
    Entry(
        id="TG-Fig5.2-topleft",
        title="Non-linear training prefers easy samples",
        paper=(
            "Samples with high C-scores are learned faster in both regimes, and the spread between top and bottom "
            "decile at equal mean loss is larger for α = 1: lower in the top decile, higher in the bottom one."
        ),
        setup=_SETUP,
        parts=named(*CSCORES),
        panels=(Panel(draw.deciles(), "Losses of deciles 0, 2, 7, 9 against the mean, for both alphas."),),
        caption=(
            "The loss of four deciles against the mean training loss, which falls from left to right. Mean over seeds "
            "and their range."
        ),
        notes=_SCORES + LENGTH,
    ),
    Entry(
        id="TG-FigC.4",
        title="C-scores with another network",
        paper="With VGG11 instead of ResNet18: the same conclusions.",
        setup=(
            "{other-cscores-a1[network]} with PyTorch's initialization on {other-cscores-a1[train]} images of "
            "{other-cscores-a1[data]}; η = {other-cscores-a1[lr]} and at most {other-cscores-a1[epochs]} epochs for "
            "α = 1, η = {other-cscores-a100[lr]} and {other-cscores-a100[epochs]} for α = 100; all else as in figure "
            "5.2."
        ),
        parts=named("other-cscores-a*"),
        panels=(Panel(draw.deciles(parts=("other-cscores-a*",)), "Losses of deciles 0, 2, 7, 9 against the mean."),),
        caption="As figure 5.2, top left, for the other network; one seed.",
        notes=_SCORES + "What is smaller than published is said at TG-FigC.3. " + UNMEASURED,
    ),
    Entry(
        id="TG-FigC.5",
        title="Who gains from non-linear training, bin by bin",
        paper="Non-linear minus linear loss at equal training loss: negative for high C-scores, positive for low ones.",
        setup="The runs of figure 5.2, top left.",
        parts=named(*CSCORES),
        panels=(Panel(draw.bin_differences, "Differences of ten bins against the mean training loss."),),
        caption="The loss of every tenth of the C-scores for α = 1 minus that for α = 100; mean over seeds.",
        notes=_SCORES + LENGTH,
    ),
)
