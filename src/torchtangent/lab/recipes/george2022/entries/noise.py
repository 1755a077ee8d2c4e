"""Label noise: figure 5.2, bottom left and right, and figures C.1 to C.3 and C.6."""

from __future__ import annotations

from torchtangent.lab.recipes.george2022.figures import cscores as draw_bins
from torchtangent.lab.recipes.george2022.figures import linearity_images as draw_linearity
from torchtangent.lab.recipes.george2022.figures import noise as draw
from torchtangent.lab.recipes.george2022.measures.cscores import CSCORES
from torchtangent.lab.recipes.george2022.measures.noise import NOISE, RATES
from torchtangent.lab.study import Entry, Panel


def named(*patterns: str) -> tuple[str, ...]:
    """The parts behind names with `*` in the place of α."""
    return tuple(pattern.replace("*", alpha) for pattern in patterns for alpha in ("1", "100"))


PROGRESS = (
    "Runs are looked at when the loss of a batch first falls below ln 10 · 0.96ᵏ, and in between at ends of epochs; "
    "they end early where that level is below {noise-a1-s0[until]}, or a loss is not finite. They are compared where "
    "they have come equally far: progress is made monotone by its running minimum, and values are interpolated on the "
    "range that both runs pass."
)
UNMEASURED = "NaN: a run did not get far enough to be compared, which counts as not held."
LENGTH = (
    "Published: 200 epochs (α = 1) and 1,000 (α = 100), single runs. Here fewer and two seeds: where α = 100 stops at "
    "a higher training loss, only losses above that are compared. At the smoke scale digits and a small network, whose "
    f"settings were found in small trials. {UNMEASURED}"
)
_NO_START = (
    "Accuracies are compared without the look at step 0, where all outputs are zero; it was left out after the first "
    "verdicts on digits were seen."
)
_NETWORK = (
    "{noise-a1-s0[network]} without normalization on {noise-a1-s0[train]} images of {noise-a1-s0[data]}, of which 15 % "
    "have a wrong label; cross-entropy of α(f − f₀), SGD with η = {noise-a1-s0[lr]} (η/α²), momentum 0.9, batches of "
    "{noise-a1-s0[batch]}, at most {noise-a1-s0[epochs]} epochs for α = 1 and {noise-a100-s0[epochs]} for α = 100. "
)
_WATCHED = "Looked at are {noise-a1-s0[watched]} clean, as many noisy and as many test samples. "

