"""Plots of lazy and rich training."""

from __future__ import annotations

from matplotlib.figure import Figure

from torchtangent.lab.recipes.george2022.measures.lazy import LARGE, final_errors
from torchtangent.lab.study import Arrays
from torchtangent.lab.style import INK, legend, panel, series


def first_step(arrays: Arrays) -> Figure:
    """TG-5-lin: the length of a step in function space and in parameter space."""
    figure, axes = panel("One step at η/α²", x="α", y="length relative to α = 1")
    alphas = arrays["first-step/alphas"]
    curves = {"outputs": "function_steps", "outputs, first order": "linear_steps", "parameters": "parameter_steps"}
    for i, (label, name) in enumerate(curves.items()):
        axes.plot(alphas, arrays[name] / arrays[name][0], **series(i), label=label)
    axes.plot(alphas, 1 / alphas, color=INK, linewidth=0.8, linestyle=":", label="1/α")
    axes.set(xscale="log", yscale="log")
    legend(figure)
    return figure


def trajectories(arrays: Arrays) -> Figure:
    """TG-5-lin: how far training ends from the linearized network."""
    figure, axes = panel("Distance from the linearized network", x="α", y="relative distance")
    alphas = arrays["trajectories/alphas"]
    ends = final_errors(arrays)
    for i, (case, errors) in enumerate(ends.items()):
        axes.plot(alphas, errors, **series(i), label=case)
    large = alphas[alphas >= LARGE]
    for power, start in ((0.5, ends["ReLU"]), (1.0, ends["tanh"])):
        line = 0.6 * start[-1] * (large / large[-1]) ** -power
        axes.plot(large, line, color=INK, linewidth=0.8, linestyle=":", label="slopes −½, −1" if power == 1 else None)
    axes.set(xscale="log", yscale="log")
    legend(figure)
    return figure
