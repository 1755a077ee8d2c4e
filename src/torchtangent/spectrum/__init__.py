"""Spectra of kernels and other operators: leading eigenpairs, tasks made of them, densities and summaries."""

from torchtangent.spectrum.density import Density, density
from torchtangent.spectrum.leading import Eigenpairs, eigentasks, top
from torchtangent.spectrum.measures import center, effective_rank, trace_ratio

__all__ = ["Density", "Eigenpairs", "center", "density", "effective_rank", "eigentasks", "top", "trace_ratio"]
