"""Figures 6.2, 6.3 and B.8: spectrum and alignment of the kernel while labels, some of them random, are learned."""

from __future__ import annotations

from torchtangent.lab.recipes.baratin2021.figures import noise as draw
from torchtangent.lab.study import Entry, Panel

_SETUP = (
    "{noise-0[network]} (VGG19 without BatchNorm at paper scale, a deep MLP at smoke scale), Kaiming-normal weights, "
    "zero biases, on the first {noise-0[train]} images of {noise-0[data]}; cross-entropy, SGD with batches of "
    "{noise-0[batch]}, learning rate {noise-0[lr]} (small: {slow-0[lr]}), momentum 0.9. "
)
_KERNEL = (
    "Kernels, all outputs, of the first {noise-0[samples]} training images with the labels they are trained on, and "
    "of as many test images with their true labels, centred per class. Training loss and accuracy are of "
    "{noise-0[evaluated]} training images, test accuracy of {noise-0[test]} test images. Seeds {noise-0[seeds]}. "
    "{noise-0[halts]} points, the last at step {noise-0[steps]}"
)
_LEVELS = " ({noise-20[steps]} with 20 %, {noise-50[steps]} with 50 % random labels)."
_SLOW = " ({noise-50[steps]} with 50 % random labels); at the small rate at step {slow-0[steps]}."
_NOTES = (
    "As in the text, batches of 100 without weight decay and augmentation; the released code has batches of 128, "
    "weight decay 5·10⁻⁴, crops and flips. Random labels are uniform over all ten classes, the true one included. "
    "The paper trains on all 50,000 images for up to 1,000 epochs; here, at paper scale, a fifth of them for some tens "
    "of epochs, for random labels to be memorized in fewer steps. Points are some of the paper's steps 5⌊1.15ᵏ⌋. One "
    "seed at paper scale: no uncertainty. The network at smoke scale was chosen after four small ones had been tried."
)
_NOISE = ("noise-0", "noise-20", "noise-50")
_RATES = ("noise-0", "noise-50", "slow-0", "slow-50")

ENTRIES = (
    Entry(
        id="TG-Fig6.2",
        title="The tangent kernel becomes anisotropic early in training",
        paper=(
            "VGG19 on CIFAR-10 with 0, 20 (released notebook only) and 50 % random labels: eigenvalues grow by more "
            "than two orders of magnitude, the larger ones faster; the effective rank drops early to less than 10 % of "
            "its start (20 % with 50 % random labels); 40 of 1,000 eigenvalues hold more than 70 % of the trace. With "
            "50 % random labels the rank stays low while test accuracy rises and rises again with overfitting. Kernels "
            "of training and test images have nearly the same spectrum."
        ),
        setup=_SETUP + _KERNEL + _LEVELS,
        parts=_NOISE,
        panels=(
            Panel(draw.spectrum("noise-0", "Spectrum, true labels"), "Eigenvalues of the kernel along training."),
            Panel(draw.ranks(draw.LEVELS, "Effective rank"), "Effective rank along training for three noise levels."),
            Panel(draw.shares("noise-0", "Trace ratios, true labels"), "Share of leading eigenvalues in the trace."),
            Panel(
                draw.rank_and_accuracy("noise-50", "50 % random labels"),
                "Effective rank beside training and test accuracy with half of the labels random.",
            ),
        ),
        caption=(
            "Eigenvalues (first seed), effective rank and trace ratios of the training kernel (lines) and the test "
            "kernel (dots); the dotted line is at 70 %, bands are the range over seeds. Last: when test accuracy "
            "falls, does the rank rise?"
        ),
        notes=_NOTES,
    ),
    Entry(
        id="TG-Fig6.3",
        title="The tangent kernel aligns with the labels",
        paper=(
            "In the same runs CKA with the labels increases, to about 0.25 (a thumbnail of the released notebook) "
            "without random labels; with many of them it is much higher on test images than on training images while "
            "the network learns. Several layers come above 0.5, the topmost stay low; under noise the layers' CKA "
            "peaks when test accuracy does."
        ),
        setup=_SETUP + _KERNEL + _LEVELS,
        parts=_NOISE,
        panels=(
            Panel(draw.alignments(draw.LEVELS, "Alignment"), "CKA of training and test kernels along training."),
            Panel(draw.layers("noise-0", "Layers, true labels"), "Map of CKA by layer and step, true labels."),
            Panel(draw.layers("noise-50", "Layers, 50 % random"), "Map of CKA by layer and step, half of them random."),
        ),
        caption=(
            "CKA of the training kernel with the labels trained on (lines) and of the test kernel with true ones "
            "(dots). Maps: the layers' kernels on test images, layer 1 at the input; dashed, the peak of test "
            "accuracy; first seed. Bands are the range over seeds."
        ),
        notes=f"A layer is a module, its weight and bias together. {_NOTES}",
    ),
    Entry(
        id="TG-FigB.8",
        title="The effective rank at a smaller learning rate",
        paper=(
            "At a learning rate of 0.003 the effective rank drops early, too, but to a value about three times as "
            "high as at 0.01."
        ),
        setup=_SETUP + _KERNEL + _SLOW,
        parts=_RATES,
        panels=(
            Panel(draw.ranks(draw.RATES, "Effective rank"), "Effective rank along training at two learning rates."),
        ),
        caption="By learning rate and share of random labels; lines are training kernels, dots test kernels.",
        notes=_NOTES,
    ),
    Entry(
        id="TG-lr-claim",
        title="A larger learning rate aligns more",
        paper=(
            "Larger learning rates enhance the alignment of the features with the labels; with a small one, and wide "
            "networks, features stay constant."
        ),
        setup=_SETUP + _KERNEL + _SLOW,
        parts=_RATES,
        panels=(
            Panel(
                draw.at_equal_losses("test_cka", "Alignment with the labels", "CKA, test images"),
                "CKA against training loss at two learning rates.",
            ),
            Panel(
                draw.at_equal_losses("test_start", "Alignment with the start", "⟨K, K₀⟩ / ‖K‖ ‖K₀‖, test images"),
                "Alignment with the first kernel against training loss at two learning rates.",
            ),
        ),
        caption="By learning rate and share of random labels, a line for each seed; the training loss falls from left "
        "to right.",
        notes=f"Runs are compared at equal training loss, not at equal steps. {_NOTES}",
    ),
)
