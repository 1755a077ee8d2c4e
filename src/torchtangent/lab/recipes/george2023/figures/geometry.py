"""Plots of chapter 2."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from matplotlib.figure import Figure

from torchtangent.lab.recipes.george2023.measures import bounds
from torchtangent.lab.study import Arrays
from torchtangent.lab.style import INK, SERIES, legend, panel, series


def gaussian_pair(pair: int) -> Callable[[Arrays], Figure]:
    """TG-Fig2.1: the densities of a pair, with their central 95 %."""

    def draw(arrays: Arrays) -> Figure:
        names = "ABCD"[2 * pair : 2 * pair + 2]
        kl = arrays["kl"][pair]
        figure, axes = panel(f"{names[0]} and {names[1]}: KL = {kl:.3g}", x="x", y="density")
        for i, name in enumerate(names):
            k = 2 * pair + i
            look = series(i, marker="")
            axes.plot(arrays["x"], arrays["density"][k], **look, label=name)
            half = 1.96 * np.sqrt(arrays["variance"][k])
            low = -0.06 - 0.06 * i
            axes.plot(arrays["mean"][k] + np.array([-half, half]), [low, low], **look, solid_capstyle="butt")
        axes.set(xlim=(-4, 4), ylim=(-0.2, 1.2))
        legend(figure)
        return figure

    return draw


def second_order_ratio(arrays: Arrays) -> Figure:
    """TG-Eq2.4: true distances over quadratic forms against step length."""
    figure, axes = panel("Distance over quadratic form", x="step length ‖δw‖", y="ratio")
    curves = [("‖δf‖² / δwᵀGδw", "l2", "quadratic_l2"), ("KL / δwᵀFδw", "kl", "quadratic_fisher")]
    for i, (label, over, under) in enumerate(curves):
        ratio = arrays[over] / arrays[under]
        axes.fill_between(arrays["steps"], ratio.min(0), ratio.max(0), color=SERIES[i], alpha=0.2, linewidth=0)
        axes.plot(arrays["steps"], np.median(ratio, 0), **series(i), label=label)
    axes.axhline(0.5, color=INK, linewidth=0.8, linestyle=":")
    axes.text(arrays["steps"][-1], 0.52, "½", ha="right", va="bottom", color=INK)
    axes.set(xscale="log", ylim=(0, 1.6))
    legend(figure)
    return figure


def rademacher_gap(arrays: Arrays) -> Figure:
    """TG-Eq2.4: generalization gaps beside their bounds."""
    figure, axes = panel("Worst gap in the class, and bounds", x="gap or bound", y="samples")
    bins = np.linspace(-0.05, 1.25, 66).tolist()
    shown = {"gap": arrays["gap"], **bounds(arrays)}
    for i, (label, values) in enumerate(shown.items()):
        look = series(i, marker="")
        axes.hist(values, bins=bins, histtype="step", linewidth=1.5, color=look["color"], linestyle=look["linestyle"])
        axes.plot([], [], **look, label=label)
    legend(figure)
    return figure
