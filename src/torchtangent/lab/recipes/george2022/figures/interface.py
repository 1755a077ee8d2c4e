"""The plot of the knob α before training."""

from __future__ import annotations

from matplotlib.figure import Figure

from torchtangent.lab.study import Arrays
from torchtangent.lab.style import legend, panel, series


def at_start(arrays: Arrays) -> Figure:
    """TG-5-API: outputs with unchanged weights."""
    figure, axes = panel("α(f − f₀) before training, with BatchNorm", x="α", y="root mean square")
    for i, mode in enumerate(("training", "eval")):
        axes.plot(arrays["alphas"], arrays[f"{mode}_output"], **series(i), label=f"{mode} mode")
    axes.set(xscale="log")
    axes.set_yscale("symlog", linthresh=1e-3)  # in eval mode all is zero
    axes.set_ylim(bottom=-1e-3)
    legend(figure)
    return figure
