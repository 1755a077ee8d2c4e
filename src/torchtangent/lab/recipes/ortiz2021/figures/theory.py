"""Plots of the identities, from arrays alone."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from torchtangent.lab.recipes.ortiz2021.figures import REFERENCE
from torchtangent.lab.recipes.ortiz2021.measures.theory import subscript
from torchtangent.lab.study import Arrays
from torchtangent.lab.style import SERIES, legend, panel, series


def linearization_error(arrays: Arrays) -> Figure:
    """OJ-Eq1: the difference of network and linearization against step length."""
    figure, axes = panel("Network minus linearization", x="step ‖θ − θ₀‖ / ‖θ₀‖", y="RMS difference of outputs")
    steps = arrays["steps"]
    for i, (name, errors) in enumerate(zip(arrays["networks"].tolist(), arrays["errors"], strict=True)):
        axes.fill_between(steps, errors.min(0), errors.max(0), color=SERIES[i], alpha=0.2, linewidth=0)
        axes.plot(steps, np.median(errors, 0), **series(i), label=name)
    short = steps[steps <= 0.1]
    start = 0.2 * arrays["errors"][..., 0].min()
    axes.plot(short, start * (short / short[0]) ** 2, **REFERENCE, label="slope 2")
    axes.set(xscale="log", yscale="log")
    legend(figure)
    return figure


def _diagonal(axes: Axes, low: float, high: float) -> None:
    axes.plot([low, high], [low, high], **REFERENCE)
    axes.set(xscale="log", yscale="log")


def distances(arrays: Arrays) -> Figure:
    """OJ-Eq3: how far parameters are, against the norm of their function."""
    figure, axes = panel(
        "Same function, other parameters", x="norm of the function", y="distance of parameters ‖θ − θ₀‖"
    )
    norm, found = arrays["mercer"], arrays["distances"]
    for i, group in enumerate(dict.fromkeys(arrays["groups"].tolist())):
        chosen = arrays["groups"] == group
        look = series(i, linestyle="")
        axes.plot(norm[chosen], found[chosen, 0], **look, label=group)
        axes.plot(norm[chosen], found[chosen, 1:], **look, fillstyle="none")
    _diagonal(axes, norm.min(), found.max())
    legend(figure)
    return figure


def three_ways(arrays: Arrays) -> Figure:
    """OJ-Lem1: α of every target by three formulas."""
    figure, axes = panel("One number, three formulas", x="target", y="alignment α")
    sorted_ = np.argsort(-arrays["kernel"])
    place = np.arange(1, len(sorted_) + 1)
    axes.plot(place, arrays["kernel"][sorted_], **series(0, marker=""), label="kernel")
    axes.plot(
        place, arrays["spectrum"][sorted_], **series(1, linestyle="", markersize=7, fillstyle="none"), label="spectrum"
    )
    axes.plot(place, arrays["backward"][sorted_], **series(2, linestyle=""), label="backward pass")
    axes.set(yscale="log")
    legend(figure)
    return figure


def bound(arrays: Arrays) -> Figure:
    """OJ-Lem1: norms over their lower bounds."""
    figure, axes = panel("Squared norm and its lower bound", x="bound ‖f‖₂⁴ / α", y="squared norm")
    for i, group in enumerate(dict.fromkeys(arrays["groups"].tolist())):
        chosen = arrays["groups"] == group
        axes.plot(arrays["bound"][chosen], arrays["norm_squared"][chosen], **series(i, linestyle=""), label=group)
    _diagonal(axes, arrays["bound"].min(), arrays["norm_squared"].max())
    legend(figure)
    return figure


def stein(arrays: Arrays) -> Figure:
    """OJ-Thm1: the ratio of both sides against the number of inputs."""
    figure, axes = panel("Lemma 1 over second derivatives", x="inputs", y="ratio of α's two forms")
    for i, j in enumerate(arrays["indices"].tolist()):
        look = series(i, marker="")
        axes.plot(arrays["sizes"], arrays["plain"][:, i] / arrays["hessian"][i], **look, label=f"v{subscript(j + 1)}")
        ratio = arrays["extrapolated"][:, i] / arrays["hessian"][i]
        axes.plot(arrays["sizes"], ratio, **series(i, linestyle=""))
    axes.axhline(1, **REFERENCE)
    axes.set(xscale="log", ylim=(0, 2))
    axes.set_xticks(arrays["sizes"], [f"{size:,}" for size in arrays["sizes"].tolist()])
    axes.set_xticks([], minor=True)
    legend(figure)
    return figure
