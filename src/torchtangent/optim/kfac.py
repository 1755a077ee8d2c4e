"""KFAC as an optimizer: the damped Kronecker product of two second moments, inverted every few steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Unpack, final

from torch import Tensor, nn

from torchtangent.notice import check_choice
from torchtangent.optim.damping import DAMPINGS, Adaptive, shares
from torchtangent.optim.decompose import eigenbases, inverse
from torchtangent.optim.layer import Layer
from torchtangent.optim.method import BlockState, Method, Solved, System
from torchtangent.optim.options import Options
from torchtangent.optim.preconditioned import Preconditioned


@final
class KFAC(Preconditioned):
    """δW = −η B⁻¹ ∇ A⁻¹ with the damped A = E[aaᵀ] and B = E[ddᵀ] of each layer, renewed every `basis_every` steps.

    Martens and Grosse (2015), *Optimizing neural networks with Kronecker-factored approximate curvature*; Grosse and
    Martens (2016) for convolutions. With damping_rule="single" the product itself is damped, (B ⊗ A + ε)⁻¹, in its
    eigenbasis.

    `EKFAC` explains the options that both share, how samples are recognized, and how to tune.

    Args:
        model: The network, or the DistributedDataParallel around it. Its layers carry hooks until `close()`.
        lr: The learning rate η.
        damping: ε, a number, or an `Adaptive`, with which `step` needs a closure.
        damping_rule: "factored" (default: √ε/π is added to B and π√ε to A, where π² is the ratio of the mean
            eigenvalues of A and B), "root" (√ε is added to both) or "single" (ε is added to B ⊗ A).
        params: Which parameters: patterns, a predicate, tensors or groups; by default all that are trainable now.
        momentum: μ in m ← μ m + u, θ ← θ − η m.
        weight_decay: ω: ∇ + ωθ is preconditioned or, if `decoupled`, θ is multiplied by 1 − ηω.
        basis_every: Number of steps between two decompositions.
        sua: Treat the taps of convolutions as spatially uncorrelated.
        rest: How to precondition what is not the matrix of a linear map: "block", "diagonal" or "plain".
        loss: Whether the loss is the "mean" or the "sum" over samples.
        curvature: "empirical" (per-sample gradients of the loss) or "sampled" (labels are drawn from the model).
        likelihood: For sampled curvature: "categorical", "bernoulli" or "gaussian".
        decoupled: Whether weight decay multiplies θ instead of being preconditioned.
        kl_clip: κ, 1e-3 by default: the step is shortened until η² uᵀ(F + ε)u ≤ κ, with η / (1 − μ) for η. None: no
            bound.
        scaler: The `torch.amp.GradScaler` of the training loop, if it calls `scaler.unscale_(opt)`.
        seed: The seed of the sampled labels.
        batch_axis: The axis of samples in the model's input: 0, or 1 if tokens come first.
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float,
        damping: float | Adaptive,
        *,
        damping_rule: str = "factored",
        **options: Unpack[Options],
    ) -> None:
        check_choice("damping_rule", damping_rule, DAMPINGS)
        super().__init__(model, lr, damping, Inverses(damping_rule), **options)


@final
@dataclass(frozen=True)
class Inverses(Method):
    """Multiply by the inverses of both damped factors, as of their last decomposition."""

    rule: str
    kind = "KFAC"
    fresh = False
    by_rows = False

    def options(self) -> dict[str, Any]:
        return {"damping_rule": self.rule}

    def decompose(self, layer: Layer, B: Tensor, A: Tensor, damping: float) -> BlockState:
        rule = layer.rule(self.rule)
        if rule == "single":
            found = eigenbases(layer, B, A)
            return {key: found[key] for key in ("left", "right", "values")}
        # The rules only need the mean eigenvalue of each factor, which is the mean of its diagonal.
        rows, columns = B.diagonal(dim1=1, dim2=2), layer.columns(A.diagonal(dim1=1, dim2=2))
        beta, alpha = shares(rule, damping, rows, columns)
        left, right = inverse(B, beta, f"cotangents of {layer.key}"), inverse(A, alpha, f"inputs of {layer.key}")
        return {"left": left, "right": right, **layer.alone(alpha)}

    def solve(self, systems: Sequence[System], n: int) -> Solved:
        return [(self._solved(system), system.state) for system in systems]

    def scale(self, last: Tensor | None, raw: Tensor, squares: Callable[[], Tensor], n: int) -> Tensor:
        return squares() if last is None else last

    def _solved(self, system: System) -> dict[str, Tensor]:
        """The preconditioned gradient of a layer, by parameter."""
        layer, state = system.layer, system.state
        left, right = state["left"], state["right"]
        per_sample = system.per_sample if system.full is system.raw else ()
        if "values" in state:
            u = layer.rotate(system.full, left, right, per_sample).div_(state["values"] + system.damping)
            return layer.back(u, left, right)
        found = layer.multiply(system.full, left, right, per_sample)
        if "alone" in state:
            bias = layer.names[1]
            found[bias] = (found[bias].view(len(right), -1) * state["alone"]).view(-1)
        return found
