"""Linearized networks: trained as modules, in function space, or solved in closed form."""

from torchtangent.linear import dual, predict
from torchtangent.linear.lazy import Lazy, lazy
from torchtangent.linear.linearize import Linearized, linearize

__all__ = ["Lazy", "Linearized", "dual", "lazy", "linearize", "predict"]
