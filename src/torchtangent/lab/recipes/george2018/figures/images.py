"""Plots of VGG11 and ResNet34."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from matplotlib.figure import Figure

from torchtangent.lab.recipes.george2018.figures import against, curve, plain
from torchtangent.lab.recipes.george2018.measures.images import clock, envelope
from torchtangent.lab.recipes.george2018.training import COMPARED, KRONECKER
from torchtangent.lab.study import Arrays
from torchtangent.lab.style import legend, panel

LABELS = {"loss": "training loss", "valid": "validation error"}


def envelopes(network: str, kind: str, x: str) -> Callable[[Arrays], Figure]:
    """The lowest training loss or validation error over settings, against epochs or seconds."""

    def draw(arrays: Arrays) -> Figure:
        figure, axes = panel(f"{network}, by {x}", y=LABELS[kind])
        for name in COMPARED[network]:
            values = envelope(arrays, f"{network}-{name}", kind)
            at = np.arange(1, len(values) + 1) if x == "epochs" else clock(arrays, f"{network}-{name}")
            curve(axes, name, at, values)
        if kind == "loss":
            axes.set(yscale="log")
            plain(axes.yaxis)
        against(axes, x)
        legend(figure)
        return figure

    return draw


def batches(network: str, position: int, x: str) -> Callable[[Arrays], Figure]:
    """Training loss with batches of one size (the position-th), against epochs, iterations or seconds."""

    def draw(arrays: Arrays) -> Figure:
        size = int(arrays[f"{network}-KFAC/batches"][position])
        figure, axes = panel(f"{network}, batches of {size}", y=LABELS["loss"])
        for name in (name for name in COMPARED[network] if name in KRONECKER):
            part = f"{network}-{name}"
            loss = arrays[f"{part}/batch_loss"][position]
            at = np.arange(1, len(loss) + 1)
            if x == "seconds":
                at = arrays[f"{part}/batch_seconds"][position]
            elif x == "iterations":
                loss = _smooth(arrays[f"{part}/steps-{size}"])
                at = np.arange(1, len(loss) + 1)
            curve(axes, name, at, loss)
        axes.set(yscale="log")
        plain(axes.yaxis)
        against(axes, x)
        legend(figure)
        return figure

    return draw


def halved(network: str, kind: str) -> Callable[[Arrays], Figure]:
    """Training loss or validation error with learning rates that are halved."""

    def draw(arrays: Arrays) -> Figure:
        figure, axes = panel(f"{network}, rates halved", y=LABELS[kind])
        for name in COMPARED[network]:
            values = arrays[f"{network}-{name}/halved_{kind}"]
            curve(axes, name, np.arange(1, len(values) + 1), values)
        if kind == "loss":
            axes.set(yscale="log")
            plain(axes.yaxis)
        against(axes, "epochs")
        legend(figure)
        return figure

    return draw


def _smooth(losses: np.ndarray, window: int = 10) -> np.ndarray:
    """The mean of the last so many steps."""
    sums = np.cumsum(np.insert(losses.astype(float), 0, 0.0))
    first = np.maximum(np.arange(1, len(sums)) - window, 0)
    with np.errstate(invalid="ignore"):  # after a divergence
        return (sums[1:] - sums[first]) / (np.arange(1, len(sums)) - first)
