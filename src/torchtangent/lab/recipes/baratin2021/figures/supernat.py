"""Plots of SuperNat and gradient descent."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from torchtangent.lab.study import Arrays
from torchtangent.lab.style import SERIES, legend, panel, series

_TITLES = {"orthogonal": "Noise by an orthogonal projector", "printed": "Noise as printed"}


def errors(projector: str) -> Callable[[Arrays], Figure]:
    """TG-Fig6.5: test errors along training at the largest rate, medians and quartiles over seeds."""

    def draw(arrays: Arrays) -> Figure:
        figure, axes = panel(_TITLES[projector], x="step + 1", y="mean squared test error", height=3.5)
        curves = arrays["errors"][arrays["projectors"].tolist().index(projector), -1]
        x = arrays["times"] + 1
        for i, method in enumerate(arrays["methods"].tolist()):
            low, middle, high = np.quantile(curves[i], [0.25, 0.5, 0.75], axis=0)
            axes.fill_between(x, low, high, color=SERIES[i], alpha=0.18, linewidth=0)
            axes.plot(x, middle, **series(i, marker=""), label=method)
        axes.set(xscale="log", yscale="log", ylim=(curves[:2].min() / 3, 10))
        _legend(figure)
        return figure

    return draw


def _legend(figure: Figure) -> None:
    """In two columns: the names are long."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=7, handlelength=2)


def last(arrays: Arrays) -> Figure:
    """TG-Fig6.5: last test errors, seed by seed, SuperNat against gradient descent."""
    figure, axes = panel(
        "At the end, seed by seed", x="gradient descent, squared test error", y="SuperNat, squared test error"
    )
    methods = arrays["methods"].tolist()
    for i, method in enumerate(("SuperNat, max", "SuperNat, trace")):
        for k, projector in enumerate(arrays["projectors"].tolist()):
            found = arrays["errors"][k, -1, :, :, -1]
            look = series(2 * i + k, linestyle="", markersize=3.5)
            axes.plot(found[0], found[methods.index(method)], **look, label=f"{method[10:]}, {projector}")
    ends = [arrays["errors"][:, -1, 0, :, -1].min(), arrays["errors"][:, -1, 0, :, -1].max()]
    axes.plot(ends, ends, color=SERIES[6], linewidth=0.8, linestyle=":")
    axes.set(xscale="log", yscale="log")
    axes.xaxis.set_minor_formatter(NullFormatter())
    _legend(figure)
    return figure


def identities(arrays: Arrays) -> Figure:
    """TG-SuperNat-id: relative differences, step by step and seed by seed."""
    figure, axes = panel("SuperNat beside its matrices", x="steps of all seeds, sorted (%)", y="relative difference")
    shown = {
        "natural gradient": "natural_error",
        "⟨δw, Φₜ⟩": "function_error",
        "norm": "norm_error",
        "norm as printed": "printed_error",
    }
    for i, (label, name) in enumerate(shown.items()):
        values = np.sort(arrays[name])
        where = 100 * (np.arange(len(values)) + 0.5) / len(values)
        axes.plot(where, values.clip(1e-17), **series(i, marker=""), label=label)
    axes.set(yscale="log")
    legend(figure)
    return figure
