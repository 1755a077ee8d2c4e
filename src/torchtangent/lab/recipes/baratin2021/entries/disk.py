"""Figures 6.1 and B.4, the public notebook's variant, and learning rates: the disk."""

from __future__ import annotations

from torchtangent.lab.recipes.baratin2021.figures import disk as draw
from torchtangent.lab.study import Entry, Panel

_SETUP = (
    "{disk[points]} points of [−1, 1]², +1 within √(2/π) of 0; {disk[layers]} linear layers, width {disk[width]}, "
    "ReLU, PyTorch's default initialization; gradient descent on all points, rates {disk[lrs]}, seeds {disk[seeds]}; "
    "the kernel on a grid of {disk[side]} × {disk[side]} points."
)

ENTRIES = (
    Entry(
        id="TG-Fig6.1",
        title="Eigenfunctions of the tangent kernel while a network learns a disk",
        paper=(
            "500 points, 6 layers of 256 units: after training the top eigenfunctions show the boundary circle, and "
            "the spectrum is more anisotropic: λ₂₀/λ₁ is 1.5 % at iteration 0 and 0.2 % at iteration 2000."
        ),
        setup=_SETUP,
        parts=("disk",),
        panels=(
            Panel(draw.functions(0), "Before training the first eigenfunctions are waves across the square."),
            Panel(draw.functions(1), "In the middle of training the first ones follow the circle."),
            Panel(draw.functions(-1), "After training, the first eigenfunctions show the circle."),
            Panel(draw.centred_ratio, "The ratio of the centred kernel falls and rises again."),
            Panel(draw.uncentred_ratio, "The ratios of the uncentred kernel rise."),
            Panel(draw.spectra, "Eigenvalues relative to the first at several iterations."),
            Panel(draw.rank, "The effective rank of the centred kernel along training."),
            Panel(draw.alignment, "Alignment with the labels grows."),
            Panel(draw.loss, "The training loss at both rates."),
        ),
        caption=(
            "Maps: eigenfunctions of the centred kernel (index in the corner) at the larger rate, first seed, with the "
            "boundary dotted. Curves: means over seeds and their range; stars are the published values. The centred "
            "ratio falls while the disk is being learned, and rises again."
        ),
        notes=(
            "Rate, initialization and centring are not published. The start is met by eigenvalues of the centred "
            "kernel and by singular values of the uncentred J, not by its eigenvalues; only the centred ones fall. At "
            "a rate ten times smaller the same happens ten times later, so what iteration 2000 shows depends on the "
            "rate. The drop is judged by the least value along training."
        ),
    ),
    Entry(
        id="TG-FigB.4",
        title="More eigenfunctions on the disk: rotation invariance",
        paper="Further eigenfunctions of figure 6.1: the leading ones become rotation-invariant.",
        setup=_SETUP,
        parts=("disk",),
        panels=(
            Panel(draw.functions(-2), "Eigenfunctions at the drawn iteration before the last."),
            Panel(draw.roundness, "Rotation invariance of the leading eigenfunctions grows along training."),
            Panel(draw.together, "Rotation invariance of the first twenty eigenfunctions together."),
            Panel(draw.round_by_index, "Rotation invariance of each leading eigenfunction before and after training."),
            Panel(draw.energy, "The labels' energy on the first five eigenfunctions grows."),
        ),
        caption=(
            "Roundness: 1 − (variance along circles)/(variance), 1 for a function of the distance from the centre, 0 "
            "for x₁; of the first five eigenfunctions, weighted by eigenvalues, and one by one (bars: range over "
            "seeds)."
        ),
        notes=(
            "A kernel that is invariant under rotations also has pairs of eigenfunctions like cos θ and sin θ, whose "
            "roundness is 0. At the published size the first two become such a pair, and the third and fourth the "
            "round ones."
        ),
    ),
    Entry(
        id="TG-Fig6.1-notebook",
        title="The disk of the public notebook",
        paper=(
            "The authors' notebook trains 2-60-60-60-1 on 100 points at rate 0.05; its λ are singular values of J/N: "
            "0.0230 → 0.522 (index 0) and 0.00128 → 0.118 (index 5) from iteration 0 to 2999, test accuracy 94.5 %."
        ),
        setup=(
            "{disk-notebook[points]} points, {disk-notebook[layers]} linear layers of width {disk-notebook[width]}, "
            "rate {disk-notebook[lrs]}, seeds {disk-notebook[seeds]}, grid {disk-notebook[side]} × "
            "{disk-notebook[side]}, nothing centred."
        ),
        parts=("disk-notebook",),
        panels=(
            Panel(draw.functions(-1), "Eigenfunctions after training."),
            Panel(draw.singular_values, "Singular values grow; published values as stars."),
            Panel(draw.both_ratios, "The ratio of the uncentred kernel rises."),
        ),
        caption="Means over seeds and their range; stars are the notebook's values. Maps are of the centred kernel.",
        notes="Uncentred, the spectrum becomes flatter here, not steeper as in the thesis' figure.",
    ),
    Entry(
        id="TG-lr-claim-disk",
        title="Learning rate, width and alignment, on the disk",
        paper="Larger learning rates enhance alignment; wide networks with small rates have constant features.",
        setup=(
            "The disk with {disk-rates[points]} points; {disk-rates[layers]} layers of widths {disk-rates[widths]}, "
            "Kaiming-normal weights, default biases; gradient descent until the training loss is {disk-rates[goal]}, "
            "at {disk-rates[rates]} times the rate that is stable at the start, seeds {disk-rates[seeds]}."
        ),
        parts=("disk-rates",),
        panels=(
            Panel(
                draw.by_rate("cka", "Alignment with the labels", "CKA on the grid"),
                "Alignment at equal loss grows with the learning rate.",
            ),
            Panel(
                draw.by_rate("unchanged", "Alignment with the start", "⟨K, K₀⟩ / ‖K‖‖K₀‖"),
                "Kernels change more at large rates and in narrow networks.",
            ),
        ),
        caption="At the same training loss, from the same weights; means and standard errors over seeds.",
        notes=(
            "The largest stable rate is 2/λ with the largest eigenvalue λ of the loss' Gauss-Newton matrix at the "
            "start. The study makes its claim on images; this is the smallest setting in which it can be tested."
        ),
    ),
)
