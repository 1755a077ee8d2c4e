"""Readings of effective ranks, trace ratios and alignments."""

from __future__ import annotations

import numpy as np

from torchtangent.lab.rules import Measured
from torchtangent.lab.study import Arrays


def effective_ranks(arrays: Arrays) -> Measured:
    """The smallest effective rank, and the largest relative to the rank."""
    ranks, eranks = arrays["ranks"], arrays["eranks"]
    return {"least erank": float(eranks.min()), "largest erank/rank": float((eranks / ranks).max())}


def equal_eigenvalues(arrays: Arrays) -> Measured:
    """The largest relative difference of the effective rank from the rank when all eigenvalues are equal."""
    return float(np.max(np.abs(arrays["erank_flat"] / arrays["ranks"] - 1)))


def trace_ratios(arrays: Arrays) -> Measured:
    """How often a trace ratio falls, and its smallest value at the rank."""
    return {"falls": float(arrays["ratio_falls"].sum()), "T at the rank": float(arrays["ratio_whole"].min())}


def alignments(arrays: Arrays) -> Measured:
    """The smallest and the largest alignments."""
    return {
        f"{end} {name}": float(find(arrays[key]))
        for key, name in (("cka", "CKA"), ("ka", "KA"))
        for end, find in (("least", np.min), ("largest", np.max))
    }


def invariances(arrays: Arrays) -> Measured:
    """The largest change of CKA under each transformation."""
    return dict(zip(arrays["invariances"].tolist(), arrays["changes"].max(0), strict=True))
