"""Figures 6.1 and B.4, and the public notebook's variant: the disk."""

from __future__ import annotations

from torchtangent.lab.recipes.baratin2021.figures import disk as draw
from torchtangent.lab.study import Entry, Panel

_SETUP = (
    "{disk[points]} points of [−1, 1]², +1 within √(2/π) of 0; {disk[layers]} linear layers, width {disk[width]}, "
    "ReLU, PyTorch's default initialization; gradient descent on all points, rates {disk[lrs]}, seeds {disk[seeds]}; "
    "the kernel on a grid of {disk[side]} × {disk[side]} points, at the iterations {disk[probes]}."
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
            Panel(draw.functions(0), "Maps of six eigenfunctions before training."),
            Panel(draw.functions(1), "The same in the middle of training."),
            Panel(draw.functions(-1), "The same after training."),
            Panel(
                draw.centred_ratio,
                "The ratio of the twentieth and the first eigenvalue of the centred kernel along training.",
            ),
            Panel(draw.uncentred_ratio, "The same of the uncentred kernel, of eigenvalues and of singular values."),
            Panel(draw.spectra, "Eigenvalues relative to the first at several iterations."),
            Panel(draw.rank, "The effective rank of the centred kernel along training."),
            Panel(draw.alignment, "Alignment with the labels along training."),
            Panel(draw.loss, "The training loss at both rates."),
        ),
        caption=(
            "Maps: eigenfunctions of the centred kernel (index in the corner) at the larger rate, first seed, with the "
            "boundary dotted. Curves: means over seeds and their range; stars are the published values."
        ),
        notes=(
            "Rate, initialization and centring are not published; ours were chosen after small trial runs. How far "
            "training is at iteration 2000 depends on the rate, so the drop is judged by the least value along "
            "training, too."
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
            Panel(draw.roundness, "Rotation invariance of the leading eigenfunctions along training."),
            Panel(draw.together, "Rotation invariance of the first twenty eigenfunctions together."),
            Panel(draw.round_by_index, "Rotation invariance of each leading eigenfunction before and after training."),
            Panel(draw.energy, "The labels' energy on the first five eigenfunctions along training."),
        ),
        caption=(
            "Roundness: 1 − (variance along circles)/(variance), 1 for a function of the distance from the centre, 0 "
            "for x₁; of the first five eigenfunctions, weighted by eigenvalues, and one by one (bars: range over "
            "seeds)."
        ),
        notes=(
            "A kernel that is invariant under rotations also has pairs of eigenfunctions like cos θ and sin θ, whose "
            "roundness is 0, and the first eigenfunction may be one of them."
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
            "{disk-notebook[side]}, iterations {disk-notebook[probes]}, nothing centred."
        ),
        parts=("disk-notebook",),
        panels=(
            Panel(draw.functions(-1), "Eigenfunctions after training."),
            Panel(draw.singular_values, "Two singular values along training; published values as stars."),
            Panel(draw.both_ratios, "The ratio of the sixth and the first singular value, centred and not."),
        ),
        caption="Means over seeds and their range; stars are the notebook's values. Maps are of the centred kernel.",
        notes="A ratio that rises means a flatter spectrum; the thesis' figure 6.1 says that it becomes steeper.",
    ),
)
