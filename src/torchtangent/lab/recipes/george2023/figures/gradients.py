"""Plots of gradients of examples and sums of tangents."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from torchtangent.lab.study import Arrays
from torchtangent.lab.style import INK, legend, panel, series


def per_example_norms(arrays: Arrays) -> Figure:
    """TG-Eq-perex: how long the gradients of the examples are, and their mean."""
    figure, axes = panel("Gradients of single examples", x="example, by length of gradient", y="‖gradient of the loss‖")
    norms = np.sort(arrays["norms"])[::-1]
    axes.plot(np.arange(1, len(norms) + 1), norms, **series(0, linestyle=""), label="each example")
    axes.axhline(float(arrays["mean_norm"]), **series(1, marker=""), label="their mean")
    axes.set(ylim=(0, None))
    legend(figure)
    return figure


def increments(arrays: Arrays) -> Figure:
    """TG-7: what sums of tangents miss of the way of the outputs, against the step."""
    figure, axes = panel("What linear steps miss", x="learning rate, at the same total time", y="relative error")
    lr = arrays["lr"]
    axes.plot(lr, arrays["frozen_error"], **series(1), label="fixed tangents")
    axes.plot(lr, arrays["summed_error"], **series(0), label="sum over the steps")
    ends = lr[[0, -1]]
    line = 0.5 * arrays["summed_error"][-1] * ends / ends[-1]
    axes.plot(ends, line, color=INK, linewidth=0.8, linestyle=":", label="slope 1")
    axes.set(xscale="log", yscale="log")
    legend(figure)
    return figure
