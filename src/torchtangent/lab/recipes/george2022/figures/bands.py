"""A curve for several seeds, drawn where all of them have come equally far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from torchtangent.lab.recipes.george2022.measures.curves import Curve, at, common


def band(axes: Axes, curves: Sequence[Curve], *, rising: bool = False, **line: Any) -> None:
    """The mean over seeds at equal progress, and their range."""
    levels = common(curves, rising=rising)
    values = np.stack([at(levels, curve, rising=rising) for curve in curves])
    if len(curves) > 1:
        axes.fill_between(levels, values.min(0), values.max(0), color=line["color"], alpha=0.2, linewidth=0)
    axes.plot(levels, values.mean(0), **{"marker": "", **line})
