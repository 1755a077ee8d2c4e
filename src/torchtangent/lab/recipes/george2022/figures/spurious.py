"""Plots of spurious correlations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.figure import Figure

from torchtangent.lab.recipes.george2022.figures.bands import band
from torchtangent.lab.recipes.george2022.measures.seen import Look
from torchtangent.lab.recipes.george2022.measures.spurious import ALPHAS, Part, runs, tested, without
from torchtangent.lab.study import Arrays
from torchtangent.lab.style import INK, legend, panel, series


def test_at_train(parts: Sequence[str]) -> Callable[[Arrays], Figure]:
    """TG-Fig5.3, left: accuracy on test samples, the groups in equal parts, against that on training samples."""
    return lambda arrays: _drawn(
        arrays, parts, tested, "Test samples, groups in equal parts", "training accuracy", "test accuracy"
    )


def without_at_with(parts: Sequence[str], part: Part) -> Callable[[Arrays], Figure]:
    """TG-Fig5.3, middle: accuracy without the spurious correlation against that with it."""
    title = {"train": "Training samples", "test": "Test samples"}[part]
    return lambda arrays: _drawn(
        arrays, parts, without(part), title, "accuracy with spurious correlation", "accuracy without"
    )


def linearity(parts: Sequence[str]) -> Callable[[Arrays], Figure]:
    """TG-Fig5.3, right: the alignment of the tangent kernel and the similarity of signs."""

    def draw(arrays: Arrays) -> Figure:
        figure, axes = panel("— kernel,  ··· signs", x="training loss", y="similarity to the start")
        for i, name in enumerate(ALPHAS):
            for metric, linestyle in (("kernel", "-"), ("signs", ":")):
                seen = []
                for part in parts:
                    run = runs(arrays, part)[name]
                    seen.append((run.mean("losses", "train")[run["measured_at"]], run.metric(metric)))
                label = name if metric == "kernel" else None
                band(axes, seen, **series(i, linestyle=linestyle, markevery=7), label=label)
        axes.invert_xaxis()
        legend(figure)
        return figure

    return draw


def _drawn(arrays: Arrays, parts: Sequence[str], look: Look, title: str, x: str, y: str) -> Figure:
    figure, axes = panel(title, x=x, y=y)
    for i, name in enumerate(ALPHAS):
        seen = [look(runs(arrays, part)[name]) for part in parts]
        band(axes, seen, rising=True, **series(i, marker=""), label=name)
    axes.plot([0.5, 1], [0.5, 1], color=INK, linewidth=0.8, linestyle=":")
    legend(figure)
    return figure
