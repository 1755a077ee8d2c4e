"""Spectra of kernels: leading eigenpairs, classification tasks made of them, and summaries of all eigenvalues."""

from torchtangent.spectrum.leading import Eigenpairs, eigentasks, top
from torchtangent.spectrum.measures import center, effective_rank, trace_ratio

__all__ = ["Eigenpairs", "center", "effective_rank", "eigentasks", "top", "trace_ratio"]
