"""Exact per-sample Jacobians of any module, factored layer by layer."""

from torchtangent.jacobians.capture import Capture
from torchtangent.jacobians.factors import Dense, LayerJacobian, Lookup, Outer, Scale
from torchtangent.jacobians.jacobian import Jacobian, gradients, jacobian
from torchtangent.jacobians.rules import RULES
from torchtangent.jacobians.trace import Trace
from torchtangent.notice import TangentWarning

__all__ = [
    "RULES",
    "Capture",
    "Dense",
    "Jacobian",
    "LayerJacobian",
    "Lookup",
    "Outer",
    "Scale",
    "TangentWarning",
    "Trace",
    "gradients",
    "jacobian",
]
