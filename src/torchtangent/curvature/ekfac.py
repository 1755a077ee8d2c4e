"""EKFAC: the eigenbasis of KFAC, with the true second moments of J in it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from torch import Tensor

from torchtangent.curvature.diagonal import Diagonal
from torchtangent.curvature.kfac import KroneckerSum
from torchtangent.curvature.kronecker import LayerMoments
from torchtangent.curvature.representation import Accumulator, Blocks, Choice, Layers, Representation, Scope
from torchtangent.notice import check_choice
from torchtangent.operators import Basis, EigenOperator
from torchtangent.operators.streams import concurrently
from torchtangent.operators.tree import tensors


@dataclass(frozen=True)
class EKFAC(Representation):
    """F_layer ≈ (Q_B ⊗ Q_A) diag(s) (Q_B ⊗ Q_A)ᵀ with s = (1/N) Σ_nm ((Q_B ⊗ Q_A)ᵀ J_nᵀ u_mn)².

    George et al. (2018), *Fast approximate natural gradient descent in a Kronecker-factored eigenbasis*. Of all
    diagonals in KFAC's eigenbasis, s is nearest to F in Frobenius norm. The data is read twice and must repeat (a
    shuffled loader works only while the factors are small enough to be kept in memory).

    Args:
        sharing: Which KFAC the eigenbasis comes from, "expand" or "reduce" (see `KFAC`).
        rest: The representation of parameters that are not the matrix of a linear map.
    """

    sharing: str = "expand"
    rest: Choice = Diagonal

    def __post_init__(self) -> None:
        check_choice("sharing", self.sharing, ("expand", "reduce"))

    def start(self, scope: Scope) -> Accumulator:
        # A thin basis must span the J that is projected onto it, and the span of reduced factors does not contain J.
        return EigenSum(KroneckerSum(scope, self.sharing, self.rest, thin=self.sharing == "expand"))


class EigenSum(Accumulator):
    """First pass: A and B, then their eigenvectors. Second pass: the squares of the Jacobian in that basis."""

    sweeps = 2

    def __init__(self, kronecker: KroneckerSum) -> None:
        self.kronecker = kronecker
        self.first = True
        self.bases: list[list[tuple[Basis, Basis]]] = []
        self.squares: list[list[Tensor]] = []

    def update(self, layers: Layers) -> None:
        if self.first:
            self.kronecker.update(layers)
            return
        new = [
            layer.rotated_squares(layers, bases) for layer, bases in zip(self.kronecker.layers, self.bases, strict=True)
        ]
        if self.squares:
            new = [[s + t for s, t in zip(*pair, strict=True)] for pair in zip(self.squares, new, strict=True)]
        self.squares = new

    def again(self, layers: Layers) -> None:
        if self.first:
            self.kronecker.again(layers)
        else:
            self.update(layers)

    def end_sweep(self) -> None:
        if not self.first:
            return
        self.first = False
        layers = self.kronecker.layers
        if layers:
            self.bases = concurrently([partial(_eigenbases, layer) for layer in layers], layers[0].device, tensors)

    def finish(self, n: int) -> Blocks:
        blocks: Blocks = self.kronecker.rest.finish(n) if self.kronecker.rest is not None else []
        for layer, bases, squares in zip(self.kronecker.layers, self.bases, self.squares, strict=True):
            for place, (left, right), s in zip(layer.places, bases, squares, strict=True):
                blocks.append((place, EigenOperator(left, right, s / n)))
        return blocks


def _eigenbases(layer: LayerMoments) -> list[tuple[Basis, Basis]]:
    """The eigenvectors of B and A for each block of a layer. Uses up their sums."""
    return [(left.eigenbasis(), right.eigenbasis()) for left, right in layer.factors(1)]
