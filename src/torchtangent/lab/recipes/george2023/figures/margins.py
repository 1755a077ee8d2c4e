"""Plots of margin losses and their complexities."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from torchtangent.lab.recipes.george2023.measures import margin_bounds
from torchtangent.lab.study import Arrays
from torchtangent.lab.style import SERIES, legend, panel, series


def contraction(arrays: Arrays) -> Figure:
    """TG-Margin: the complexity of the losses and its bounds against γ."""
    figure, axes = panel("Complexity of the margin losses", x="margin γ", y="Rademacher complexity")
    curves = {"2 classes": "binary", "bound": "binary_bound", "3 classes": "multi", "their bound": "multi_bound"}
    for i, (label, name) in enumerate(curves.items()):
        values = arrays[name]
        axes.fill_between(arrays["gammas"], values.min(0), values.max(0), color=SERIES[i], alpha=0.2, linewidth=0)
        axes.plot(arrays["gammas"], np.median(values, 0), **series(i), label=label)
    axes.set(xscale="log", yscale="log")
    legend(figure)
    return figure


def gaps(arrays: Arrays) -> Figure:
    """TG-Margin: the worst gap of every sample beside the bound."""
    figure, axes = panel("Worst gap in the class, and bounds", x="gap or bound", y="samples")
    bins = np.linspace(-0.1, 0.8, 46).tolist()
    bounds = margin_bounds(arrays)
    for i, gamma in enumerate(arrays["gap_gammas"]):
        for k, (label, values) in enumerate({"gap": arrays["gap"][:, i], "bound": bounds[:, i]}.items()):
            look = series(2 * i + k, marker="")
            axes.hist(
                values, bins=bins, histtype="step", linewidth=1.5, color=look["color"], linestyle=look["linestyle"]
            )
            axes.plot([], [], **look, label=f"{label}, γ = {gamma:g}")
    legend(figure)
    return figure
