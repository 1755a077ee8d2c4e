"""Plots of complexities, bounds and rescalings."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from matplotlib.figure import Figure

from torchtangent.lab.study import Arrays
from torchtangent.lab.style import INK, legend, panel, series


def tightness(arrays: Arrays) -> Figure:
    """TG-Thm6.4.1: how close complexities come to their bounds."""
    figure, axes = panel("Complexity over bound", x="random classes, sorted (%)", y="ratio")
    kinds = {"one ball": "single", "sequence": "sequence", "c classes": "multiclass"}
    for i, (label, name) in enumerate(kinds.items()):
        values = np.sort(arrays[name])
        axes.plot(100 * (np.arange(len(values)) + 0.5) / len(values), values, **series(i, marker=""), label=label)
    axes.axhline(1, color=INK, linewidth=0.8, linestyle=":")
    axes.set(ylim=(0.6, 1.02))
    legend(figure)
    return figure


def along_training(arrays: Arrays) -> Figure:
    """TG-Thm6.4.1: complexity and bound of a network's steps so far."""
    figure, axes = panel("What a network's steps can reach", x="step", y="complexity R̂ or bound, summed")
    index = np.arange(1, len(arrays["bounds"]) + 1)
    for i, metric in enumerate(arrays["metrics"].tolist()):
        axes.plot(index, arrays["bounds"][:, i], **series(2 * i, marker=""), label=f"bound, {metric}")
        axes.plot(index, arrays["complexities"][:, i], **series(2 * i + 1, marker=""), label=f"R̂, {metric}")
    axes.locator_params(axis="x", integer=True)
    axes.set(ylim=(0, None))
    legend(figure)
    return figure


def scales(problem: str, title: str) -> Callable[[Arrays], Figure]:
    """TG-PropB.2.5: scales found numerically and by the formula."""

    def draw(arrays: Arrays) -> Figure:
        figure, axes = panel(title, x="direction j, by eigenvalue", y="scale ν (geometric mean 1)")
        i = arrays["problems"].tolist().index(problem)
        index = np.arange(1, len(arrays["eigenvalues"]) + 1)
        axes.plot(index, arrays["formula"][i], **series(0, marker=""), label="formula")
        axes.plot(index, arrays["numeric"][i, 0], **series(1, linestyle=""), label="found numerically")
        axes.set(yscale="log")
        legend(figure)
        return figure

    return draw
