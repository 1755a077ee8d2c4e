"""Plots of gradient descent in function space."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from torchtangent.lab.study import Arrays
from torchtangent.lab.style import legend, panel, series

_SHOWN = 60
"""How many modes."""


def one_step(arrays: Arrays) -> Figure:
    """TG-Lem6.2.1: how far a step moves the outputs along the leading eigenvectors, and what pulls at them."""
    figure, axes = panel("One step, mode by mode", x="eigenvector j", y="relative to the largest")
    index = np.arange(1, _SHOWN + 1)
    pull, predicted, moved = (
        np.abs(values[:_SHOWN]) for values in (arrays["slopes"], arrays["predicted"], arrays["moved"][0])
    )
    axes.plot(index, pull / pull.max(), **series(2, linestyle=""), label="|uⱼᵀ∇L|")
    axes.plot(index, predicted / predicted.max(), **series(0, marker=""), label="λⱼ |uⱼᵀ∇L|")
    axes.plot(index, moved / predicted.max(), **series(1, linestyle="", markersize=2.5), label="|δfⱼ| of the network")
    axes.set(yscale="log", ylim=(1e-5, 2))
    legend(figure)
    return figure


def shared_spectrum(arrays: Arrays) -> Figure:
    """TG-Lem6.2.1: the spectra of kernel and metric."""
    figure, axes = panel("One spectrum, two matrices", x="index", y="eigenvalue")
    kernel, metric = arrays["eigenvalues"], arrays["metric_eigenvalues"]
    shown = np.unique(np.logspace(0, np.log10(kernel.size), 50).astype(int)) - 1
    axes.plot(np.arange(1, kernel.size + 1), metric.clip(1e-18), **series(0, marker=""), label="metric, times n")
    axes.plot(shown + 1, kernel[shown].clip(1e-18), **series(1, linestyle=""), label="kernel")
    axes.set(xscale="log", yscale="log", ylim=(kernel[0] * 1e-9, kernel[0] * 3))
    legend(figure)
    return figure


def modes(arrays: Arrays) -> Figure:
    """TG-PropB.1.4/6: the decay of some modes."""
    figure, axes = panel("Decay of modes", x="step t + 1", y="distance from f*, relative")
    count = arrays["modes"].shape[1]
    for i, j in enumerate(np.unique(np.linspace(1, count - 1, 4).astype(int))):
        start = arrays["modes"][0, j]
        look = series(i)
        axes.plot(arrays["times"] + 1, arrays["closed_modes"][:, j] / start, **(look | {"marker": ""}))
        axes.plot(
            arrays["times"] + 1, arrays["modes"][:, j] / start, **(look | {"linestyle": ""}), label=f"j = {j + 1}"
        )
    axes.set(xscale="log", ylim=(-0.03, 1.03))
    legend(figure)
    return figure


def time_constants(arrays: Arrays) -> Figure:
    """TG-PropB.1.4/6: measured time constants and the two formulas."""
    figure, axes = panel("Time constants", x="λⱼ / λ₁", y="steps")
    ratio = arrays["tau_eigenvalues"] / arrays["eigenvalues"][0]
    axes.plot(ratio, arrays["tau"], **series(1, linestyle=""), label="measured")
    axes.plot(ratio, arrays["tau_formula"], **series(0, marker=""), label="−1/log(1 − λⱼ/λ₁)")
    axes.plot(ratio, arrays["tau_printed"], **series(2, marker=""), label="as printed")
    axes.set(xscale="log", yscale="log")
    legend(figure)
    return figure
