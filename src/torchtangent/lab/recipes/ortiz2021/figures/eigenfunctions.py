"""The plots of learned eigenfunctions, from arrays alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from torchtangent.lab.recipes.ortiz2021.measures.eigenfunctions import ALL, epochs_to, final, learned, networks
from torchtangent.lab.study import Arrays
from torchtangent.lab.style import INK, SOFT, legend, panel, series

KINDS = {"linear": "linearized", "network": "network"}


def against_index(axes: Axes, arrays: Arrays, part: str = "eigenfunctions") -> None:
    """Indices on a logarithmic axis, the same one for all networks of an entry."""
    most = max(learned(arrays, network, "indices", part).max() for network in networks(arrays, part, ALL))
    axes.set(xscale="log", xlim=(0.85, 1.2 * most), xlabel="index of the eigenfunction")
    axes.xaxis.set_major_formatter("{x:,.0f}")


def accuracy_against_index(axes: Axes, arrays: Arrays, part: str = "eigenfunctions") -> None:
    """Accuracies from chance, or from the lowest one below it, to 1, the same for all networks of an entry."""
    against_index(axes, arrays, part)
    found = [final(arrays, network, kind, part).min() for network in networks(arrays, part, ALL) for kind in KINDS]
    axes.set(ylim=(min(0.45, *(accuracy - 0.03 for accuracy in found)), 1.01), ylabel="test accuracy")


def accuracies(network: str, part: str = "eigenfunctions") -> Callable[[Arrays], Figure]:
    """Test accuracy of the network and of its linearization against the index."""

    def draw(arrays: Arrays) -> Figure:
        figure, axes = panel(network)
        index = learned(arrays, network, "indices", part)
        for i, (kind, label) in enumerate(KINDS.items()):
            axes.plot(index, final(arrays, network, kind, part), **series(i), label=label)
        axes.axhline(0.5, color=INK, linewidth=0.8, linestyle=":")
        accuracy_against_index(axes, arrays, part)
        legend(figure)
        return figure

    return draw


def with_adam(network: str) -> Callable[[Arrays], Figure]:
    """The same with Adam, for every rate."""

    def draw(arrays: Arrays) -> Figure:
        figure, axes = panel(f"{network}, Adam")
        index, rates = (learned(arrays, network, name, "adam") for name in ("indices", "rates"))
        for i, (kind, label) in enumerate(KINDS.items()):
            for k, rate in enumerate(rates.tolist()):
                look = series(i, fillstyle="none" if k else "full", linestyle=":" if k else "-")
                axes.plot(index, final(arrays, network, kind, "adam")[k], **look, label=f"{label}, {rate:g}")
        accuracy_against_index(axes, arrays, "adam")
        legend(figure)
        return figure

    return draw


def cost(network: str, name: str) -> Callable[[Arrays], Figure]:
    """Time to fit or distance of the networks against the index."""
    label = {"epochs": "epochs to a loss of 0.01", "distance": "‖θ − θ₀‖", "cosine": "cosine distance"}[name]

    def draw(arrays: Arrays) -> Figure:
        figure, axes = panel(network, y=label)
        index = learned(arrays, network, "indices")
        if name == "epochs":
            loss = learned(arrays, network, "network_loss")
            values, most = epochs_to(loss), loss.shape[-1]
            reached = values <= most
            axes.plot(index[reached], values[reached], **series(1))
            if not reached.all():
                axes.plot(index[~reached], values[~reached], linestyle="", marker="^", color=SOFT, label="not reached")
                legend(figure)
        else:
            axes.plot(index, learned(arrays, network, f"network_{name}"), **series(1))
        against_index(axes, arrays)
        axes.set(ylim=(0, None))
        return figure

    return draw


def alignments(network: str, position: int) -> Callable[[Arrays], Figure]:
    """Alignments of all eigenfunctions before and after training on one."""

    def draw(arrays: Arrays) -> Figure:
        k = int(learned(arrays, network, "trained")[position])
        figure, axes = panel(f"{network}, trained on φ{k}", x="index of the eigenfunction", y="alignment α")
        before = learned(arrays, network, "eigenvalues")
        after = learned(arrays, network, "alignments")[position]
        axes.plot(before, **series(0, marker="", linewidth=1), label="at the start")
        axes.plot(after, **series(1, marker="", linestyle="-", linewidth=0.7), label="after training")
        axes.plot(k, after[k], linestyle="", marker="o", fillstyle="none", color=INK, label=f"φ{k}")
        axes.set(yscale="log")
        legend(figure)
        return figure

    return draw


def binarized(arrays: Arrays) -> Figure:
    """Inner products of eigenvectors and their signs."""
    figure, axes = panel("Eigenvectors and their signs", x="index of the eigenfunction", y="inner product")
    for i, network in enumerate(networks(arrays, among=ALL)):
        axes.plot(learned(arrays, network, "binarized"), **series(i, marker="", linewidth=0.8), label=network)
    axes.axhline(np.sqrt(2 / np.pi), color=INK, linewidth=0.8, linestyle=":", label="normal entries")
    axes.set(ylim=(0, 1))
    legend(figure)
    return figure


def seconds(arrays: Arrays) -> Figure:
    """How long kernel, eigenvectors and training took."""
    names = networks(arrays, among=ALL)
    figure, axes = panel("Seconds", y="seconds")
    steps = {"kernel": "kernel_seconds", "eigenvectors": "eigen_seconds"}
    steps |= {"linearizations": "linear_seconds", "networks": "network_seconds"}
    for i, (label, name) in enumerate(steps.items()):
        values = [float(learned(arrays, network, name)) for network in names]
        axes.bar(np.arange(len(names)) + 0.2 * (i - 1.5), values, 0.18, color=series(i)["color"], label=label)
    axes.set_xticks(range(len(names)), names)
    axes.set(yscale="log")
    axes.grid(visible=False, axis="x")
    legend(figure)
    return figure


def losses(network: str) -> Callable[[Arrays], Figure]:
    """Training loss along training at the lowest, a middle and the highest index."""

    def draw(arrays: Arrays) -> Figure:
        figure, axes = panel(network, x="epoch", y="training loss")
        index = learned(arrays, network, "indices")
        for k, at in enumerate((0, len(index) // 2, len(index) - 1)):
            for i, (kind, label) in enumerate(KINDS.items()):
                curve = learned(arrays, network, f"{kind}_loss")[at]
                look = series(i, marker="", linestyle=("-", "--", ":")[k])
                axes.plot(np.arange(1, len(curve) + 1), curve, **look, label=f"{label}, φ{index[at]}")
        axes.axhline(0.01, color=INK, linewidth=0.8, linestyle=":")
        axes.set(yscale="log")
        legend(figure)
        return figure

    return draw
