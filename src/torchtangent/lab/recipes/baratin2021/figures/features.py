"""Plots of interpolators and their bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from matplotlib.figure import Figure

from torchtangent.lab.recipes.baratin2021.measures.features import tasks
from torchtangent.lab.study import Arrays
from torchtangent.lab.style import SERIES, legend, panel, series


def scatter(extent: int) -> Callable[[Arrays], Figure]:
    """TG-FigB.3, left: centred solutions along two directions."""

    def draw(arrays: Arrays) -> Figure:
        first, later = arrays["directions"].tolist()
        title = f"Solutions, a = {arrays['extents'][extent]:g}"
        figure, axes = panel(title, x=f"along φ, j = {first}", y=f"along φ, j = {later}")
        for i, (c, points) in enumerate(zip(arrays["drawn"].tolist(), arrays["scatter"][extent], strict=True)):
            axes.plot(*points.T, **series(i, linestyle="", markersize=3, alpha=0.7), label=f"c = {c:g}")
        axes.set_aspect("equal", adjustable="datalim")
        legend(figure)
        return figure

    return draw


def deviations(extent: int) -> Callable[[Arrays], Figure]:
    """TG-FigB.3: the deviations of solutions along two directions against c."""

    def draw(arrays: Arrays) -> Figure:
        directions = enumerate(arrays["directions"].tolist())
        shown = {f"along φ, j = {j}": arrays["deviation"][extent, ..., i] for i, j in directions}
        title = f"Scatter of solutions, a = {arrays['extents'][extent]:g}"
        return _against_anisotropy(arrays, extent, shown, title, "standard deviation")

    return draw


def bounds(extent: int) -> Callable[[Arrays], Figure]:
    """TG-FigB.3, right: test error and both bounds against c."""

    def draw(arrays: Arrays) -> Figure:
        names = {"test error": "error", "bound, A = I": "plain", "bound, best A": "best"}
        shown = {label: arrays[name][extent] for label, name in names.items()}
        title = f"Error and bounds, a = {arrays['extents'][extent]:g}"
        return _against_anisotropy(arrays, extent, shown, title, "part of points, or bound")

    return draw


def _against_anisotropy(arrays: Arrays, extent: int, shown: Mapping[str, np.ndarray], title: str, y: str) -> Figure:
    """Means over the seeds that make a task, with their range, on a scale that opens both ends of [0, 1]."""
    use = tasks(arrays)[extent]
    figure, axes = panel(title, x="anisotropy c", y=y)
    c = arrays["anisotropies"]
    for i, (label, values) in enumerate(shown.items()):
        values = values[use]
        axes.fill_between(c, values.min(0), values.max(0), color=SERIES[i], alpha=0.18, linewidth=0)
        axes.plot(c, values.mean(0), **series(i, markersize=3), label=label)
    axes.set(xscale="logit", yscale="log")
    axes.set_xticks([0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999], ["", "0.01", "0.1", "0.5", "0.9", "0.99", ""])
    axes.tick_params(which="minor", axis="x", labelbottom=False, length=0)
    legend(figure)
    return figure
