"""Linear algebra on parameter space: symmetric operators that know their structure, not the network.

Every operator M multiplies (`M @ v`), solves (`M.solve(v, damping)`), and has a trace, a diagonal, a
norm, a log-determinant, eigenpairs, a square root and an inverse; sums and multiples are operators.
"""

from torchtangent.operators.arrowhead import ArrowheadOperator
from torchtangent.operators.base import Operator
from torchtangent.operators.basis import (
    Basis,
    BatchBasis,
    BlockBasis,
    Columns,
    Identity,
    KroneckerBasis,
    PickedBasis,
)
from torchtangent.operators.block import BlockOperator
from torchtangent.operators.composed import InverseOperator, ScaledOperator, ShiftedOperator, SumOperator
from torchtangent.operators.dense import DenseOperator
from torchtangent.operators.diagonal import DiagonalOperator
from torchtangent.operators.eigen import EigenOperator
from torchtangent.operators.estimate import Estimate
from torchtangent.operators.implicit import ImplicitOperator
from torchtangent.operators.kronecker import KroneckerOperator
from torchtangent.operators.krylov import ConvergenceWarning, SolveReport
from torchtangent.operators.lowrank import LowRankOperator
from torchtangent.operators.serialize import load
from torchtangent.operators.space import Place, Segment, Space, Vector
from torchtangent.operators.spectrum import Eigh

__all__ = [
    "ArrowheadOperator",
    "Basis",
    "BatchBasis",
    "BlockBasis",
    "BlockOperator",
    "Columns",
    "ConvergenceWarning",
    "DenseOperator",
    "DiagonalOperator",
    "EigenOperator",
    "Eigh",
    "Estimate",
    "Identity",
    "ImplicitOperator",
    "InverseOperator",
    "KroneckerBasis",
    "KroneckerOperator",
    "LowRankOperator",
    "Operator",
    "PickedBasis",
    "Place",
    "ScaledOperator",
    "Segment",
    "ShiftedOperator",
    "SolveReport",
    "Space",
    "SumOperator",
    "Vector",
    "load",
]
