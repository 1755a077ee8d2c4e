"""Spectra of kernels: leading eigenpairs, the tasks that they are, and what all eigenvalues say together."""

from torchtangent.spectrum.leading import Eigenpairs, eigentasks, square, top
from torchtangent.spectrum.measures import center, effective_rank, trace_ratio

__all__ = ["Eigenpairs", "center", "effective_rank", "eigentasks", "square", "top", "trace_ratio"]
