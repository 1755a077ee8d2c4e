"""KFAC as an optimizer: the damped Kronecker product of two second moments, inverted every so often."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack, final

import torch
from torch import Tensor, nn

from torchtangent.curvature.cotangents import check_choice
from torchtangent.optim.damping import DAMPINGS, shares
from torchtangent.optim.decompose import eigenbasis, inverse
from torchtangent.optim.layer import Layer
from torchtangent.optim.method import Method, Squares, State
from torchtangent.optim.preconditioned import Options, Preconditioned


@final
class KFAC(Preconditioned):
    """δW = −η B⁻¹ ∇ A⁻¹ with A = E[aaᵀ], B = E[ddᵀ] of each layer, damped, renewed every `basis_every` steps.

    Martens and Grosse (2015), *Optimizing neural networks with Kronecker-factored approximate curvature*; Grosse and
    Martens (2016) for convolutions. With damping_rule="single" the product itself is damped, (B ⊗ A + ε)⁻¹, in its
    eigenbasis.

    Args:
        model: The network.
        lr: Learning rate η.
        damping: ε.
        damping_rule: "factored", "root" or "single" (see damping.py).
        options: See `Preconditioned`.
    """

    def __init__(
        self, model: nn.Module, lr: float, damping: float, *, damping_rule: str = "factored", **options: Unpack[Options]
    ) -> None:
        check_choice("damping_rule", damping_rule, DAMPINGS)
        super().__init__(model, lr, damping, Inverses(damping_rule), **options)


@final
@dataclass(frozen=True)
class Inverses(Method):
    """Multiply by the inverses of both damped factors, as they were when they were last computed."""

    rule: str
    kind = "KFAC"
    fresh = False

    def decompose(self, layer: Layer, B: Tensor, A: Tensor, damping: float) -> State:
        cotangents, inputs = f"cotangents of {layer.weight}", f"inputs of {layer.weight}"
        if self.rule == "single":
            rows, left = eigenbasis(B, cotangents)
            columns, right = eigenbasis(A, inputs)
            return {"left": left, "right": right, "values": rows.unsqueeze(2) * layer.columns(columns).unsqueeze(1)}
        # Means of the diagonals are all that the rules need of the eigenvalues.
        rows, columns = B.diagonal(dim1=1, dim2=2), layer.columns(A.diagonal(dim1=1, dim2=2))
        beta, alpha = shares(self.rule, damping, rows, columns)
        return {"left": inverse(B, beta, cotangents), "right": inverse(A, alpha, inputs), "alone": 1 / (1 + alpha)}

    def solve(
        self, layer: Layer, state: State, raw: Tensor, full: Tensor, damping: float, squares: Squares, n: int
    ) -> tuple[Tensor, State]:
        left, right = state["left"], state["right"]
        if self.rule == "single":
            u = layer.apply(full, left.mT, right) / (state["values"] + damping)
            return layer.apply(u, left, right.mT), state
        u = layer.apply(full, left, right)
        if layer.sua and layer.bias is not None:  # the bias stands alone: its input factor is the number 1
            u = torch.cat([u[:, :, :-1], u[:, :, -1:] * state["alone"].unsqueeze(2)], 2)
        return u, state

    def scale(self, values: Tensor, raw: Tensor, squares: Squares, n: int) -> Tensor:
        return values
