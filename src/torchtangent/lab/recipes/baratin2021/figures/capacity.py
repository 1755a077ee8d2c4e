"""Plots of capacity measures beside the generalization gap."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from matplotlib.figure import Figure

from torchtangent.lab.recipes.baratin2021.measures.capacity import (
    FOLLOWS,
    OURS,
    THEIRS,
    capacities,
    correlations,
    gap,
    reached,
)
from torchtangent.lab.study import Arrays
from torchtangent.lab.style import INK, legend, panel, series

_LABELS = {
    "widths": "hidden units",
    "corruption": "share of random labels",
    "channels": "channels of the first layer",
}
_NAMES = {
    OURS: "C, of the trajectory",
    THEIRS: "Neyshabur et al. 2019",
    "l1_inf": "L1,∞",
    "frobenius": "Frobenius product",
    "l3_1.5": "L3,1.5",
    "spectral": "spectral product",
    "spectral_l21": "spectral, L2,1",
    "spectral_frobenius": "spectral, Frobenius",
    "path_1": "path norm, p = 1",
    "path_2": "path norm, p = 2",
    "fisher_rao": "Fisher–Rao",
    "parameters": "parameters",
}


def sweep(part: str, title: str) -> Callable[[Arrays], Figure]:
    """TG-Fig6.6: C and the gap, each over its largest mean; hollow marks: runs that did not come to the goal."""

    def draw(arrays: Arrays) -> Figure:
        figure, axes = panel(title, x=_LABELS[part], y="relative to the largest mean")
        values, done = arrays[f"{part}/values"], reached(arrays, part)
        curves = {"generalization gap": gap(arrays, part), "complexity C": arrays[f"{part}/complexity"]}
        for i, (label, table) in enumerate(curves.items()):
            table = table / np.abs(table.mean(1)).max()
            axes.plot(values, table.mean(1), **series(i, marker=""), label=label)
            for s in range(table.shape[1]):
                for shown, fill in ((done[:, s], "full"), (~done[:, s], "none")):
                    look = series(i, linestyle="", markersize=3.5, fillstyle=fill)
                    axes.plot(values[shown], table[shown, s], **look)
        if part != "corruption":
            axes.set(xscale="log")
            axes.set_xticks(values, [f"{value:g}" for value in values])
            axes.minorticks_off()
        axes.set(ylim=(0, None))
        legend(figure)
        return figure

    return draw


def rank_correlations(arrays: Arrays) -> Figure:
    """TG-Fig6.6: rank correlation of every measure with the gap, for all three sweeps."""
    figure, axes = panel("Who follows the gap", x="rank correlation with the gap", height=4.2)
    names = [name for name in _NAMES if name in capacities(arrays, "widths")]
    for i, part in enumerate(_LABELS):
        known = capacities(arrays, part)
        at = [(k, float(np.mean(correlations(arrays, part, name)))) for k, name in enumerate(names) if name in known]
        axes.plot([value for _, value in at], [k + 0.2 * (i - 1) for k, _ in at], **series(i, linestyle=""), label=part)
    axes.axvline(FOLLOWS, color=INK, linewidth=0.8, linestyle=":")
    axes.set_yticks(range(len(names)), [_NAMES[name] for name in names])
    axes.set(xlim=(-1.1, 1.1), ylim=(len(names) - 0.5, -0.5))
    legend(figure)
    return figure
