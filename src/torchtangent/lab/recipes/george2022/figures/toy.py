"""Plots of the yin-yang task."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle

from torchtangent.lab.measures import standard_error
from torchtangent.lab.recipes.george2022.measures.toy import common, differences, fixed, maps, runs
from torchtangent.lab.recipes.george2022.toy import REGIMES, REGIONS
from torchtangent.lab.study import Arrays
from torchtangent.lab.style import INK, SERIES, legend, panel, series

_CENTRES = ((0.5, -0.5), (-0.5, 0.5))


def task(axes: Axes) -> None:
    """The disks and the boundary between the classes."""
    for centre in _CENTRES:
        axes.add_patch(Circle(centre, 0.3, fill=False, edgecolor=INK, linewidth=1.2))
    axes.plot([-1, 1], [0, 0], color=INK, linewidth=1.2)


def difference(index: int) -> Callable[[Arrays], Figure]:
    """TG-Fig5.1: the map of Δloss at one level of the training loss."""

    def draw(arrays: Arrays) -> Figure:
        levels = fixed(arrays, "levels")
        at = min(index, len(levels) - 1)
        count = int(common(arrays)[at].sum())
        title = f"At training loss {levels[at]:g}, {count} run{'s' if count != 1 else ''}"
        figure, axes = panel(title, x="x₁", y="x₂", height=3.6)
        values = maps(arrays)[0, at]
        side = round(len(values) ** 0.5)
        image, scale = values.reshape(side, side), max(float(np.abs(values).max()), 1e-9)
        # Half a cell beyond the outer points, which lie on the square's edge.
        edge = 1 + 1 / (side - 1)
        shown = axes.imshow(
            image, origin="lower", extent=(-edge, edge, -edge, edge), cmap="RdBu_r", vmin=-scale, vmax=scale
        )
        axis = np.linspace(-1, 1, side)
        axes.contour(axis, axis, image, levels=[0.0], colors=INK, linewidths=0.7, linestyles=":")
        task(axes)
        axes.set(xlim=(-edge, edge), ylim=(-edge, edge))
        axes.grid(visible=False)
        bar = figure.colorbar(shown, ax=axes, shrink=0.8)
        bar.set_label("Δloss: α = 1 less α = 100")
        return figure

    return draw


def training(arrays: Arrays) -> Figure:
    """TG-Fig5.1: training losses, the mean over runs and one standard deviation."""
    figure, axes = panel("Training", x="iteration", y="training loss")
    iterations, ends, curves = fixed(arrays, "iterations"), runs(arrays, "ends"), runs(arrays, "losses")
    for i, name in enumerate(REGIMES):
        seen = (iterations > 0) & (iterations <= ends[i].min())
        t, losses = iterations[seen], curves[i][seen]
        mean, deviation = losses.mean(1), losses.std(1)
        axes.fill_between(t, mean - deviation, mean + deviation, color=SERIES[i], alpha=0.2, linewidth=0)
        axes.plot(t, mean, **series(i, markevery=(2 * i, 6)), label=name)
    for level in fixed(arrays, "levels"):
        axes.axhline(level, color=INK, linewidth=0.6, linestyle=":")
    axes.set(xscale="log", ylim=(0, None))
    legend(figure)
    return figure


def regions(arrays: Arrays) -> Figure:
    """TG-Fig5.1: Δloss by region and level, with two standard errors."""
    figure, axes = panel("Δloss by region", x="training loss", y="loss (α = 1) − loss (α = 100)")
    for i, region in enumerate(REGIONS):
        found = differences(arrays, region)
        axes.errorbar(
            [level + 0.006 * (i - 1) for level in found],
            [values.mean() for values in found.values()],
            yerr=[2 * standard_error(values) for values in found.values()],
            capsize=2,
            label=region,
            **series(i),
        )
    axes.axhline(0, color=INK, linewidth=0.8, linestyle=":")
    axes.invert_xaxis()
    legend(figure)
    return figure


def distances(arrays: Arrays) -> Figure:
    """TG-Fig5.1: how far networks are from their linearizations, the mean over runs and their range."""
    figure, axes = panel("Distance from the linearized network", x="iteration", y="relative distance on the grid")
    marks = fixed(arrays, "marks")
    for i, values in enumerate(runs(arrays, "distances")):
        axes.fill_between(marks, values.min(1), values.max(1), color=SERIES[i], alpha=0.2, linewidth=0)
        axes.plot(marks, values.mean(1), **series(i), label=REGIMES[i])
    axes.set(xscale="log", yscale="log")
    legend(figure)
    return figure
