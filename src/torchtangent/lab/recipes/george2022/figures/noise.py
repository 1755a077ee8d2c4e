"""Plots of label noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.figure import Figure

from torchtangent.lab.recipes.george2022.figures.bands import band
from torchtangent.lab.recipes.george2022.measures.noise import NOISE, RATES, against_clean, onsets, rate_curves
from torchtangent.lab.recipes.george2022.measures.seen import Kind, Run, pairs
from torchtangent.lab.study import Arrays
from torchtangent.lab.style import INK, SERIES, legend, panel, series

_WORDS = {"losses": "loss", "accuracies": "accuracy"}
_SOLID, _DASHED = {"linestyle": "-"}, {"linestyle": "--"}


def memorization(group: str, kind: Kind = "losses", parts: Sequence[str] = NOISE) -> Callable[[Arrays], Figure]:
    """TG-Fig5.2: the loss (or accuracy) of noisy training or of test samples against that of clean ones."""
    word, rising = _WORDS[kind], kind == "accuracies"
    title = {"noisy": "Training samples with noisy labels", "test": "Test samples"}[group]

    def draw(arrays: Arrays) -> Figure:
        figure, axes = panel(title, x=f"{word} of clean training samples", y=f"{word} of {group} samples")
        both = pairs(arrays, parts)
        for i, label in enumerate(("α = 1", "α = 100")):
            seen = [against_clean(group, kind)(pair[i]) for pair in both]
            band(axes, seen, rising=rising, color=SERIES[i], label=label, **(_DASHED if i else _SOLID))
            if group == "noisy" and kind == "losses":
                for at in onsets(arrays, parts)[:, i]:
                    axes.axvline(at, color=SERIES[i], linewidth=0.8, linestyle=":")
        if not rising:
            axes.invert_xaxis()
        legend(figure)
        return figure

    return draw


def rates(group: str, axis: Kind) -> Callable[[Arrays], Figure]:
    """TG-FigC.1: accuracies for several learning rates."""
    rising = axis == "accuracies"

    def draw(arrays: Arrays) -> Figure:
        names = {"noisy": "noisy training samples", "test": "test samples"}
        figure, axes = panel(f"Accuracy of {names[group]}", x=f"{_WORDS[axis]} of clean training samples", y="accuracy")
        for i, (name, curve) in enumerate(rate_curves(arrays, group, axis).items()):
            band(axes, [curve], rising=rising, **series(i, marker=""), label=name)
        if not rising:
            axes.invert_xaxis()
        legend(figure)
        return figure

    return draw


def rate_linearity(arrays: Arrays) -> Figure:
    """TG-FigC.1: the kernel's alignment for several learning rates, and for α = 100."""
    figure, axes = panel(
        "Alignment of the tangent kernel", x="loss of clean training samples", y="alignment with the first one"
    )
    for i, (name, part) in enumerate({**RATES, "α = 100": "noise-a100-s0"}.items()):
        run = Run(arrays, part)
        axes.plot(run.mean("losses", "clean")[run["measured_at"]], run.metric("kernel"), **series(i), label=name)
    axes.axhline(0.9, color=INK, linewidth=0.8, linestyle=":")
    axes.invert_xaxis()
    legend(figure)
    return figure
