"""Figures B.1 and B.2."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from torchtangent.lab.recipes.george2023.measures import cosine_energy
from torchtangent.lab.study import Arrays
from torchtangent.lab.style import INK, MAP, SERIES, SOFT, legend, panel, series


def perturbations(arrays: Arrays) -> Figure:
    """TG-FigB.1: displacement of the outputs along singular and random directions."""
    figure, axes = panel("Same step, different directions", x="index of direction", y="change of the outputs, RMS")
    index = np.arange(1, len(arrays["moved_singular"]) + 1)
    first_order = arrays["step"] * arrays["singular_values"] / np.sqrt(arrays["samples"])
    axes.plot(index, first_order, **series(2, marker=""), label="singular, to first order")
    axes.plot(index, arrays["moved_singular"], **series(0), label="singular")
    axes.plot(index, arrays["moved_random"], **series(1, linestyle=""), label="random")
    axes.set(ylim=(0, None))
    legend(figure)
    return figure


def line_eigenvectors(arrays: Arrays) -> Figure:
    """TG-FigB.2: three eigenvectors."""
    figure, axes = panel("Eigenvectors", x="x", y="")
    vectors = arrays["eigenvectors"][0, 0]
    for i, j in enumerate((0, 5, 20)):
        v = vectors[:, j] / np.abs(vectors[:, j]).max()
        axes.plot(arrays["x"], 2.3 * -i + np.sign(v[0]) * v, **series(i, markersize=2.5, linestyle="-"))
    axes.set_yticks([0, -2.3, -4.6], ["j = 0", "5", "20"])
    return figure


def line_fourier(arrays: Arrays) -> Figure:
    """TG-FigB.2: energy of eigenvectors at each cosine frequency."""
    figure, axes = panel("Energy by frequency", x="eigenvector index j", y="cosine frequency")
    image = axes.imshow(np.sqrt(cosine_energy(arrays).mean(0)), origin="lower", cmap=MAP, vmin=0, vmax=1)
    bar = figure.colorbar(image, ax=axes, shrink=0.8)
    bar.set_label("amplitude")
    bar.outline.set_edgecolor(SOFT)
    axes.grid(visible=False)
    return figure


def line_spectrum(arrays: Arrays) -> Figure:
    """TG-FigB.2: the spectrum relative to its first value."""
    figure, axes = panel("Spectrum", x="index", y="relative to the first")
    ratio = arrays["eigenvalues"][0] / arrays["eigenvalues"][0][:, :1]
    index = np.arange(1, ratio.shape[1] + 1)
    for i, (label, values) in enumerate({"eigenvalues": ratio, "singular values": np.sqrt(ratio.clip(0))}.items()):
        axes.fill_between(index, values.min(0), values.max(0), color=SERIES[i], alpha=0.2, linewidth=0)
        axes.plot(index, np.median(values, 0), **series(i, markersize=2.5), label=label)
    axes.plot([10], [0.04], marker="*", markersize=11, linestyle="", color=INK, label="published, 4 %")
    axes.set(yscale="log", ylim=(1e-10, 2))
    legend(figure)
    return figure
