"""Plots of networks at equal loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.figure import Figure

from torchtangent.lab.study import Arrays
from torchtangent.lab.style import legend, panel, series


def by_rate(name: str, title: str, y: str) -> Callable[[Arrays], Figure]:
    """TG-lr-claim-disk: a value at equal loss against the rate, for each width."""

    def draw(arrays: Arrays) -> Figure:
        figure, axes = panel(title, x="learning rate / largest stable one", y=y)
        for i, width in enumerate(arrays["widths"].tolist()):
            means, errors = _over_seeds(arrays[name][i], arrays["reached"][i] > 0)
            axes.errorbar(arrays["rates"], means, errors, **series(i, capsize=2), label=f"width {width}")
        axes.set(xscale="log")
        legend(figure)
        return figure

    return draw


def _over_seeds(values: Sequence[np.ndarray], use: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard errors over the seeds that count, NaN where there is none."""
    kept = [row[mask] for row, mask in zip(values, use, strict=True)]
    means = np.array([row.mean() if row.size else np.nan for row in kept])
    errors = np.array([row.std(ddof=1) / row.size**0.5 if row.size > 1 else 0.0 for row in kept])
    return means, errors
