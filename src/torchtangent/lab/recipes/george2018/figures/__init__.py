"""The plots."""

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import LogLocator, NullFormatter

from torchtangent.lab.style import series

LOOK = {"KFAC": 0, "EKFAC": 1, "EKFAC-ra": 2, "SGD+BN": 3, "SGD": 4, "Adam+BN": 5}
"""Every optimizer is the same series in all plots."""


def curve(axes: Axes, name: str, x: object, y: object, label: str | None = None, **more: object) -> None:
    """A line in an optimizer's colour; few markers, so that curves of many points stay lines."""
    points = len(y)  # type: ignore[arg-type]
    look = series(LOOK[name], markevery=max(1, points // 10)) | more
    axes.plot(x, y, **look, label=name if label is None else label)  # type: ignore[arg-type]


def against(axes: Axes, x: str) -> None:
    """The axis of epochs, iterations or seconds; seconds of different optimizers are orders of magnitude apart."""
    if x == "seconds":
        axes.set(xlabel="seconds of training", xscale="log")
        plain(axes.xaxis)
    else:
        axes.set(xlabel=x.removesuffix("s"))
        axes.locator_params(axis="x", integer=True)


def plain(axis: Axis) -> None:
    """1, 2 and 5 of every decade along a logarithmic axis, as plain numbers."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())
