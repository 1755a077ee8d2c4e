"""Plots of the disk: eigenfunctions, spectra, alignment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import pi

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle

from torchtangent.lab.recipes.baratin2021.measures.disk import ratio, weighted_roundness
from torchtangent.lab.study import Arrays
from torchtangent.lab.style import INK, MAP, SERIES, legend, panel, series

_COLUMNS = 3
_STEPS = "iteration + 1"


def _band(axes: Axes, x: np.ndarray, values: np.ndarray, i: int, label: str) -> None:
    """The mean over seeds and their range; values are (seed, x)."""
    axes.fill_between(x, values.min(0), values.max(0), color=SERIES[i], alpha=0.18, linewidth=0)
    axes.plot(x, values.mean(0), **series(i, markersize=3), label=label)


def _published(axes: Axes, arrays: Arrays, x: Sequence[int], y: Sequence[float], label: str = "published") -> None:
    """Stars at published values, if the run has that many steps."""
    if arrays["steps"][-1] + 1 == x[-1]:
        axes.plot(x, y, linestyle="", marker="*", markersize=10, color=INK, label=label or None)


def functions(drawn: int) -> Callable[[Arrays], Figure]:
    """TG-Fig6.1, TG-FigB.4: eigenfunctions of the centred kernel at one iteration, at the largest rate."""

    def draw(arrays: Arrays) -> Figure:
        step, shown = int(arrays["drawn"][drawn]), arrays["shown"].tolist()
        tiles = arrays["functions"][-1, drawn].astype(float).T
        side = round(tiles.shape[1] ** 0.5)
        gap = max(1, side // 12)
        rows = -(-len(tiles) // _COLUMNS)
        mosaic = np.full((rows * (side + gap) - gap, _COLUMNS * (side + gap) - gap), np.nan)
        figure, axes = panel(f"Iteration {step}", x="eigenfunctions of the tangent kernel", height=3.1)
        for k, tile in enumerate(tiles):
            top, left = (rows - 1 - k // _COLUMNS) * (side + gap), k % _COLUMNS * (side + gap)
            mosaic[top : top + side, left : left + side] = (tile / np.abs(tile).max()).reshape(side, side)
            centre = (left + (side - 1) / 2, top + (side - 1) / 2)
            axes.add_patch(
                Circle(centre, (2 / pi) ** 0.5 * (side - 1) / 2, fill=False, color="white", linewidth=1, linestyle=":")
            )
            axes.text(
                left + 0.06 * side, top + 0.94 * side, str(shown[k]), color="white", va="top", ha="left", fontsize=8
            )
        axes.imshow(mosaic, cmap=MAP, vmin=-1, vmax=1, origin="lower", interpolation="nearest")
        axes.set(xticks=[], yticks=[])
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
        return figure

    return draw


def centred_ratio(arrays: Arrays) -> Figure:
    """TG-Fig6.1: λ₂₀/λ₁ of the centred kernel along training."""
    figure, axes = panel("Centred kernel", x=_STEPS, y="λ₂₀ / λ₁")
    x = arrays["steps"] + 1
    for i, lr in enumerate(arrays["lrs"]):
        _band(axes, x, ratio(arrays, "centred")[i], i, f"lr {lr:g}")
    _published(axes, arrays, [1, 2001], [0.015, 0.002])
    axes.set(xscale="log", yscale="log")
    legend(figure)
    return figure


def uncentred_ratio(arrays: Arrays) -> Figure:
    """TG-Fig6.1: the same of the uncentred kernel, eigenvalues and singular values, at the largest rate."""
    figure, axes = panel("Uncentred kernel", x=_STEPS, y="relative to the first")
    x, values = arrays["steps"] + 1, ratio(arrays, "uncentred")[-1]
    _band(axes, x, values, 0, "λ₂₀ / λ₁")
    _band(axes, x, np.sqrt(values), 1, "√(λ₂₀ / λ₁)")
    _published(axes, arrays, [1, 2001], [0.015, 0.002])
    axes.set(xscale="log", yscale="log")
    legend(figure)
    return figure


def spectra(arrays: Arrays) -> Figure:
    """TG-Fig6.1: leading eigenvalues of the centred kernel at some iterations, at the largest rate."""
    figure, axes = panel("Spectrum, centred", x="index j", y="λⱼ / λ₁")
    values = arrays["eigenvalues_centred"][-1]
    index = np.arange(1, values.shape[-1] + 1)
    for i, step in enumerate(arrays["drawn"].tolist()):
        at = arrays["steps"].tolist().index(step)
        _band(axes, index, values[:, at] / values[:, at, :1], i, f"iteration {step}")
    axes.set(yscale="log")
    axes.locator_params(axis="x", integer=True)
    legend(figure)
    return figure


def alignment(arrays: Arrays) -> Figure:
    """TG-Fig6.1: CKA along training on the grid, and at the largest rate on the training points."""
    figure, axes = panel("Alignment with the labels", x=_STEPS, y="CKA")
    x = arrays["steps"] + 1
    for i, lr in enumerate(arrays["lrs"]):
        _band(axes, x, arrays["cka"][i], i, f"grid, lr {lr:g}")
    axes.plot(x, arrays["cka_train"][-1].mean(0), **series(2, marker=""), label=f"points, lr {arrays['lrs'][-1]:g}")
    axes.set(xscale="log", ylim=(0, None))
    legend(figure)
    return figure


def rank(arrays: Arrays) -> Figure:
    """TG-Fig6.1: the effective rank of the centred kernel on the training points."""
    return _along(arrays, arrays["rank_train"], "Effective rank, training points", "effective rank")


def loss(arrays: Arrays) -> Figure:
    """TG-Fig6.1: the training loss."""
    return _along(arrays, arrays["loss"], "Training loss", "binary cross-entropy")


def roundness(arrays: Arrays) -> Figure:
    """TG-FigB.4: rotation invariance of the leading eigenfunctions along training."""
    return _along(arrays, weighted_roundness(arrays), "Rotation invariance", "roundness, first five")


def together(arrays: Arrays) -> Figure:
    """TG-FigB.4: rotation invariance of the first twenty eigenfunctions together."""
    return _along(arrays, arrays["roundness_together"], "… of the first twenty together", "roundness of Σ λⱼ uⱼ²")


def energy(arrays: Arrays) -> Figure:
    """TG-FigB.4: the labels' energy along training."""
    return _along(arrays, arrays["energy"], "Labels in the first five", "‖Φᵀy‖ / ‖y‖")


