"""Plots of chapter 4 and appendix A."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from matplotlib.figure import Figure

from torchtangent.lab.study import Arrays
from torchtangent.lab.style import INK, SERIES, legend, panel, series


def independence(arrays: Arrays) -> Figure:
    """TG-Prop4.2.1: error of the factorization against dependence."""
    figure, axes = panel("Error of A ⊗ B", x="strength of dependence ρ", y="relative error")
    rhos, errors = arrays["rhos"], arrays["errors"]
    axes.fill_between(rhos, errors.min(0), errors.max(0), color=SERIES[0], alpha=0.2, linewidth=0)
    axes.plot(rhos, np.median(errors, 0), **series(0))
    axes.set_xscale("symlog", linthresh=rhos[1])
    axes.set_xticks([0, 1e-4, 1e-3, 1e-2, 1e-1, 1])
    axes.set(yscale="log")
    return figure


def errors_scatter(part: str) -> Callable[[Arrays], Figure]:
    """TG-ThmA.2: EKFAC's error against KFAC's."""

    def draw(arrays: Arrays) -> Figure:
        kind = part.replace("-", " ").capitalize()
        figure, axes = panel(kind, x="error of KFAC", y="error of EKFAC")
        kfac, ekfac = arrays[f"{part}/kfac"], arrays[f"{part}/ekfac"]
        if kfac.ndim > 1:
            for i in range(kfac.shape[1]):
                look = series(i, linestyle="")
                axes.plot(kfac[:, i], ekfac[:, i], **look, label=f"layer {i + 1}")
            legend(figure)
        else:
            axes.plot(kfac, ekfac, linestyle="", marker="o", markersize=2.5, color=SERIES[0], alpha=0.5)
        top = 1.08 * max(kfac.max(), ekfac.max())
        axes.plot([0, top], [0, top], color=INK, linewidth=0.8, linestyle=":")
        axes.set(xlim=(0, top), ylim=(0, top))
        return figure

    return draw


def damping(arrays: Arrays) -> Figure:
    """TG-A.4: what damping both factors adds to each eigenvalue."""
    figure, axes = panel("Damping of each eigenvalue", x="eigenvalue of A ⊗ B", y="added")
    for i, (epsilon, added) in enumerate(zip(arrays["epsilons"], arrays["added"], strict=True)):
        look = series(i, linestyle="", markersize=2.5, alpha=0.6)
        axes.plot(arrays["eigenvalues"], added, **look, label=f"ε = {epsilon:g}")
        axes.axhline(epsilon, color=SERIES[i], linewidth=1)
    axes.set(xscale="log", yscale="log", xlim=(1e-6, None))
    legend(figure)
    return figure
