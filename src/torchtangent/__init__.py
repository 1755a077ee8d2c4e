"""torchtangent: linearized neural networks in PyTorch.

Everything is a contraction of one object, the Jacobian J of a network's outputs with respect to its parameters:

    J = tt.jacobian(model, x)                                  # J @ v, J.T @ u, J.dense(), J.layers
    K = tt.ntk(model, x)                                       # (N, N, C, C), in tiles, J never formed
    F = tt.fisher(model, loader, tt.EKFAC)                     # F @ v, F.solve(v, damping=1e-3), F.trace(), …
    H = tt.hessian(model, loader, torch.nn.functional.cross_entropy)
"""

from torchtangent import alignment, anisotropy, complexity, optim, spectrum
from torchtangent.curvature import (
    EKFAC,
    KFAC,
    BlockDiagonal,
    Dense,
    Diagonal,
    Implicit,
    LowRank,
    QuasiDiagonal,
    fisher,
    gauss_newton,
    hessian,
)
from torchtangent.jacobians import Jacobian, TangentWarning, gradients, jacobian
from torchtangent.kernel import flatten, load_kernel, ntk, sketch
from torchtangent.linear import dual, lazy, linearize, predict
from torchtangent.operators import Operator, load
from torchtangent.probe import TangentProbe

__version__ = "0.1.0"

__all__ = [
    "EKFAC",
    "KFAC",
    "BlockDiagonal",
    "Dense",
    "Diagonal",
    "Implicit",
    "Jacobian",
    "LowRank",
    "Operator",
    "QuasiDiagonal",
    "TangentProbe",
    "TangentWarning",
    "alignment",
    "anisotropy",
    "complexity",
    "dual",
    "fisher",
    "flatten",
    "gauss_newton",
    "gradients",
    "hessian",
    "jacobian",
    "lazy",
    "linearize",
    "load",
    "load_kernel",
    "ntk",
    "optim",
    "predict",
    "sketch",
    "spectrum",
]
