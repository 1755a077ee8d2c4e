"""Plots of single steps, of the eigenbasis and of initial weights."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from matplotlib.figure import Figure

from torchtangent.lab.measures import DIVIDED
from torchtangent.lab.recipes.george2018.figures import LOOK, curve
from torchtangent.lab.recipes.george2018.initialization import KINDS, STARTS
from torchtangent.lab.recipes.george2018.measures.basis import APPROXIMATIONS
from torchtangent.lab.study import Arrays
from torchtangent.lab.style import INK, MAP, RULE, SERIES, legend, panel, series


def steps(rule: str) -> Callable[[Arrays], Figure]:
    """Differences between the optimizers' steps and the formulas, for one way of damping."""

    def draw(arrays: Arrays) -> Figure:
        figure, axes = panel("Steps beside their formulas", x="step", y="relative difference")
        for variant, errors in zip(arrays["variants"].tolist(), arrays["errors"], strict=True):
            name, _, how = variant.partition(", ")
            if (how == "root") == (rule == "root"):
                x = np.arange(1, len(errors) + 1)
                curve(axes, name, x, np.maximum(errors, 1e-17), linestyle="", markevery=1)
        axes.axhline(DIVIDED, color=INK, linewidth=0.8, linestyle=":")
        axes.set(yscale="log", ylim=(1e-17, 1e-6))
        axes.locator_params(axis="x", integer=True)
        legend(figure)
        return figure

    return draw


def correlations(which: int) -> Callable[[Arrays], Figure]:
    """TG-Fig4.2, left: the magnitudes of correlations between gradient coordinates."""
    title = ("Parameters' basis", "KFE")[which]

    def draw(arrays: Arrays) -> Figure:
        figure, axes = panel(title, x="coordinate", y="coordinate", height=3.3)
        shown = axes.imshow(np.abs(arrays["correlations"][which].astype(float)), cmap=MAP, vmin=0, vmax=1)
        figure.colorbar(shown, ax=axes, shrink=0.8).set_label("|correlation|")
        axes.grid(visible=False)
        return figure

    return draw


def errors(arrays: Arrays) -> Figure:
    """TG-Fig4.2, right: the error of KFAC and EKFAC along training; bands are the range over seeds."""
    figure, axes = panel("Error along training", x="iteration", y="‖F − F̂‖ / ‖F‖")
    steps, both = arrays["steps"], arrays["errors"].swapaxes(0, 1)
    for step in steps[steps % int(arrays["basis_every"]) == 0]:
        axes.axvline(step, color=RULE, linewidth=1.2)
    for name, values in zip(("KFAC", "EKFAC"), both, strict=True):
        axes.fill_between(steps, values.min(0), values.max(0), color=SERIES[LOOK[name]], alpha=0.2, linewidth=0)
        curve(axes, name, steps, values.mean(0))
    axes.set(ylim=(0, None))
    legend(figure)
    return figure


def distances(arrays: Arrays) -> Figure:
    """TG-Fig4.4 (c): distances of spectra to G's, in a basis that is kept."""
    figure, axes = panel("Distance to the spectrum of G", x="iterations since the basis", y="‖λ − λ̂‖ / ‖λ‖")
    for name, values in zip(APPROXIMATIONS, arrays["spectra/distances"], strict=True):
        curve(axes, name, arrays["spectra/steps"], values)
    axes.set(yscale="log")
    legend(figure)
    return figure


def spectra(arrays: Arrays) -> Figure:
    """TG-Fig4.4 (c): the spectra at the end."""
    figure, axes = panel("Spectra at the end", x="index", y="eigenvalue")
    true, *others = arrays["spectra/spectra"]
    ranks = arrays["spectra/shown"]
    axes.plot(ranks, true, color=INK, linewidth=2.2, label="G")
    for name, values in zip(APPROXIMATIONS, others, strict=True):
        curve(axes, name, ranks, values)
    axes.set(xscale="log", yscale="log", ylim=(1e-6 * true[0], None))
    legend(figure)
    return figure


def variances(arrays: Arrays) -> Figure:
    """TG-A.3: fan-in times variance, by kind of layer."""
    figure, axes = panel("Variance of the weights", y="n · variance")
    at = np.arange(len(KINDS))
    axes.bar(at, arrays["variances"].mean(0), 0.5, color=SERIES[0], label="measured")
    axes.plot(at, [2, 1, 0.2], linestyle="", marker="_", markersize=30, color=INK, label="formula")
    axes.set_xticks(at, KINDS)
    axes.set(ylim=(0, None))
    axes.grid(visible=False, axis="x")
    legend(figure)
    return figure


def squares(arrays: Arrays) -> Figure:
    """TG-A.3: activations through the blocks; bands are the range over seeds."""
    figure, axes = panel("Activations of ResNet34", x="block", y="mean square")
    for i, (start, values) in enumerate(zip(STARTS, arrays["squares"].swapaxes(0, 1), strict=True)):
        blocks = np.arange(1, values.shape[1] + 1)
        axes.fill_between(blocks, values.min(0), values.max(0), color=SERIES[i], alpha=0.2, linewidth=0)
        axes.plot(blocks, values.mean(0), **series(i), label=start)
    axes.set(yscale="log")
    legend(figure)
    return figure
