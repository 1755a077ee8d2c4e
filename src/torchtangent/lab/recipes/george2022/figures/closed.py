"""Plots of the closed forms and of what follows from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from torchtangent.lab.recipes.george2022.measures.closed import expected_ratios, exponents, time_ratios
from torchtangent.lab.study import Arrays
from torchtangent.lab.style import INK, SERIES, legend, panel, series

REFERENCE: dict[str, Any] = {"color": INK, "linewidth": 0.8, "linestyle": ":"}


def paths(regime: str) -> Callable[[Arrays], Figure]:
    """TG-Prop5.4.1: θ_λ of the first seed, integrated and by formula; of the linearized network also as printed."""

    def draw(arrays: Arrays) -> Figure:
        title = {"network": "Network", "linearized": "Linearized network"}[regime]
        figure, axes = panel(title, x="time t", y="θ of a mode")
        t, truth, formula = (arrays[f"{regime}_{name}"] for name in ("times", "integrated", "formula"))
        mu, target = arrays["mu"], arrays["target"]
        for i, mode in enumerate([0, 1, int(np.argmax((mu > 0) & (target < 1e-6))), len(mu) - 1]):
            kind = "μ = 0" if mu[mode] == 0 else "θ* = 0" if target[mode] < 1e-6 else f"mode {mode + 1}"
            axes.plot(t, formula[:, mode], **series(i, marker=""), label=kind)
            axes.plot(t[::2], truth[::2, mode], **series(i, linestyle="", fillstyle="none"))
            if regime == "linearized" and mode < 2:
                axes.plot(t, arrays["printed_formula"][:, mode], **REFERENCE, label=None if i else "as printed")
        axes.plot([], [], color=INK, marker="o", linestyle="", fillstyle="none", label="integrated")
        legend(figure)
        return figure

    return draw


def times(regime: str) -> Callable[[Arrays], Figure]:
    """TG-Eq5.4.7: times by formulas over the true ones."""

    def draw(arrays: Arrays) -> Figure:
        title = {"network": "Network", "linearized": "Linearized network"}[regime]
        figure, axes = panel(title, x="start θ⁰ = σ", y="time by formula over true time")
        for i, (name, label) in enumerate({"small": "for small θ⁰", "printed": "as printed"}.items()):
            ratios = arrays[f"{regime}_{name}"] / arrays[regime]
            axes.fill_between(arrays["sigma"], ratios.min(1), ratios.max(1), color=SERIES[i], alpha=0.2, linewidth=0)
            axes.plot(arrays["sigma"], ratios.mean(1), **series(i), label=label)
        axes.set(xscale="log", ylim=(0.8, 2.3))
        legend(figure)
        return figure

    return draw


def ratios(arrays: Arrays) -> Figure:
    """TG-Eq5.4.7: how much longer one mode takes than another."""
    figure, axes = panel("Network: mode 1 beside others", x="start θ⁰ = σ", y="ratio of times t₁/t")
    expected = expected_ratios(arrays, "labels")
    for i, (found, limit) in enumerate(zip(time_ratios(arrays, "network").T, expected, strict=True)):
        axes.plot(arrays["sigma"], found, **series(i), label=f"mode {i + 2}")
        axes.axhline(limit, **REFERENCE, label=None if i else "ỹ/ỹ₁")
        axes.axhline(1 / limit, color=INK, linewidth=0.8, linestyle="--", label=None if i else "ỹ₁/ỹ, printed")
    axes.set(xscale="log", yscale="log")
    legend(figure)
    return figure


def learned(arrays: Arrays) -> Figure:
    """TG-Eq5.4.8: how much of other modes is learned when one is."""
    figure, axes = panel("When one mode is learned", x="start θ⁰ = σ", y="learned part of another mode")
    for i, ratio in enumerate(arrays["ratios"].tolist()):
        axes.plot(arrays["sigma"], arrays["learned"][:, i], **series(i), label=f"ỹ′/ỹ = {ratio:g}")
    axes.set(xscale="log", ylim=(-0.05, 1.05))
    axes.invert_xaxis()
    legend(figure)
    return figure


def powers(arrays: Arrays) -> Figure:
    """TG-Eq5.4.8: the power of σ, found and as printed."""
    figure, axes = panel("The power of σ in θ*′/θ′ − 1", x="ratio ỹ′/ỹ", y="power")
    axes.plot(arrays["ratios"], exponents(arrays), **series(0, linestyle=""), label="found")
    axes.plot(arrays["ratios"], arrays["ratios"] - 1, **REFERENCE, label="ỹ′/ỹ − 1")
    axes.plot(arrays["ratios"], 2 * arrays["ratios"] - 1, **series(1, marker=""), label="2ỹ′/ỹ − 1, printed")
    axes.axhline(0, color=INK, linewidth=0.5)
    legend(figure)
    return figure
