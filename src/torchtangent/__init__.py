"""torchtangent: linearized neural networks in PyTorch."""

from torchtangent.jacobians import Jacobian, TangentWarning, jacobian

__all__ = ["Jacobian", "TangentWarning", "jacobian"]
