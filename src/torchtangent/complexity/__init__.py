"""Capacity of trained networks: along the trajectory that training took, and by the norms of the weights at its end."""

from torchtangent.complexity.norms import Measures, fisher_rao, margins, measures
from torchtangent.complexity.trajectory import Trajectory, feature_norm

__all__ = ["Measures", "Trajectory", "feature_norm", "fisher_rao", "margins", "measures"]
