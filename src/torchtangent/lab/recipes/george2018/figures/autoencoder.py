"""Plots of the comparison on the auto-encoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.figure import Figure

from torchtangent.lab.recipes.george2018.figures import LOOK, against, curve, plain
from torchtangent.lab.recipes.george2018.measures.curves import by_frequency
from torchtangent.lab.recipes.george2018.training import COMPARED, KRONECKER, best
from torchtangent.lab.rules import number
from torchtangent.lab.study import Arrays
from torchtangent.lab.style import LINES, MAP, SERIES, legend, panel

LOSSES = {"loss": "training loss", "valid": "validation loss"}


def along(kind: str, x: str) -> Callable[[Arrays], Figure]:
    """TG-Fig4.3 (a–c): a loss against epochs or seconds; bands are the range over seeds."""

    def draw(arrays: Arrays) -> Figure:
        figure, axes = panel(f"{LOSSES[kind].capitalize()} by {x}", y=LOSSES[kind])
        for name in COMPARED["autoencoder"]:
            values = arrays[f"curves-{name}/{kind}"]
            at = np.arange(1, values.shape[1] + 1) if x == "epochs" else np.median(arrays[f"curves-{name}/seconds"], 0)
            axes.fill_between(at, values.min(0), values.max(0), color=SERIES[LOOK[name]], alpha=0.2, linewidth=0)
            curve(axes, name, at, values.mean(0))
        axes.set(yscale="log")
        plain(axes.yaxis)
        against(axes, x)
        legend(figure)
        return figure

    return draw


def sensitivity(name: str) -> Callable[[Arrays], Figure]:
    """TG-Fig4.3 (d): the last loss of every trial of the search."""

    def draw(arrays: Arrays) -> Figure:
        last = arrays[f"search-{name}/loss"][..., -1]
        rates, others = arrays[f"search-{name}/rates"], arrays[f"search-{name}/others"]
        other = "damping ε" if name in KRONECKER else "momentum"
        figure, axes = panel(f"{name}: training loss", x=other, y="learning rate η", height=2.2 + 0.25 * len(rates))
        finite = np.where(np.isfinite(last), last, np.nan)
        top = 3 * np.nanmin(finite)  # beyond it nothing was learnt, however large the loss
        axes.imshow(np.minimum(finite, top), cmap=f"{MAP}_r", aspect="auto", vmin=np.nanmin(finite), vmax=top)
        for (i, j), value in np.ndenumerate(last):
            light = np.isfinite(value) and value > 0.5 * (top + np.nanmin(finite))
            text = number(float(value)) if np.isfinite(value) else "∞"
            axes.text(j, i, text, ha="center", va="center", fontsize=7, color="white" if light else "black")
        axes.set_xticks(range(len(others)), [number(float(value)) for value in others])
        axes.set_yticks(range(len(rates)), [number(float(value)) for value in rates])
        axes.grid(visible=False)
        return figure

    return draw


def frequencies(x: str) -> Callable[[Arrays], Figure]:
    """TG-Fig4.4 (a, b): training loss by how often the basis or the inverse is computed, means over seeds."""

    def draw(arrays: Arrays) -> Figure:
        figure, axes = panel(f"Frequency, by {x}", y="training loss", height=3.5)
        found = {name: by_frequency(arrays, name) for name in KRONECKER}
        every = sorted({frequency for curves in found.values() for frequency in curves})
        for name, curves in found.items():
            for frequency, (loss, seconds) in curves.items():
                at = np.arange(1, loss.shape[1] + 1) if x == "epochs" else np.median(seconds, 0)
                line = LINES[every.index(frequency)]
                curve(axes, name, at, loss.mean(0), f"{name}, {frequency}", linestyle=line)
        axes.set(yscale="log")
        plain(axes.yaxis)
        against(axes, x)
        legend(figure)
        return figure

    return draw


def settings(arrays: Arrays) -> list[Sequence[str | float | None]]:
    """TG-AE: what was tried and found, row by row; an optimizer that was not run has no values."""
    rows: list[Sequence[str | float | None]] = []
    for name in COMPARED["autoencoder"]:
        if f"search-{name}/loss" not in arrays or f"curves-{name}/loss" not in arrays:
            rows.append((name, *6 * [None]))
            continue
        search = {key: arrays[f"search-{name}/{key}"] for key in ("loss", "rates", "others")}
        loss, seconds = arrays[f"curves-{name}/loss"], arrays[f"curves-{name}/seconds"]
        rate, other = best(search)
        rows.append(
            (
                name,
                search["loss"][..., -1].size,
                rate,
                other,
                *_last(loss),
                float(np.median(seconds[:, -1]) / loss.shape[1]),
            )
        )
    return rows


def _last(loss: np.ndarray) -> tuple[float, float]:
    """Mean and standard deviation over seeds of the last loss."""
    return float(loss[:, -1].mean()), float(loss[:, -1].std(ddof=1))
