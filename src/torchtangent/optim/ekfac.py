"""EKFAC as an optimizer: KFAC's eigenbasis, with second moments in it that are kept up to date."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Unpack, final

from torch import Tensor, nn

from torchtangent.curvature.cotangents import check_choice
from torchtangent.optim.damping import DAMPINGS, Adaptive, shift
from torchtangent.optim.decompose import eigenbasis
from torchtangent.optim.layer import Layer
from torchtangent.optim.method import Method, Project, State
from torchtangent.optim.options import Options
from torchtangent.optim.preconditioned import Preconditioned


@final
class EKFAC(Preconditioned):
    """θ ← θ − η U (Uᵀ∇ / (s + ε)), with U the eigenvectors of E[ddᵀ] ⊗ E[aaᵀ] for each layer.

    George et al. (2018), *Fast approximate natural gradient descent in a Kronecker-factored eigenbasis*. U is computed
    every `basis_every` steps, from the samples of that step's batch; s at every step:

    - scalings="batch": s = E[(Uᵀ∇_n)²] over the samples of the batch, the best diagonal for this basis;
    - scalings="average" (EKFAC-ra): s ← α s + (1 − α) N (Uᵀ∇)², a running average over mean gradients, which starts at
      KFAC's eigenvalues with each new basis. Cheaper: samples are looked at only when U is renewed.

    Args:
        model: The network.
        lr: Learning rate η.
        damping: ε, a number or an `Adaptive`.
        scalings: "batch" or "average".
        decay: α.
        damping_rule: "single", "factored" or "root": what is added to s (see damping.py).
        options: See `Preconditioned` (params, momentum, weight_decay) and `Settings` (all others).

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
        damping: float | Adaptive,
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
        rows, left = eigenbasis(B, f"cotangents of {layer.key}")
        columns, right = eigenbasis(A, f"inputs of {layer.key}")
        columns = layer.columns(columns)
        values = rows.unsqueeze(2) * columns.unsqueeze(1)
        return {"left": left, "right": right, "rows": rows, "columns": columns, "values": values}

    def solve(
        self, layer: Layer, state: State, raw: Tensor, full: Tensor, damping: float, project: Project, n: int
    ) -> tuple[dict[str, Tensor], State]:
        left, right, values = state["left"], state["right"], state["values"]
        if self.fresh:
            g, values = project(left, right)
        else:
            g = layer.rotate(raw, left, right)
            values = self._average(values, g, n)
        g = g if full is raw else layer.rotate(full, left, right)
        damped = values + shift(layer.rule(self.rule), damping, state["rows"], state["columns"])
        return layer.back(g.div_(damped), left, right), {**state, "values": values}

    def scale(self, values: Tensor, raw: Tensor, squares: Callable[[], Tensor], n: int) -> Tensor:
        return squares() if self.fresh else self._average(values, raw, n)

    def _average(self, values: Tensor, g: Tensor, n: int) -> Tensor:
        """α s + (1 − α) n g²."""
        return values.mul(self.decay).addcmul_(g, g, value=(1 - self.decay) * n)
