"""Plots of the three examples, solved exactly (figure 5.4) and with a plain linear network (figure C.9)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from torchtangent.lab.recipes.george2022.measures.examples import gaps_by_core
from torchtangent.lab.study import Arrays
from torchtangent.lab.style import INK, SERIES, legend, panel, series

REFERENCE: dict[str, Any] = {"color": INK, "linewidth": 0.8, "linestyle": ":"}
TITLES = {"network": "Network", "linearized": "Linearized network"}
PLAIN = {"network": "Plain network, α = 0.1", "linearized": "Plain network, α = 10"}


def modes(regime: str) -> Callable[[Arrays], Figure]:
    """TG-Ex1: how much of every mode is learned."""

    def draw(arrays: Arrays) -> Figure:
        figure, axes = panel(TITLES[regime], x="time t", y="part that is learned, θ/θ*")
        _modes(axes, arrays[f"{regime}_times"], arrays[f"{regime}_learned"][None])
        legend(figure)
        return figure

    return draw


def plain_modes(regime: str) -> Callable[[Arrays], Figure]:
    """TG-FigC.9, example 1: the same of a plain network, over seeds."""

    def draw(arrays: Arrays) -> Figure:
        figure, axes = panel(f"1. {PLAIN[regime]}", x="step", y="part that is learned, f/y")
        _modes(axes, arrays[f"plain-1/{regime}_steps"], arrays[f"{regime}_learned"])
        legend(figure)
        return figure

    return draw


def _modes(axes: Axes, times: np.ndarray, learned: np.ndarray) -> None:
    """One line a mode."""
    for i in range(learned.shape[2]):
        curves = learned[:, :, i]
        every = max(1, len(times) // 10)
        axes.plot(times, curves.mean(0), **series(i, markevery=(i * every // 5, every)), label=f"mode {i + 1}")
        _band(axes, times, curves, i)
    axes.set(ylim=(-0.05, 1.1))


def starts(arrays: Arrays) -> Figure:
    """TG-Ex-init: the linearized network from both starts."""
    figure, axes = panel("Linearized network, two starts", x="time t", y="part that is learned, θ/θ*")
    times = arrays["linearized_times"]
    for i, (name, label) in enumerate({"": "θ⁰ = σ", "_printed": "θ⁰ = σ/2, from w⁰ = √σ"}.items()):
        learned = arrays[f"linearized_learned{name}"]
        axes.fill_between(times, learned.min(1), learned.max(1), color=SERIES[i], alpha=0.2, linewidth=0)
        axes.plot(times, learned.min(1), **series(i, markevery=25), label=label)
    axes.axhline(0.9, **REFERENCE, label="90 %")
    legend(figure)
    return figure


def groups(name: str, regime: str, labels: Sequence[str], top: float | None = None) -> Callable[[Arrays], Figure]:
    """TG-Ex2, TG-Ex3: the errors of both groups, over bases or for the first λ."""

    def draw(arrays: Arrays) -> Figure:
        title = TITLES[regime] + (", bad basis" if name == "aligned" else "")
        figure, axes = panel(title, x="time t", y="mean squared error")
        errors = arrays[f"{regime}_{name}"]
        _groups(axes, arrays[f"{regime}_times"], errors[:1] if name == "errors" else errors, labels)
        if top is not None:
            axes.axhline(top, **REFERENCE)
        axes.set(ylim=(0, None))
        axes.locator_params(axis="x", nbins=6)
        legend(figure)
        return figure

    return draw


def plain_groups(part: str, regime: str, labels: Sequence[str]) -> Callable[[Arrays], Figure]:
    """TG-FigC.9, examples 2 and 3: the same of a plain network, over seeds."""

    def draw(arrays: Arrays) -> Figure:
        figure, axes = panel(f"{part[-1]}. {PLAIN[regime]}", x="step", y="mean squared error")
        _groups(axes, arrays[f"{part}/{regime}_steps"], arrays[f"{part}/{regime}_errors"], labels)
        axes.set(ylim=(0, None))
        legend(figure)
        return figure

    return draw


def _groups(axes: Axes, times: np.ndarray, errors: np.ndarray, labels: Sequence[str]) -> None:
    for i, label in enumerate(labels):
        curves = errors[:, i]
        axes.plot(times, curves.mean(0), **series(i, markevery=max(1, len(times) // 10)), label=label)
        _band(axes, times, curves, i)


def _band(axes: Axes, times: np.ndarray, curves: np.ndarray, i: int) -> None:
    """Two standard errors over seeds or bases on both sides of the mean."""
    if len(curves) > 1:
        mean, error = curves.mean(0), curves.std(0, ddof=1) / len(curves) ** 0.5
        axes.fill_between(times, mean - 2 * error, mean + 2 * error, color=SERIES[i], alpha=0.2, linewidth=0)


def gaps(arrays: Arrays) -> Figure:
    """TG-Ex3: the gap between the groups at equal progress, for every λ."""
    figure, axes = panel("Gap at half the error", x="strength λ of the core feature", y="minority less majority")
    for i, (name, values) in enumerate(gaps_by_core(arrays).items()):
        axes.plot(arrays["cores"], values, **series(i), label=TITLES[name].lower())
    axes.axhline(0, **REFERENCE)
    legend(figure)
    return figure
