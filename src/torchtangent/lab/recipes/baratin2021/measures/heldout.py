"""How the claims' values are read off alignments on held-out images."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from torchtangent.lab.measures import spearman
from torchtangent.lab.rules import Measured
from torchtangent.lab.study import Arrays


def increases(part: str, name: str) -> Callable[[Arrays], Measured]:
    """A curve's end over its start, and Spearman's correlation with the step; means over seeds."""

    def measure(arrays: Arrays) -> Measured:
        steps, curves = arrays[f"{part}/steps"], arrays[f"{part}/{name}"]
        return {
            "end over start": float(np.mean(curves[:, -1] / curves[:, 0])),
            "correlation with step": float(np.mean([spearman(steps, curve) for curve in curves])),
        }

    return measure