ENTRIES = (
    Entry(
        id="TG-Fig5.2-bottomleft",
        title="Non-linear training memorizes wrong labels later",
        paper=(
            "At first the loss of samples with wrong labels rises while that of clean ones falls; then they are "
            "memorized, from a clean loss of 1.25 on for α = 1 and of 1.5 for α = 100. At equal clean loss the noisy "
            "loss is higher for α = 1, and the best test loss lower."
        ),
        setup=_NETWORK + _WATCHED + PROGRESS,
        parts=named(*NOISE),
        panels=(
            Panel(draw.memorization("noisy"), "The loss of noisy samples against that of clean ones."),
            Panel(draw.memorization("test"), "The test loss against the loss of clean training samples."),
        ),
        caption=(
            "Against the loss of clean training samples, so that training goes from left to right. Mean over seeds and "
            "their range; dotted, where memorization begins on each seed."
        ),
        notes=(
            f"{LENGTH} The released code also trains on SVHN (TG-SVHN), which the thesis does not show; it is not run "
            "here and has no claim."
        ),
    ),
    Entry(
        id="TG-Fig5.2-right",
        title="With α = 100 training stays linear",
        paper="For α = 100 all three measures of linearity stay near 1 throughout; for α = 1 all decrease steadily.",
        setup=(
            "The runs of both experiments of the figure; measured on {noise-a1-s0[probed]} test samples at every fifth "
            "level of the loss. And the linearized network itself, J(θ − θ₀), trained on the same batches as α = 1, 10 "
            "and 100, for {against-linearized[looks]} steps."
        ),
        parts=(*named(*CSCORES), *named(*NOISE), "against-linearized"),
        panels=(
            Panel(draw_linearity.linearity("C-scores"), "Three measures against the loss, for both alphas."),
            Panel(draw_linearity.linearity("label noise"), "The same with label noise."),
            Panel(draw_linearity.against_linearized, "Distance from the linearized network for three alphas."),
        ),
        caption=(
            "Similarity to the start against the training loss, in both experiments; and how far outputs on test "
            "samples are from the linearized network's, relative to how far these moved."
        ),
        notes=(
            "The representation's alignment is that of n×n Gram matrices, as the thesis defines it; that of d×d second "
            "moments, as in the released code, is logged too. No paper compares α = 100 with the linearized network. "
            "NaN: a run was measured less than three times, which counts as not held."
        ),
    ),
    Entry(
        id="TG-FigC.1",
        title="It is not the learning rate",
        paper=(
            "With α = 1 and η = 0.01, 0.003, 10⁻⁴ and 10⁻⁶ the accuracies of noisy and test samples coincide at equal "
            "loss of clean ones, at least early; with η = 10⁻⁶, where steps in parameter space are as small as for "
            "α = 100, the measures of linearity still drop to about 0.9."
        ),
        setup=(
            _NETWORK + "Further runs with α = 1 at η = {rate-third[lr]} and {rate-hundredth[lr]}, for at most "
            "{rate-third[epochs]} epochs. " + PROGRESS
        ),
        parts=(*RATES.values(), "noise-a100-s0"),
        panels=(
            Panel(draw.rates("noisy", "losses"), "Accuracy of noisy samples for three rates."),
            Panel(draw.rates("test", "losses"), "Accuracy of test samples for three rates."),
            Panel(draw.rates("noisy", "accuracies"), "The same against the accuracy of clean samples."),
            Panel(draw.rate_linearity, "The kernel's alignment for three rates and for alpha 100."),
        ),
        caption=(
            "Accuracies at equal progress for several learning rates, and the alignment of the tangent kernel (dotted: "
            "0.9, to which the thesis sees it drop)."
        ),
        notes=(
            "The text's axis is the loss of clean samples, the released code also has their accuracy: both. η = 10⁻⁶ "
            "took 10,000 epochs and is left out; in the epochs given here the smallest rate may get through the first "
            f"part of training only. {_NO_START} {UNMEASURED}"
        ),
    ),
    Entry(
        id="TG-FigC.2",
        title="Figure 5.2 with another seed",
        paper="Other seeds lead to the same conclusions.",
        setup="The runs of the second seed: initialization, order of batches and wrong labels are drawn anew.",
        parts=(*named(*CSCORES[1:]), *named(*NOISE[1:])),
        panels=(
            Panel(draw_bins.deciles(parts=CSCORES[1:]), "Losses of four deciles of C-scores, one seed."),
            Panel(draw.memorization("noisy", parts=NOISE[1:]), "The loss of noisy samples, one seed."),
            Panel(draw.memorization("test", parts=NOISE[1:]), "The test loss, one seed."),
        ),
        caption="As figure 5.2, for the second seed alone.",
        notes=LENGTH,
    ),
    Entry(
        id="TG-FigC.3",
        title="Label noise with another network",
        paper="With VGG11 instead of ResNet18: the same conclusions.",
        setup=(
            "{other-noise-a1[network]} with PyTorch's initialization on {other-noise-a1[train]} images of "
            "{other-noise-a1[data]} with 15 % wrong labels; η = {other-noise-a1[lr]} and at most "
            "{other-noise-a1[epochs]} epochs for α = 1, η = {other-noise-a100[lr]} and {other-noise-a100[epochs]} for "
            "α = 100; all else as in figure 5.2."
        ),
        parts=named("other-noise-a*"),
        panels=(
            Panel(draw.memorization("noisy", parts=("other-noise-a*",)), "The loss of noisy samples."),
            Panel(draw.memorization("test", parts=("other-noise-a*",)), "The test loss."),
        ),
        caption="As figure 5.2, bottom left, for the other network.",
        notes=(
            "PyTorch's initialization makes the tangent kernel of VGG11 so small that α = 100 took 10,000 epochs at "
            "η = 0.01. Here its rate is larger (found in small trials on a CPU), the training set half as large and "
            f"VGG11 half as wide (32 channels). At the smoke scale LeNet takes its place. {UNMEASURED}"
        ),
    ),
    Entry(
        id="TG-FigC.6",
        title="Figure 5.2 in accuracies",
        paper=(
            "Also by accuracy noisy samples are memorized later for α = 1, the best test accuracy is higher, and the "
            "bins of C-scores are more spread."
        ),
        setup="The runs of figure 5.2.",
        parts=(*named(*CSCORES), *named(*NOISE)),
        panels=(
            Panel(draw_bins.deciles("accuracies"), "Accuracies of four deciles of C-scores."),
            Panel(draw.memorization("noisy", "accuracies"), "Accuracy of noisy samples on their wrong labels."),
            Panel(draw.memorization("test", "accuracies"), "Accuracy of test samples."),
        ),
        caption="As figure 5.2, with accuracies on both axes; noisy samples count as right with their wrong label.",
        notes=f"{_NO_START} {LENGTH}",
    ),
)
