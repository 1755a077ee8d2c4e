"""Plots of chapter 3."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from matplotlib.figure import Figure

from torchtangent.lab.study import Arrays
from torchtangent.lab.style import INK, SERIES, legend, panel, series

ORDER = {"Diag": 3, "QuasiDiag": 2, "KFAC": 1, "EKFAC": 0, "BlockDiag": 6, "KFAC-π": 4}
"""The series of each representation, the same in every plot."""


def quadratic_forms(arrays: Arrays) -> Figure:
    """TG-Fig3.1: vᵀMv relative to the dense one."""
    names = arrays["representations"].tolist()
    figure, axes = panel("vᵀMv / vᵀFv", y="ratio to dense")
    axes.axhline(1, color=INK, linewidth=0.8, linestyle=":")
    for i, values in enumerate(arrays["values"]):
        ratio = values / arrays["values"][names.index("Dense")]
        spread = np.linspace(-0.22, 0.22, ratio.size - 1)
        axes.plot(i + spread, ratio[1:], linestyle="", marker="o", markersize=3, color=SERIES[0], alpha=0.7)
        axes.plot(i, ratio[0], linestyle="", marker="X", markersize=7, color=SERIES[1])
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
    axes.set(yscale="log")
    axes.grid(visible=False, axis="x")
    return figure


def monte_carlo(arrays: Arrays) -> Figure:
    """TG-FIM-def: error of the sampled Fisher."""
    figure, axes = panel("Sampled Fisher", x="labels drawn per input, S", y="relative error")
    s, error = arrays["mc_samples"], arrays["mc_errors"]
    axes.fill_between(s, error.min(1), error.max(1), color=SERIES[0], alpha=0.2, linewidth=0)
    axes.plot(s, error.mean(1), **series(0), label="sampled")
    axes.plot(s, error[0].mean() / np.sqrt(s), **series(1, marker=""), label="slope −½")
    axes.set(xscale="log", yscale="log")
    legend(figure)
    return figure


def shared_spectrum(arrays: Arrays) -> Figure:
    """TG-FIM-def: the spectra of F and of the kernel."""
    figure, axes = panel("One spectrum, two matrices", x="index", y="eigenvalue")
    a, b = arrays["eigenvalues_fisher"], arrays["eigenvalues_kernel"]
    shown = np.unique(np.logspace(0, np.log10(a.size), 60).astype(int)) - 1
    index = np.arange(1, a.size + 1)
    axes.plot(index, a.clip(1e-18), **series(0, marker=""), label="Fisher matrix")
    axes.plot(index[shown], b[shown].clip(1e-18), **series(1, linestyle=""), label="kernel")
    axes.set(xscale="log", yscale="log", ylim=(a[0] * 1e-13, a[0] * 3))
    legend(figure)
    return figure


def _by_damping(measure: str, title: str, scale: str) -> Callable[[Arrays], Figure]:
    def draw(arrays: Arrays) -> Figure:
        figure, axes = panel(title, x="damping λ", y=measure.replace("solve_", ""))
        for i, name in enumerate(arrays["names"].tolist()):
            curve = np.median(arrays[measure][-1, 1, i], axis=-1)
            axes.plot(arrays["dampings"], curve, **series(ORDER[name], markevery=1), label=name)
        axes.set(xscale="log", yscale=scale)
        legend(figure)
        return figure

    return draw


def _along_training(measure: str, title: str, y: str, scale: str = "log", kind: int = 1) -> Callable[[Arrays], Figure]:
    def draw(arrays: Arrays) -> Figure:
        figure, axes = panel(title, x="epoch", y=y)
        for i, name in enumerate(arrays["names"].tolist()):
            if name == "KFAC-π":
                continue  # the same matrix as KFAC: only its damping differs
            values = arrays[measure][:, kind, i]
            curve = np.median(values, axis=-1) if values.ndim > 1 else values
            axes.plot(range(len(curve)), curve.clip(1e-17), **series(ORDER[name]), label=name)
        axes.set_xticks(range(len(arrays["epochs"])), arrays["epochs"].tolist())
        axes.set(yscale=scale)
        legend(figure)
        return figure

    return draw


solve_residual = _by_damping("solve_residual", "Solves: residual", "log")
solve_cosine = _by_damping("solve_cosine", "Solves: cosine", "linear")
product_residual = _along_training("product_residual", "Products: residual", "residual", "linear")
product_cosine = _along_training("product_cosine", "Products: cosine", "cosine", "linear")
quad_error = _along_training("quad_error", "Quadratic forms", "relative error")


def trace_error(kind: str) -> Callable[[Arrays], Figure]:
    """TG-Fig3.6: the relative error of the trace, from sampled labels or exact."""
    return _along_training("trace_error", f"Traces, {kind}", "relative error", kind=("exact", "sampled").index(kind))
