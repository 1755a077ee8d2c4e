"""Fisher and Gauss-Newton matrices in every useful representation, and the Hessian."""

from torchtangent.curvature.block import BlockDiagonal
from torchtangent.curvature.dense import Dense
from torchtangent.curvature.diagonal import Diagonal
from torchtangent.curvature.ekfac import EKFAC
from torchtangent.curvature.fisher import fisher, gauss_newton, hessian
from torchtangent.curvature.implicit import Implicit
from torchtangent.curvature.kfac import KFAC
from torchtangent.curvature.lowrank import LowRank
from torchtangent.curvature.quasidiagonal import QuasiDiagonal
from torchtangent.curvature.representation import Representation

__all__ = [
    "EKFAC",
    "KFAC",
    "BlockDiagonal",
    "Dense",
    "Diagonal",
    "Implicit",
    "LowRank",
    "QuasiDiagonal",
    "Representation",
    "fisher",
    "gauss_newton",
    "hessian",
]
