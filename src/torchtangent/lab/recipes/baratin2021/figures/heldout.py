"""Plots of alignment on held-out images."""

from __future__ import annotations

from collections.abc import Callable

from matplotlib.figure import Figure

from torchtangent.lab.recipes.baratin2021.figures.noise import STEP, band
from torchtangent.lab.recipes.baratin2021.heldout import NETWORKS
from torchtangent.lab.study import Arrays
from torchtangent.lab.style import legend, panel


def alignment(name: str, title: str, label: str) -> Callable[[Arrays], Figure]:
    """TG-FigB.5 and B.6: alignment along training, for every network."""

    def draw(arrays: Arrays) -> Figure:
        figure, axes = panel(title, x=STEP, y=label)
        for i, network in enumerate(NETWORKS):
            part = f"held-out-{network}"
            band(axes, arrays[f"{part}/steps"], arrays[f"{part}/{name}"], i, network)
        axes.set(ylim=(0, None))
        legend(figure)
        return figure

    return draw
