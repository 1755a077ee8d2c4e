"""Plots of alignment with easy and with difficult images."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from matplotlib.figure import Figure

from torchtangent.lab.recipes.baratin2021.figures.noise import STEP, band
from torchtangent.lab.recipes.baratin2021.measures.mixtures import pairs
from torchtangent.lab.recipes.baratin2021.mixtures import DEPTHS
from torchtangent.lab.study import Arrays
from torchtangent.lab.style import INK, legend, panel, series

DEPTH_PARTS = {f"depth-{depth}": f"{depth} layers" for depth in DEPTHS}


def easy_and_difficult(part: str, title: str) -> Callable[[Arrays], Figure]:
    """TG-Fig6.4 and B.7: CKA on both kinds of images along training; bands are the range over seeds."""

    def draw(arrays: Arrays) -> Figure:
        figure, axes = panel(title, x=STEP, y="CKA with the labels")
        for i, name in enumerate(("easy", "difficult")):
            band(axes, arrays[f"{part}/steps"], arrays[f"{part}/{name}"], i, f"{name} images")
        axes.set(ylim=(0, None))
        legend(figure)
        return figure

    return draw


def ratios(parts: Mapping[str, str], title: str) -> Callable[[Arrays], Figure]:
    """TG-Fig6.4 and B.7: the ratio of both along training, a line for each seed."""

    def draw(arrays: Arrays) -> Figure:
        figure, axes = panel(title, x=STEP, y="CKA, easy over difficult")
        for i, (part, label) in enumerate(parts.items()):
            for k, pair in enumerate(pairs(arrays, part)):
                look = series(i, marker="", linewidth=1.2)
                axes.plot(pair.steps + 1, pair.ratio, **look, label=None if k else label)
        axes.axhline(1, color=INK, linewidth=0.8, linestyle=":")
        axes.set(xscale="log", ylim=(0, None))
        legend(figure)
        return figure

    return draw
