"""Plots of samples of different difficulty."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from torchtangent.lab.recipes.george2022.figures.bands import band
from torchtangent.lab.recipes.george2022.measures.cscores import BINS, CSCORES, by_bin, decile
from torchtangent.lab.recipes.george2022.measures.seen import Kind, pairs
from torchtangent.lab.study import Arrays
from torchtangent.lab.style import INK, MAP, legend, panel, series

SHOWN = (0, 2, 7, 9)
"""The deciles of the paper's figure."""


def deciles(kind: Kind = "losses", parts: Sequence[str] = CSCORES) -> Callable[[Arrays], Figure]:
    """TG-Fig5.2-topleft, TG-FigC.4, TG-FigC.6: some bins of difficulty against the mean over bins."""
    word, rising = {"losses": ("loss", False), "accuracies": ("accuracy", True)}[kind]

    def draw(arrays: Arrays) -> Figure:
        figure, axes = panel("— α = 1,  - - α = 100", x=f"mean training {word}", y=f"{word} of a decile of C-scores")
        for i, number in enumerate(SHOWN):
            for j in range(2):
                seen = [decile(number, kind)(pair[j]) for pair in pairs(arrays, parts)]
                line = series(i, linestyle="--" if j else "-", markevery=7)
                band(axes, seen, rising=rising, **line, label=None if j else f"decile {number}")
        if not rising:
            axes.invert_xaxis()
        legend(figure)
        return figure

    return draw


def bin_differences(arrays: Arrays) -> Figure:
    """TG-FigC.5: every bin's loss for α = 1 minus that for α = 100."""
    figure, axes = panel("Non-linear minus linear", x="mean training loss", y="difference of a bin's loss")
    colors = matplotlib.colormaps[MAP](np.linspace(0.2, 0.9, len(BINS)))  # not those that light or dark pages swallow
    levels, found = by_bin(arrays)
    for number, values in enumerate(found.T):
        label = {0: "most difficult tenth", len(BINS) - 1: "easiest tenth"}.get(number)
        axes.plot(levels, values, color=colors[number], label=label)
    axes.axhline(0, color=INK, linewidth=0.8, linestyle=":")
    axes.invert_xaxis()
    legend(figure)
    return figure


def by_size(arrays: Arrays) -> Figure:
    """TG-Cscore: how the scores of the samples are distributed, for every size of the subsets."""
    figure, axes = panel("Consistency of samples", x="samples, the most difficult first (%)", y="P(f(x; D) = y)")
    for i, (size, values) in enumerate(zip(arrays["sizes"], arrays["by_size"], strict=True)):
        line = series(i, marker="", linewidth=1)
        axes.plot(np.linspace(0, 100, len(values)), np.sort(values), **line, label=f"|D| = {size}")
    scores = np.sort(arrays["scores"])
    axes.plot(np.linspace(0, 100, len(scores)), scores, color=INK, linewidth=2, label="C-score")
    legend(figure)
    return figure
