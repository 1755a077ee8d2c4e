"""The plots of sample sizes and of the kernel's rotation, from arrays alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from matplotlib.figure import Figure

from torchtangent.lab.recipes.ortiz2021.measures.eigenfunctions import DEEP, learned, networks
from torchtangent.lab.recipes.ortiz2021.measures.rotation import TASKS, table
from torchtangent.lab.study import Arrays
from torchtangent.lab.style import INK, legend, panel, series

KINDS = {"linear": "linearized", "network": "network"}


def by_size(network: str, name: str) -> Callable[[Arrays], Figure]:
    """Test accuracy or distance against the number of samples; bands are the range over seeds."""
    label = {"test": "best test accuracy", "distance": "‖θ − θ₀‖"}[name]

    def draw(arrays: Arrays) -> Figure:
        figure, axes = panel(network, x="training samples", y=label)
        sizes = learned(arrays, network, "sizes", "sizes")
        for i, (kind, title) in enumerate(KINDS.items()):
            values = learned(arrays, network, f"{kind}_{name}", "sizes")
            values = values.max(-1) if name == "test" else (values[..., -1] if values.ndim == 3 else values)
            axes.fill_between(sizes, values.min(1), values.max(1), color=series(i)["color"], alpha=0.2, linewidth=0)
            axes.plot(sizes, values.mean(1), **series(i), label=title)
        axes.set(xscale="log")
        legend(figure)
        return figure

    return draw


def energy(arrays: Arrays) -> Figure:
    """Energy concentration along training; bands are the range over seeds."""
    figure, axes = panel("Energy on 50 eigenvectors", x="epoch", y="energy concentration")
    for i, network in enumerate(networks(arrays, "sizes")):
        epochs = np.array([0, *learned(arrays, network, "probed", "sizes")])
        values = learned(arrays, network, "energy", "sizes")
        axes.fill_between(epochs, values.min(0), values.max(0), color=series(i)["color"], alpha=0.2, linewidth=0)
        axes.plot(epochs, values.mean(0), **series(i), label=network)
    axes.set(xscale="symlog", xlim=(-0.2, None), ylim=(0, 1))
    legend(figure)
    return figure


def beside(published: dict[str, dict[str, float]]) -> Callable[[Arrays], Figure]:
    """Table 1: ours beside the paper's."""

    def draw(arrays: Arrays) -> Figure:
        figure, axes = panel("Table 1: the paper's and ours", y="fraction")
        names = (*networks(arrays, "sizes"), *DEEP)
        labels, at = [], 0.0
        for network in names:
            for row, value in table(arrays, network).items():
                axes.bar(
                    at - 0.2, published[network][row], 0.38, color=series(1)["color"], label="paper" if not at else ""
                )
                axes.bar(at + 0.2, value, 0.38, color=series(0)["color"], label="" if at else "ours")
                labels.append(f"{network}, {row}")
                at += 1
        axes.set_xticks(range(len(labels)), labels, rotation=45, ha="right", rotation_mode="anchor", fontsize=7)
        axes.set(ylim=(0, 1))
        axes.grid(visible=False, axis="x")
        legend(figure)
        return figure

    return draw


def speed(network: str, name: str, task: int = 0) -> Callable[[Arrays], Figure]:
    """Training loss or test accuracy along training of the network and of linearizations at its start and end."""
    label = {"loss": "training loss", "test": "test accuracy"}[name]

    def draw(arrays: Arrays) -> Figure:
        figure, axes = panel(f"{network}, {TASKS[task]}", x="epoch", y=label)
        linear = learned(arrays, network, f"linear_{name}", "pretrained")[task]
        curves = {
            "linearized at the start": linear[0],
            "network": learned(arrays, network, f"network_{name}", "pretrained")[task],
            "linearized at the end": linear[1 if network == "ResNet18" else -1],
        }
        if network == "ResNet18":
            curves["the same, initial statistics"] = linear[2]
        for i, (title, curve) in enumerate(curves.items()):
            axes.plot(np.arange(1, len(curve) + 1), curve, **series(i, marker=""), label=title)
        axes.set(yscale="log" if name == "loss" else "linear")
        legend(figure)
        return figure

    return draw


def along(task: int) -> Callable[[Arrays], Figure]:
    """Test accuracy of linearizations at points of training."""

    def draw(arrays: Arrays) -> Figure:
        figure, axes = panel(TASKS[task], x="epochs of training before linearizing", y="test accuracy")
        for i, network in enumerate(networks(arrays, "pretrained")):
            points = learned(arrays, network, "points", "pretrained")
            axes.plot(
                points, learned(arrays, network, "linear_test", "pretrained")[task, :, -1], **series(i), label=network
            )
            level = learned(arrays, network, "network_test", "pretrained")[task, -1]
            axes.axhline(level, color=series(i)["color"], linewidth=0.8, linestyle="--")
        axes.axhline(0.5, color=INK, linewidth=0.8, linestyle=":")
        axes.set(xscale="symlog", xlim=(-0.2, None))
        legend(figure)
        return figure

    return draw
