"""Networks at equal loss after small and large steps."""

from __future__ import annotations

import numpy as np

from torchtangent.lab.recipes.baratin2021.measures.seeds import SURE, surely
from torchtangent.lab.rules import Measured
from torchtangent.lab.study import Arrays


def rate_effect(arrays: Arrays) -> Measured:
    """For each width the CKA at the largest rate minus that at the smallest, mean less two standard errors."""
    return _by_width(arrays, arrays["cka"][:, -1] - arrays["cka"][:, 0])


def _by_width(arrays: Arrays, values: np.ndarray) -> dict[str, float]:
    """Over the seeds of which the networks at both ends of the rates reached the loss; NaN for fewer than two."""
    reached = (arrays["reached"][:, -1] > 0) & (arrays["reached"][:, 0] > 0)
    return {
        f"width {width}": surely(row[use])[SURE] if use.sum() > 1 else float("nan")
        for width, row, use in zip(arrays["widths"], values, reached, strict=True)
    }


def corners(arrays: Arrays) -> dict[str, float]:
    """The alignment of the kernel with that at the start, for the narrowest and the widest, slowest and fastest."""
    found = {}
    for i, width in ((0, "narrow"), (-1, "wide")):
        for k, rate in ((0, "small"), (-1, "large")):
            use = arrays["reached"][i, k] > 0
            found[f"{width}, {rate}"] = float(arrays["unchanged"][i, k][use].mean()) if use.any() else float("nan")
    return found


def all_reached(arrays: Arrays) -> Measured:
    """The part of networks that reached the loss, and how far below it the lowest of them stopped."""
    reached = arrays["reached"] > 0
    below = arrays["loss"][reached] / arrays["goal"]
    return {"reached": float(reached.mean()), "lowest loss / goal": float(below.min()) if below.size else float("nan")}
