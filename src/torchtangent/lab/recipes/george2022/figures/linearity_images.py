"""Plots of how linear training on images is."""

from __future__ import annotations

from collections.abc import Callable

from matplotlib.figure import Figure

from torchtangent.lab.recipes.george2022.figures.bands import band
from torchtangent.lab.recipes.george2022.measures.linearity_images import EXPERIMENTS, curve
from torchtangent.lab.recipes.george2022.measures.seen import pairs
from torchtangent.lab.study import Arrays
from torchtangent.lab.style import legend, panel, series


def against_linearized(arrays: Arrays) -> Figure:
    """TG-Fig5.2-right: the distance from the linearized network on the same batches."""
    figure, axes = panel("Distance from the linearized network", x="step", y="relative to how far it moved")
    looks = arrays["against-linearized/looks"]
    alphas = arrays["against-linearized/alphas"]
    for i, (alpha, errors) in enumerate(zip(alphas, arrays["against-linearized/errors"], strict=True)):
        axes.plot(looks, errors, **series(i), label=f"α = {alpha:g}")
    axes.set(xscale="log", yscale="log")
    legend(figure)
    return figure


def linearity(title: str) -> Callable[[Arrays], Figure]:
    """TG-Fig5.2-right: the three measures for both α."""
    parts, groups = EXPERIMENTS[title]

    def draw(arrays: Arrays) -> Figure:
        figure, axes = panel(f"{title}: — α = 1,  - - α = 100", x="training loss", y="similarity to the start")
        for i, name in enumerate(("signs", "kernel", "representation")):
            for j, linestyle in enumerate(("-", "--")):
                seen = [curve(pair[j], name, groups) for pair in pairs(arrays, parts)]
                line = series(i, linestyle=linestyle, markevery=7)
                band(axes, seen, **line, label=None if j else name)
        axes.set(ylim=(min(0.5, axes.get_ylim()[0]), 1.02))
        axes.invert_xaxis()
        legend(figure)
        return figure

    return draw
