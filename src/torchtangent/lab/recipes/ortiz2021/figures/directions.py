"""Plots of directions and of data along them, from arrays alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from matplotlib.figure import Figure

from torchtangent.lab.recipes.ortiz2021.figures import REFERENCE
from torchtangent.lab.recipes.ortiz2021.measures.directions import by_frequency
from torchtangent.lab.study import Arrays
from torchtangent.lab.style import MAP, SERIES, legend, panel, series


def projections(arrays: Arrays) -> Figure:
    """OJ-Data-D(u): projections of samples, signed by their labels, on u and on another direction."""
    figure, axes = panel("Projections of D(u)", x="projection", y="fraction of samples")
    bins = np.linspace(-3.05, 3.05, 62).tolist()
    weights = np.full(arrays["along"].shape[1], 1 / arrays["along"].shape[1])
    shown = {f"u, margin {m}": a for m, a in zip(arrays["margins"].tolist(), arrays["along"], strict=True)}
    for i, (label, values) in enumerate({**shown, "another": arrays["across"][0]}.items()):
        look = series(i, marker="")
        axes.hist(values, bins, weights=weights, histtype="step", color=look["color"], linestyle=look["linestyle"])
        axes.plot([], [], **look, label=label)
    axes.set(yscale="log", ylim=(5e-4, 2))
    legend(figure)
    return figure


def noise_spectrum(arrays: Arrays) -> Figure:
    """OJ-Data-D(u): eigenvalues of the covariance within classes."""
    figure, axes = panel("Covariance within classes", x="index", y="eigenvalue")
    values = arrays["eigenvalues"][0]
    axes.plot(np.arange(1, values.size + 1), values, **series(0, linestyle="", markersize=2.5))
    ratio = np.sqrt(values.size / arrays["samples"])
    for edge in (1 - ratio, 1 + ratio):
        axes.axhline(arrays["sigma"] ** 2 * edge**2, **REFERENCE)
    return figure


def origin_and_average(network: int) -> Callable[[Arrays], Figure]:
    """OJ-NAD: the alignments of one network's directions."""

    def draw(arrays: Arrays) -> Figure:
        origin, average, _ = arrays["alignments"][network]
        figure, axes = panel(arrays["networks"][network], x="index of direction", y="alignment α")
        index = np.arange(1, origin.size + 1)
        curves = {
            "origin": origin,
            "average": average,
            "origin's, averaged": arrays["averaged_at_origin"][network],
        }
        for i, (label, values) in enumerate(curves.items()):
            axes.plot(index, values, **series(i, markersize=2.5), label=label)
        axes.set(yscale="log", xscale="log", ylim=(1e-8 * average[0], 3 * average[0]))
        legend(figure)
        return figure

    return draw


def overlaps(arrays: Arrays) -> Figure:
    """OJ-NAD: overlaps of leading subspaces."""
    figure, axes = panel(f"First {arrays['leading']} directions", y="mean squared cosine")
    names = arrays["networks"].tolist()
    place = np.arange(len(names))
    shown = {"origin, average": arrays["overlaps"][:, :2].mean(1), "two averages": arrays["overlaps"][:, 2]}
    for i, (label, values) in enumerate(shown.items()):
        axes.bar(place + 0.36 * i - 0.18, values, 0.32, color=SERIES[i], hatch=["", "//"][i], label=label)
    chance = arrays["leading"] / arrays["alignments"].shape[2]
    axes.axhline(chance, **REFERENCE, label="random")
    axes.set_xticks(place, names)
    axes.set(ylim=(0, 1))
    axes.grid(visible=False, axis="x")
    legend(figure)
    return figure


def by_index(margin: str) -> Callable[[Arrays], Figure]:
    """OJ-Fig4: test accuracy against the index of directions, with the most samples."""

    def draw(arrays: Arrays) -> Figure:
        figure, axes = panel(f"D($v_j$) with margin {margin}", x="index of the direction", y="test accuracy")
        at = arrays["margins"].tolist().index(margin)
        for i, model in enumerate(("linearized", "network")):
            axes.plot(arrays["indices"], arrays[model][at, :, -1], **series(i), label=model)
        axes.axhline(0.5, **REFERENCE)
        axes.set(xscale="symlog", xlim=(-0.2, None), ylim=(0.4, 1.02))
        legend(figure)
        return figure

    return draw


def accuracy(margin: str) -> Callable[[Arrays], Figure]:
    """OJ-NADdef: test accuracy against the alignment of directions."""

    def draw(arrays: Arrays) -> Figure:
        figure, axes = panel(f"D(v) with margin {margin}", x="alignment α", y="test accuracy")
        at = arrays["margins"].tolist().index(margin)
        for i, size in enumerate(arrays["sizes"].tolist()):
            for k, model in enumerate(("linearized", "network")):
                look = series(k, fillstyle="full" if i else "none")
                axes.plot(arrays["alignments"], arrays[model][at, :, i], **look, label=f"{model}, m = {size}")
        axes.axhline(0.5, **REFERENCE)
        axes.set(xscale="log", ylim=(0.4, 1.02))
        legend(figure)
        return figure

    return draw


def first_directions(network: int) -> Callable[[Arrays], Figure]:
    """OJ-Fig10: ten directions as images, each above the magnitude of its Fourier transform."""

    def draw(arrays: Arrays) -> Figure:
        images = arrays["images"][network]
        side, columns = images.shape[1], 5
        waves = np.abs(np.fft.fftshift(np.fft.fft2(images), axes=(1, 2)))
        rows = []
        for start in range(0, len(images), columns):
            chosen = slice(start, start + columns)
            rows.append([0.5 + 0.5 * image / np.abs(image).max() for image in images[chosen]])
            rows.append([wave / wave.max() for wave in waves[chosen]])
        gap = max(1, side // 8)
        mosaic = np.vstack(
            [np.hstack([np.pad(tile, ((0, gap), (0, gap)), constant_values=np.nan) for tile in row]) for row in rows]
        )
        figure, axes = panel(arrays["networks"][network], x="direction", height=3.6)
        axes.imshow(mosaic, cmap=MAP, vmin=0, vmax=1, interpolation="nearest")
        centre = (side + gap) * np.arange(columns) + side / 2
        labels = [f"{i + 1}, {i + 1 + columns}" for i in range(columns)]
        axes.set_xticks(centre, labels)
        axes.set_yticks((side + gap) * np.arange(len(rows)) + side / 2, ["image", "Fourier"] * (len(rows) // 2))
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        return figure

    return draw


def concentrations(arrays: Arrays) -> Figure:
    """OJ-Fig10: energy in the strongest Fourier entries."""
    figure, axes = panel("Energy at eight Fourier entries", x="index of direction", y="part of the energy")
    found = by_frequency(arrays["images"])
    index = np.arange(1, found.shape[1] + 1)
    for i, (name, values) in enumerate(zip(arrays["networks"].tolist(), found, strict=True)):
        axes.plot(index, values, **series(i), label=name)
    axes.axhline(np.median(by_frequency(arrays["random"])), **REFERENCE, label="random images")
    axes.set(ylim=(0, 1))
    legend(figure)
    return figure
