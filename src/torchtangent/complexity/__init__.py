"""Capacity of trained networks: along the training trajectory, and by norms of the final weights."""

from torchtangent.complexity.norms import Measures, fisher_rao, margins, measures
from torchtangent.complexity.trajectory import Trajectory, feature_norm

__all__ = ["Measures", "Trajectory", "feature_norm", "fisher_rao", "margins", "measures"]