def _along(arrays: Arrays, values: np.ndarray, title: str, y: str) -> Figure:
    figure, axes = panel(title, x=_STEPS, y=y)
    for i, lr in enumerate(arrays["lrs"]):
        _band(axes, arrays["steps"] + 1, values[i], i, f"lr {lr:g}")
    axes.set(xscale="log", ylim=(0, None))
    legend(figure)
    return figure


def round_by_index(arrays: Arrays) -> Figure:
    """TG-FigB.4: the roundness of each leading eigenfunction before and after training, at the largest rate."""
    figure, axes = panel("Eigenfunctions, one by one", x="index j", y="roundness")
    values = arrays["roundness"][-1]
    index = np.arange(1, values.shape[-1] + 1)
    for i, (label, at) in enumerate({"before training": 0, "after": -1}.items()):
        _dots(axes, index + 0.16 * i - 0.08, values[:, at], i, label)
    axes.set(ylim=(-0.03, 1.03), xticks=index)
    legend(figure)
    return figure


def _dots(axes: Axes, x: np.ndarray, values: np.ndarray, i: int, label: str) -> None:
    """Means over seeds, with bars to the extremes."""
    mean = values.mean(0)
    ends = np.abs(np.stack([values.min(0), values.max(0)]) - mean)
    axes.errorbar(x, mean, ends, **series(i, linestyle="", capsize=2), label=label)


def singular_values(arrays: Arrays) -> Figure:
    """TG-Fig6.1-notebook: singular values of J along training."""
    figure, axes = panel("Singular values of J / N", x=_STEPS, y="σ / N")
    points = arrays["functions"].shape[2]
    for i, (j, published) in enumerate({0: (0.0230, 0.522), 5: (0.00128, 0.118)}.items()):
        _band(axes, arrays["steps"] + 1, np.sqrt(arrays["eigenvalues"][0, ..., j]) / points, i, f"index {j}")
        _published(axes, arrays, [1, 3000], published, label="published" if i else "")
    axes.set(xscale="log", yscale="log")
    legend(figure)
    return figure


def both_ratios(arrays: Arrays) -> Figure:
    """TG-Fig6.1-notebook: the sixth value over the first, centred and not."""
    figure, axes = panel("Sixth over first", x=_STEPS, y="ratio of singular values")
    for i, kernel in enumerate(("uncentred", "centred")):
        _band(axes, arrays["steps"] + 1, np.sqrt(ratio(arrays, kernel, 6)[0]), i, kernel)
    _published(axes, arrays, [1, 3000], [0.056, 0.226])
    axes.set(xscale="log", yscale="log")
    legend(figure)
    return figure
