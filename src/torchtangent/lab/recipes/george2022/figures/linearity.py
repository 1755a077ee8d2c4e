"""Plots of the measures of linearity."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from matplotlib.figure import Figure

from torchtangent.lab.recipes.george2022.measures.lazy import metric
from torchtangent.lab.study import Arrays
from torchtangent.lab.style import SERIES, legend, panel, series


def linearity(alpha: float) -> Callable[[Arrays], Figure]:
    """TG-5-metrics: similarity to the start against the training loss."""

    def draw(arrays: Arrays) -> Figure:
        figure, axes = panel(f"α = {alpha:g}", x="training loss", y="similarity to the start")
        for i, name in enumerate(arrays["metrics"].tolist()):
            values = metric(arrays, alpha, name)
            axes.fill_between(arrays["levels"], values.min(0), values.max(0), color=SERIES[i], alpha=0.2, linewidth=0)
            label = name.replace("representation, ", "the same, ")  # the legend is narrow
            axes.plot(arrays["levels"], np.median(values, 0), **series(i), label=label)
        axes.invert_xaxis()
        axes.set(ylim=(min(0.4, axes.get_ylim()[0]), 1.02))
        legend(figure)
        return figure

    return draw
