"""The tangent kernel: contractions of factored Jacobians, planned, in tiles."""

from torchtangent.kernel import sketch
from torchtangent.kernel.ntk import flatten, ntk
from torchtangent.kernel.store import load_kernel

__all__ = ["flatten", "load_kernel", "ntk", "sketch"]
