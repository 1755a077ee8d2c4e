"""EKFAC as an optimizer: KFAC's eigenbasis, with second moments in it that are kept up to date."""

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
from torchtangent.optim.method import Method, State, Task
from torchtangent.optim.options import Options
from torchtangent.optim.preconditioned import Preconditioned


@final
class EKFAC(Preconditioned):
    """θ ← θ − η U (Uᵀ∇ / (s + ε)), with U the eigenvectors of E[ddᵀ] ⊗ E[aaᵀ] for each layer.

    George et al. (2018), *Fast approximate natural gradient descent in a Kronecker-factored eigenbasis*. U is computed
    every `basis_every` steps, from the samples of that step's batch; s at every step:

    - scalings="batch": s = E[(Uᵀ∇_n)²] over the samples of the batch, the best diagonal for this basis;
    - scalings="average" (EKFAC-ra): s ← α s + (1 − α) N (Uᵀ∇)², a running average over mean gradients, which starts at
      KFAC's eigenvalues with each new basis. Cheaper: samples are needed only when U is renewed.

    Samples are the first axis of the model's input and output. Where they are in the layers is read off autograd's
    graph: n·k rows may be k consecutive ones for each of n samples, or come token by token. Where it does not tell
    (functions of one's own, checkpoints, compiled parts, a loss as output) they are taken to be the first. Two calls of
    equally many samples before one backward are two views of the same samples, with a warning; to accumulate gradients,
    call backward after each.

    A step that is too long makes the curvature of one batch stale before it is renewed: `kl_clip` bounds it, whatever
    the rate and momentum. Where it does (`opt.clipped` counts), `lr` and its schedule matter little. Where the loss
    still grows: raise `damping`, lower `kl_clip`, or renew more often; noisy curvature (batches of a few samples) wants
    more damping. Where training is steady but slow: kl_clip=1e-2. kl_clip=None is the step of the papers, for which
    `lr` and `damping` have to be searched. `damping` is in the units of squared gradients of one sample's loss: a loss
    that is a mean over many outputs, not their sum, wants a far smaller one.

    Args:
        model: The network, or the DistributedDataParallel around it. Its layers carry hooks until `close()`.
        lr: Learning rate η.
        damping: ε, a number or an `Adaptive`, for which `step` needs a closure.
        scalings: "batch" (default) or "average".
        decay: α, 0.75.
        damping_rule: "single" (default: ε is added to s), "factored" (√ε/π and π√ε to the eigenvalues of the two
            factors, with π² the ratio of their means) or "root" (√ε to both).
        params: Which parameters: patterns or a predicate of name and tensor (as in `tt.jacobian`), or tensors or
            groups as in torch, each with `lr`, `damping`, `momentum` or `weight_decay` of its own. By default all that
            are trainable now; what is unfrozen later moves only if it is in `params` (as with
            params=model.parameters()), from the next call of the model on.
        momentum: μ in m ← μ m + u, θ ← θ − η m; 0 by default.
        weight_decay: ω: ∇ + ωθ is preconditioned, or, if `decoupled`, θ is multiplied by 1 − ηω. Rather than a penalty
            in the loss, which is preconditioned as well, but with a warning.
        basis_every: Steps between two decompositions, 50 by default; with each it is checked that the layers saw the
            whole gradient.
        sua: Take the taps of convolutions as uncorrelated: smaller input factors, over channels only.
        rest: What is no matrix of a linear map: "block" (default: norm layers and lone biases by their exact block, or
            by one for each channel where that has more than 1024 rows; embeddings by their diagonal), "diagonal" or
            "plain". Parameters of which no sample's gradient is known (of recurrent layers, class tokens, tied tables)
            are divided by ε + a running average of N ∇², the mean gradient; with "plain" they keep it as it is.
        loss: Whether the loss is a "mean" (default) or a "sum" over samples; the step is the same for both if it is
            told (a sum of N samples that is taken for a mean makes steps far too short). With gradient accumulation
            "mean" is the mean over all samples since the last step.
        curvature: "empirical" (default: per-sample gradients of the loss) or "sampled" (labels drawn from the model;
            needs `likelihood`, and `step` a closure). Where a sample has several terms the likelihood sums over them.
        likelihood: "categorical" (classes are the last axis of outputs), "bernoulli" or "gaussian", for sampled
            curvature.
        decoupled: Whether weight decay multiplies θ by 1 − ηω instead of being preconditioned with the gradient.
        kl_clip: κ, 1e-3 by default: the step is shortened to η² uᵀ(F + ε)u ≤ κ, with η / (1 − μ) for η; where the rate
            rises, momentum shrinks by as much. If F is the Fisher matrix, that is twice the KL divergence that it
            causes; empirical curvature falls with the loss, and steps are then longer. Of a loss that is a mean over
            many outputs it is far weaker than of their sum. None for no bound.
        scaler: The `torch.amp.GradScaler` of the loop. Needed only where `scaler.unscale_(opt)` is called before
            `scaler.step(opt)`.
        seed: Of the sampled labels.
        batch_axis: That of samples in the model's input: 0, or 1 where it has tokens first.

    Attributes:
        steps: Steps taken.
        skipped: Steps not taken, because something was not finite.
        clipped: Steps that `kl_clip` shortened.

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
    """Divide by s + ε′ in the eigenbasis; `fresh` says whether s is the batch's own or a running average."""

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

    def decompose(self, layer: Layer, B: Tensor, A: Tensor, damping: float) -> State:
        return eigenbases(layer, B, A)

    def solve(self, tasks: Sequence[Task], n: int) -> list[tuple[dict[str, Tensor], State]]:
        bases = [(task.state["left"], task.state["right"]) for task in tasks]
        if self.fresh:
            found = [task.project(*basis) for task, basis in zip(tasks, bases, strict=True)]
            turned, values = [g for g, _ in found], [squares for _, squares in found]
        else:
            turned = [
                task.layer.rotate(task.raw, *basis, task.passes) for task, basis in zip(tasks, bases, strict=True)
            ]
            values = self._average([task.state["values"] for task in tasks], turned, n)
        for i, task in enumerate(tasks):
            if task.full is not task.raw:
                turned[i] = task.layer.rotate(task.full, *bases[i])
        torch._foreach_div_(turned, self._damped(tasks, values))
        return [
            (task.layer.back(g, *basis), {**task.state, "values": s})
            for task, g, basis, s in zip(tasks, turned, bases, values, strict=True)
        ]

    def scale(self, values: Tensor, raw: Tensor, squares: Callable[[], Tensor], n: int) -> Tensor:
        return squares() if self.fresh else self._average([values], [raw], n)[0]

    def _average(self, values: list[Tensor], g: list[Tensor], n: int) -> list[Tensor]:
        """α s + (1 − α) n g² of each layer."""
        found = list(torch._foreach_mul(values, self.decay))
        torch._foreach_addcmul_(found, g, g, value=(1 - self.decay) * n)
        return found

    def _damped(self, tasks: Sequence[Task], values: list[Tensor]) -> list[Tensor]:
        """s + ε′ of each layer."""
        if self.rule == "single":
            return list(torch._foreach_add(values, [task.damping for task in tasks]))
        return [s + self._shift(task) for task, s in zip(tasks, values, strict=True)]

    def _shift(self, task: Task) -> Tensor | float:
        more = shift(task.layer.rule(self.rule), task.damping, task.state["rows"], task.state["columns"])
        return task.layer.arrange(more) if isinstance(more, Tensor) else more
