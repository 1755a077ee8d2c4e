"""Scaling, adding, shifting and inverting operators while keeping their structure, type by type.

The default of each function is a `composed` operator; types that can do better are registered.
"""

from __future__ import annotations

from functools import singledispatch

import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.operators.arrowhead import ArrowheadOperator
from torchtangent.operators.base import Operator
from torchtangent.operators.block import BlockOperator
from torchtangent.operators.columns import unit_columns
from torchtangent.operators.composed import InverseOperator, ScaledOperator, ShiftedOperator, SumOperator
from torchtangent.operators.dense import DenseOperator
from torchtangent.operators.diagonal import DiagonalOperator
from torchtangent.operators.eigen import EigenOperator
from torchtangent.operators.kronecker import KroneckerOperator
from torchtangent.operators.lowrank import LowRankOperator
from torchtangent.operators.memory import require


@singledispatch
def densified(M: Operator) -> Float[Tensor, "P P"]:
    """M as a matrix: by default, its products with all unit vectors."""
    require("The dense matrix", (M.size, M.size), M.dtype, M.device, "Products and solves do without it.")
    out = torch.empty(M.size, M.size, dtype=M.dtype, device=M.device)
    for where, columns in unit_columns(M):
        out[:, where] = columns
    return out


@densified.register
def _(M: DenseOperator) -> Float[Tensor, "P P"]:
    return M.matrix.clone()


@densified.register
def _(M: SumOperator) -> Float[Tensor, "P P"]:
    out = densified(M.terms[0])
    for term in M.terms[1:]:  # one at a time: each may be as large as the sum
        out += densified(term)
    return out


@singledispatch
def scaled(M: Operator, factor: float) -> Operator:
    """factor · M."""
    return ScaledOperator(M, factor)


@scaled.register
def _(M: DenseOperator, factor: float) -> Operator:
    return DenseOperator(factor * M.matrix)


@scaled.register
def _(M: DiagonalOperator, factor: float) -> Operator:
    return DiagonalOperator(factor * M.values)


@scaled.register
def _(M: BlockOperator, factor: float) -> Operator:
    return BlockOperator([(place, scaled(block, factor)) for place, block in M.blocks], M.size)


@scaled.register
def _(M: ArrowheadOperator, factor: float) -> Operator:
    return ArrowheadOperator(factor * M.diagonal, factor * M.edge, factor * M.corner)


@scaled.register
def _(M: KroneckerOperator, factor: float) -> Operator:
    if M.left.size <= M.right.size:
        return KroneckerOperator(scaled(M.left, factor), M.right)
    return KroneckerOperator(M.left, scaled(M.right, factor))


@scaled.register
def _(M: EigenOperator, factor: float) -> Operator:
    return EigenOperator(M.left, M.right, factor * M.values)


@scaled.register
def _(M: LowRankOperator, factor: float) -> Operator:
    return ScaledOperator(M, factor) if factor < 0 else LowRankOperator(factor**0.5 * M.rows)


@scaled.register
def _(M: SumOperator, factor: float) -> Operator:
    return SumOperator([scaled(term, factor) for term in M.terms])


@scaled.register
def _(M: ScaledOperator, factor: float) -> Operator:
    return scaled(M.base, factor * M.factor)


@scaled.register
def _(M: ShiftedOperator, factor: float) -> Operator:
    return ShiftedOperator(scaled(M.base, factor), factor * M.shift)


@singledispatch
def shifted(M: Operator, shift: float) -> Operator:
    """M + shift · I."""
    return ShiftedOperator(M, shift)


@shifted.register
def _(M: DiagonalOperator, shift: float) -> Operator:
    return DiagonalOperator(M.values + shift)


@shifted.register
def _(M: ShiftedOperator, shift: float) -> Operator:
    return ShiftedOperator(M.base, M.shift + shift)


@singledispatch
def inverted(M: Operator, damping: float) -> Operator:
    """(M + damping · I)⁻¹."""
    return InverseOperator(M, damping)


@inverted.register
def _(M: DiagonalOperator, damping: float) -> Operator:
    return DiagonalOperator(M._spectrum.inverse(damping, repr(M)).values)


@inverted.register
def _(M: InverseOperator, damping: float) -> Operator:
    return InverseOperator(M, damping) if damping else shifted(M.base, M.damping)


def added(M: Operator, N: Operator) -> Operator:
    """M + N, in their common structure if they have one."""
    match M, N:
        case DiagonalOperator(), DiagonalOperator():
            return DiagonalOperator(M.values + N.values)
        case DenseOperator(), DenseOperator():
            return DenseOperator(M.matrix + N.matrix)
        case LowRankOperator(), LowRankOperator():
            return LowRankOperator(torch.cat([M.rows, N.rows]))
        case ArrowheadOperator(), ArrowheadOperator() if M.diagonal.shape == N.diagonal.shape:
            return ArrowheadOperator(M.diagonal + N.diagonal, M.edge + N.edge, M.corner + N.corner)
        case EigenOperator(), EigenOperator() if M.left is N.left and M.right is N.right:
            return EigenOperator(M.left, M.right, M.values + N.values)
        case BlockOperator(), BlockOperator() if _places(M) == _places(N):
            pairs = zip(M.blocks, N.blocks, strict=True)
            return BlockOperator([(place, added(A, B)) for (place, A), (_, B) in pairs], M.size)
    return SumOperator([*_terms(M), *_terms(N)])


def _places(M: BlockOperator) -> list[object]:
    return [place for place, _ in M.blocks]


def _terms(M: Operator) -> list[Operator]:
    return list(M.terms) if isinstance(M, SumOperator) else [M]
