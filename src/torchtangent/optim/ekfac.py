"""EKFAC as an optimizer: KFAC's eigenbasis, in which the second moments are kept up to date."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Unpack, final

import torch
from torch import Tensor, nn

from torchtangent.notice import check_choice
from torchtangent.optim.damping import DAMPINGS, Adaptive, shift
from torchtangent.optim.decompose import eigenbases
from torchtangent.optim.layer import Layer
from torchtangent.optim.method import BlockState, Method, Solved, System
from torchtangent.optim.options import Options
from torchtangent.optim.preconditioned import Preconditioned


@final
class EKFAC(Preconditioned):
    """θ ← θ − η U (Uᵀ∇ / (s + ε)), with U the eigenvectors of E[ddᵀ] ⊗ E[aaᵀ] for each layer.

    George et al. (2018), *Fast approximate natural gradient descent in a Kronecker-factored eigenbasis*. U is computed
    every `basis_every` steps, from the batch of that step; s at every step:

    - scalings="batch": s = E[(Uᵀ∇_n)²] over the samples of the batch, the best diagonal in this basis;
    - scalings="average" (EKFAC-ra): s ← α s + (1 − α) N (Uᵀ∇)², a running average over mean gradients that starts from
      KFAC's eigenvalues whenever U is renewed. It is cheaper: per-sample gradients are needed only to renew U.

    **Samples.** The first axis of the model's input and output counts the samples. Inside the model they are followed
    through autograd's graph: the n·k rows that a layer sees may be k consecutive rows for each of n samples, or n
    samples for each of k tokens. Where the graph does not tell (custom autograd functions, checkpoints, compiled parts,
    a model that returns its loss) the first axis is assumed. Two calls of the model with equally many samples before
    one backward pass count as two views of the same samples, with a warning. To accumulate gradients, call backward
    after each batch.

    **Tuning.** A step that is too long makes the curvature stale before it is renewed. `kl_clip` bounds the step,
    whatever the learning rate and momentum; while it is active (see `opt.clipped`), `lr` and its schedule matter
    little. If the loss still grows, raise `damping`, lower `kl_clip`, or lower `basis_every`; batches of a few samples
    give noisy curvature and need more damping. (A batch of fewer samples than a layer is wide leaves directions of
    which no basis is better than another: rounding, as by the order of samples, then changes later steps a little.) If
    training is steady but slow, try kl_clip=1e-2. kl_clip=None is the step of the papers, for which `lr` and `damping`
    have to be searched. `damping` has the units of a squared gradient of one sample's loss: if the loss is the mean
    over many outputs, not their sum, it has to be far smaller.

    Args:
        model: The network, or the DistributedDataParallel around it. Its layers carry hooks until `close()`.
        lr: The learning rate η.
        damping: ε, a number, or an `Adaptive`, with which `step` needs a closure.
        scalings: "batch" (default) or "average".
        decay: α, 0.75 by default.
        damping_rule: "single" (default: ε is added to s), "factored" (√ε/π and π√ε are added to the eigenvalues of the
            two factors, where π² is the ratio of their means) or "root" (√ε is added to both).
        params: Which parameters to train: name patterns or a predicate of name and tensor, as in `tt.jacobian`; or
            tensors or groups, as in torch, where a group may have its own `lr`, `damping`, `momentum` and
            `weight_decay`. By default all that are trainable now. Parameters that are unfrozen later are trained only
            if they are in `params` (as with params=model.parameters()), from the next call of the model on.
        momentum: μ in m ← μ m + u, θ ← θ − η m; 0 by default.
        weight_decay: ω: ∇ + ωθ is preconditioned or, if `decoupled`, θ is multiplied by 1 − ηω. Use it instead of a
            penalty in the loss, which no layer records: that is preconditioned as well, but with a warning.
        basis_every: Number of steps between two decompositions, 50 by default. At each one it is also checked that
            what the layers recorded makes up the whole gradient.
        sua: Treat the taps of convolutions as spatially uncorrelated, which makes the input factors smaller.
        rest: How to precondition parameters that are not the matrix of a linear map. "block" (default): norm layers and
            lone biases by their exact block (channel by channel if it would have more than 1024 rows), embeddings by
            their diagonal. "diagonal": all by their diagonal. "plain": not at all. Parameters whose per-sample
            gradients are unknown (recurrent layers, class tokens, tied embeddings) are divided by ε plus a running
            average of N ∇², where ∇ is the mean gradient, or left as they are with "plain".
        loss: Whether the loss is the "mean" (default) or the "sum" over samples. Both give the same step; a sum that is
            declared a mean makes the steps far too short. With gradient accumulation, "mean" is the mean over all
            samples since the last step.
        curvature: "empirical" (default: per-sample gradients of the loss) or "sampled" (labels are drawn from the
            model; this needs `likelihood`, and a closure in `step`). The likelihood is the sum over the terms of a
            sample if it has several.
        likelihood: For sampled curvature: "categorical" (classes are the last axis of the outputs), "bernoulli" or
            "gaussian".
        decoupled: Whether weight decay multiplies θ by 1 − ηω instead of being preconditioned with the gradient.
        kl_clip: κ, 1e-3 by default. The step is shortened until η² uᵀ(F + ε)u ≤ κ, with η / (1 − μ) for η; where the
            learning rate rises, the momentum is reduced in proportion. If F is the Fisher matrix, the left side is
            twice the KL divergence that the step causes. Empirical curvature falls with the loss, which makes steps
            longer. If the loss is the mean over many outputs, not their sum, the bound is far weaker. None: no bound.
        scaler: The `torch.amp.GradScaler` of the training loop. Needed only if `scaler.unscale_(opt)` is called before
            `scaler.step(opt)`.
        seed: The seed of the sampled labels.
        batch_axis: The axis of samples in the model's input: 0, or 1 if tokens come first.

    Attributes:
        steps: Number of steps taken.
        skipped: Number of steps not taken because something was not finite.
        clipped: Number of steps that `kl_clip` shortened.

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
        kl_clip=0.001 shortened 20 of 20 steps, so that their length is set by it and not by lr
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
    """Divide by s + ε′ in the eigenbasis, where s is that of the batch if `fresh`, and else a running average."""

    fresh: bool
    decay: float
    rule: str
    kind = "EKFAC"
    by_rows = True

    def options(self) -> dict[str, Any]:
        return {
            "scalings": "batch" if self.fresh else "average",
            "decay": self.decay,
            "damping_rule": self.rule,
        }

    def decompose(self, layer: Layer, B: Tensor, A: Tensor, damping: float) -> BlockState:
        return eigenbases(layer, B, A)

    def solve(self, systems: Sequence[System], n: int) -> Solved:
        bases = [(system.state["left"], system.state["right"]) for system in systems]
        if self.fresh:
            found = [system.project(*basis) for system, basis in zip(systems, bases, strict=True)]
            turned, values = [g for g, _ in found], [squares for _, squares in found]
        else:
            turned = [
                system.layer.rotate(system.raw, *basis, system.per_sample)
                for system, basis in zip(systems, bases, strict=True)
            ]
            values = self._average([system.state["values"] for system in systems], turned, n)
        for i, system in enumerate(systems):
            if system.full is not system.raw:
                turned[i] = system.layer.rotate(system.full, *bases[i])
        torch._foreach_div_(turned, self._damped(systems, values))
        return [
            (system.layer.back(g, *basis), {**system.state, "values": s})
            for system, g, basis, s in zip(systems, turned, bases, values, strict=True)
        ]

    def scale(self, last: Tensor | None, raw: Tensor, squares: Callable[[], Tensor], n: int) -> Tensor:
        if self.fresh:
            return squares()
        return self._average([squares() if last is None else last], [raw], n)[0]

    def _average(self, values: list[Tensor], g: list[Tensor], n: int) -> list[Tensor]:
        """α s + (1 − α) n g² of each layer."""
        found = list(torch._foreach_mul(values, self.decay))
        torch._foreach_addcmul_(found, g, g, value=(1 - self.decay) * n)
        return found

    def _damped(self, systems: Sequence[System], values: list[Tensor]) -> list[Tensor]:
        """s + ε′ of each layer."""
        if self.rule == "single":
            return list(torch._foreach_add(values, [system.damping for system in systems]))
        return [s + self._shift(system) for system, s in zip(systems, values, strict=True)]

    def _shift(self, system: System) -> Tensor | float:
        """ε′ of a layer, arranged like its s."""
        more = shift(system.layer.rule(self.rule), system.damping, system.state["rows"], system.state["columns"])
        return system.layer.arrange(more) if isinstance(more, Tensor) else more
