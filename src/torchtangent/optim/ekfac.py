"""EKFAC as an optimizer: KFAC's eigenbasis, with second moments in it that are kept up to date."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack, final

from torch import Tensor, nn

from torchtangent.curvature.cotangents import check_choice
from torchtangent.optim.damping import DAMPINGS, shift
from torchtangent.optim.decompose import eigenbasis
from torchtangent.optim.layer import Layer
from torchtangent.optim.method import Method, Squares, State
from torchtangent.optim.preconditioned import Options, Preconditioned


@final
class EKFAC(Preconditioned):
    """θ ← θ − η U (Uᵀ∇ / (s + ε)), with U the eigenvectors of E[ddᵀ] ⊗ E[aaᵀ] for each layer.

    George et al. (2018), *Fast approximate natural gradient descent in a Kronecker-factored eigenbasis*. U is computed
    every `basis_every` steps; s at every step:

    - scalings="batch": s = E[(Uᵀ∇_n)²] over the samples of the batch, the best diagonal for this basis;
    - scalings="average" (EKFAC-ra): s ← α s + (1 − α) N (Uᵀ∇)², a running average over mean gradients, which starts at
      KFAC's eigenvalues with each new basis. Cheaper: samples are looked at only when U is renewed.

    Args:
        model: The network.
        lr: Learning rate η.
        damping: ε.
        scalings: "batch" or "average".
        decay: α.
        damping_rule: "single", "factored" or "root": what is added to s (see damping.py).
        options: See `Preconditioned`.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> net, x = nn.Linear(3, 1), torch.eye(3)
        >>> opt = EKFAC(net, lr=1.0, damping=0.1)
        >>> for _ in range(20):
        ...     opt.zero_grad()
        ...     loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
        ...     loss.backward()
        ...     _ = opt.step()
        >>> print(opt.explain())
        weight  EKFAC, 1 × 4
        bias    EKFAC, last column of weight
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float,
        damping: float,
        *,
        scalings: str = "batch",
        decay: float = 0.75,
        damping_rule: str = "single",
        **options: Unpack[Options],
    ) -> None:
        check_choice("scalings", scalings, ("batch", "average"))
        check_choice("damping_rule", damping_rule, DAMPINGS)
        if not 0 <= decay < 1:
            raise ValueError(f"decay={decay}: it should be in [0, 1).")
        super().__init__(model, lr, damping, Scalings(scalings == "batch", decay, damping_rule), **options)


@final
@dataclass(frozen=True)
class Scalings(Method):
    """Divide by s + ε′ in the eigenbasis; `fresh` says whether s is the batch's own or a running average."""

    fresh: bool
    decay: float
    rule: str
    kind = "EKFAC"

    def decompose(self, layer: Layer, B: Tensor, A: Tensor, damping: float) -> State:
        rows, left = eigenbasis(B, f"cotangents of {layer.weight}")
        columns, right = eigenbasis(A, f"inputs of {layer.weight}")
        columns = layer.columns(columns)
        values = rows.unsqueeze(2) * columns.unsqueeze(1)
        return {"left": left, "right": right, "rows": rows, "columns": columns, "values": values}

    def solve(
        self, layer: Layer, state: State, raw: Tensor, full: Tensor, damping: float, squares: Squares, n: int
    ) -> tuple[Tensor, State]:
        left, right = state["left"], state["right"]
        g = layer.apply(raw, left.mT, right)
        values = self.scale(state["values"], g, lambda: squares(left, right), n)
        g = g if full is raw else layer.apply(full, left.mT, right)
        u = g / (values + shift(self.rule, damping, state["rows"], state["columns"]))
        return layer.apply(u, left, right.mT), {**state, "values": values}

    def scale(self, values: Tensor, raw: Tensor, squares: Squares, n: int) -> Tensor:
        if self.fresh:
            return squares()
        return self.decay * values + (1 - self.decay) * n * raw.square()
