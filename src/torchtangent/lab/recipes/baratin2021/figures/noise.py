"""Plots of spectrum, effective rank and alignment while networks train; steps are shown plus one, on a log axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from torchtangent.lab.recipes.baratin2021.measures.noise import runs
from torchtangent.lab.study import Arrays
from torchtangent.lab.style import INK, MAP, SERIES, legend, panel, series

STEP = "step + 1"
LEVELS = {"noise-0": "0 %", "noise-20": "20 %", "noise-50": "50 %"}
"""The parts at the usual learning rate, by their share of random labels."""

RATES = {
    "noise-0": "0.01, 0 %",
    "slow-0": "0.003, 0 %",
    "noise-50": "0.01, 50 %",
    "slow-50": "0.003, 50 %",
}
"""Those at both, by learning rate and share."""


def band(axes: Axes, steps: np.ndarray, curves: np.ndarray, i: int, label: str, **more: object) -> None:
    """The mean over seeds as a line, the range as a band."""
    look = series(i, marker="") | more
    axes.plot(steps + 1, curves.mean(0), **look, label=label)
    if len(curves) > 1:
        axes.fill_between(steps + 1, curves.min(0), curves.max(0), color=look["color"], alpha=0.2, linewidth=0)
    axes.set(xscale="log")


def spectrum(part: str, title: str) -> Callable[[Arrays], Figure]:
    """TG-Fig6.2: eigenvalues along training, of the training kernel (lines) and the test kernel (dots), first seed."""

    def draw(arrays: Arrays) -> Figure:
        figure, axes = panel(title, x=STEP, y="eigenvalue, centred kernel", height=3.5)
        run = runs(arrays, part)[0]
        times = run["steps"] + 1
        for i, index in enumerate(run["indices"].tolist()):
            axes.plot(times, run["train_eigenvalues"][:, i], **series(i, marker=""), label=f"λ{_below(index)}")
            axes.plot(times, run["test_eigenvalues"][:, i], **series(i, linestyle="", markersize=2.5))
        axes.plot(times, run["train_mean"], color=INK, linewidth=2.5, label="mean")
        axes.set(xscale="log", yscale="log")
        legend(figure)
        return figure

    return draw


def _below(index: int) -> str:
    return str(index).translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))


def ranks(parts: Mapping[str, str], title: str) -> Callable[[Arrays], Figure]:
    """TG-Fig6.2 and B.8: effective rank along training, of training and of test kernels."""

    def draw(arrays: Arrays) -> Figure:
        figure, axes = panel(title, x=STEP, y="effective rank", height=3.5)
        for i, (part, label) in enumerate(parts.items()):
            steps = arrays[f"{part}/steps"]
            band(axes, steps, arrays[f"{part}/train_rank"], i, label)
            test = arrays[f"{part}/test_rank"].mean(0)
            axes.plot(steps + 1, test, **series(i, linestyle="", markersize=3))
        axes.set(ylim=(0, None))
        legend(figure)
        return figure

    return draw


def shares(part: str, title: str) -> Callable[[Arrays], Figure]:
    """TG-Fig6.2: the share of leading eigenvalues in the trace along training."""

    def draw(arrays: Arrays) -> Figure:
        figure, axes = panel(title, x=STEP, y="share of the trace, Tₖ")
        for i, k in enumerate(arrays[f"{part}/shares"].tolist()):
            band(axes, arrays[f"{part}/steps"], arrays[f"{part}/train_shares"][..., i], i, f"k = {k}")
        axes.axhline(0.7, color=INK, linewidth=0.8, linestyle=":")
        axes.set(ylim=(0, 1.02))
        legend(figure)
        return figure

    return draw


def rank_and_accuracy(part: str, title: str) -> Callable[[Arrays], Figure]:
    """TG-Fig6.2: the training kernel's effective rank beside training and test accuracy."""

    def draw(arrays: Arrays) -> Figure:
        figure, axes = panel(title, x=STEP, y="fraction")
        rank = arrays[f"{part}/train_rank"]
        curves = {
            "rank over start": rank / rank[:, :1],
            "test acc.": arrays[f"{part}/test_accuracy"],
            "training acc.": arrays[f"{part}/train_accuracy"],
        }
        for i, (label, values) in enumerate(curves.items()):
            band(axes, arrays[f"{part}/steps"], values, i, label)
        axes.set(ylim=(0, None))
        legend(figure)
        return figure

    return draw


def alignments(parts: Mapping[str, str], title: str) -> Callable[[Arrays], Figure]:
    """TG-Fig6.3: CKA of training (lines) and test kernels (dots) with their labels."""

    def draw(arrays: Arrays) -> Figure:
        figure, axes = panel(title, x=STEP, y="CKA with the labels", height=3.5)
        for i, (part, label) in enumerate(parts.items()):
            steps = arrays[f"{part}/steps"]
            band(axes, steps, arrays[f"{part}/train_cka"], i, f"{label} train")
            test = arrays[f"{part}/test_cka"].mean(0)
            axes.plot(steps + 1, test, **series(i, linestyle=":", markersize=3, linewidth=0.8), label=f"{label} test")
        axes.set(ylim=(0, None))
        legend(figure)
        return figure

    return draw


def layers(part: str, title: str) -> Callable[[Arrays], Figure]:
    """TG-Fig6.3: CKA of every layer's test kernel along training, and where test accuracy peaks; first seed."""

    def draw(arrays: Arrays) -> Figure:
        figure, axes = panel(title, x=STEP, y="layer", height=3.5)
        run = runs(arrays, part)[0]
        times, values = run["steps"] + 1.0, run["test_layers"]
        count = values.shape[1]
        middles = np.sqrt(times[1:] * times[:-1])
        edges = np.concatenate([[times[0] ** 2 / middles[0]], middles, [times[-1] ** 2 / middles[-1]]])
        image = axes.pcolormesh(edges, np.arange(count + 1) + 0.5, values.T, cmap=MAP, vmin=0)
        axes.axvline(times[run["test_accuracy"].argmax()], color=SERIES[1], linestyle="--", linewidth=1.5)
        axes.set(xscale="log", ylim=(0.5, count + 0.5))
        axes.locator_params(axis="y", integer=True)
        axes.grid(visible=False)
        figure.colorbar(image, ax=axes, label="CKA with the labels")
        return figure

    return draw


def at_equal_losses(name: str, title: str, label: str) -> Callable[[Arrays], Figure]:
    """TG-lr-claim: a curve against the training loss, for both learning rates; a line for each seed."""

    def draw(arrays: Arrays) -> Figure:
        figure, axes = panel(title, x="training loss, the lowest so far", y=label, height=3.5)
        for i, (part, rate) in enumerate(RATES.items()):
            for k, run in enumerate(runs(arrays, part)):
                loss = np.minimum.accumulate(run["train_loss"])
                axes.plot(loss, run[name], **series(i, markersize=3), label=None if k else rate)
        axes.set(xscale="log", ylim=(0, None))
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=12))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.invert_xaxis()
        legend(figure)
        return figure

    return draw
