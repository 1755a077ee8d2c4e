"""Plots of effective ranks and alignments."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from torchtangent.lab.study import Arrays
from torchtangent.lab.style import INK, SERIES, legend, panel, series


def effective_ranks(arrays: Arrays) -> Figure:
    """TG-erank/Tk/CKA: effective rank against rank."""
    figure, axes = panel("Effective rank of random kernels", x="rank", y="effective rank")
    ranks = arrays["ranks"]
    axes.plot(ranks, arrays["eranks"], **series(0, linestyle=""), label="falling eigenvalues")
    axes.plot(ranks, arrays["erank_flat"], **series(1, linestyle="", markersize=3), label="equal eigenvalues")
    ends = np.array([1, ranks.max()])
    for low in (ends, np.ones(2)):
        axes.plot(ends, low, color=INK, linewidth=0.8, linestyle=":")
    axes.locator_params(integer=True)
    axes.set(ylim=(0, None))
    legend(figure)
    return figure


def layer_alignment(arrays: Arrays) -> Figure:
    """TG-erank/Tk/CKA: CKA of the kernels of all parameters, before and after training."""
    figure, axes = panel("Alignment of each parameter's kernel", y="CKA with the labels")
    names = [*arrays["layers"].tolist(), "all"]
    values = np.column_stack([arrays["layer_cka"], arrays["total_cka"]])
    at = np.arange(len(names))
    for i, label in enumerate(("at initialization", "after training")):
        axes.bar(at + 0.4 * i - 0.2, values[i], 0.38, color=SERIES[i], label=label)
    axes.set_xticks(at, names, rotation=45, ha="right")
    axes.grid(visible=False, axis="x")
    legend(figure)
    return figure
