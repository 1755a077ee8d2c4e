"""Several copies of a network trained at once: each from its own weights, on its own labels, on its own samples.

The copies of a plain stack of layers run as one wide network, those of any other through `vmap`. On a GPU a step is
recorded as a CUDA graph and replayed, because small networks spend their time launching kernels, not computing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from torchtangent.lab.wide import Weights, is_plain, outputs
from torchtangent.operators.recorded import Recorded

_EVALUATED = 2000  # samples at a time


@dataclass(frozen=True)
class Training:
    """How networks are trained: binary cross-entropy of one logit, the rate falling linearly to zero.

    Attributes:
        epochs: Passes over the samples; each in an order drawn from the seed, the last incomplete batch dropped.
        batch: Samples in a step.
        lr: The first step's rate.
        momentum: Of SGD; unused by Adam, which has its usual 0.9 and 0.999.
        optimizer: "sgd" or "adam".
        seed: Of the order.
    """

    epochs: int
    batch: int = 128
    lr: float = 0.05
    momentum: float = 0.9
    optimizer: Literal["sgd", "adam"] = "sgd"
    seed: int = 0

    def rates(self, samples: int) -> Float[Tensor, " steps"]:
        """The rate of every step."""
        steps = self.epochs * (samples // self.batch)
        return self.lr * (1 - torch.arange(steps, dtype=torch.float64) / steps)

    def orders(self, samples: int) -> list[Int[Tensor, "steps batch"]]:
        """The batches of every epoch."""
        generator = torch.Generator().manual_seed(self.seed)
        used = samples // self.batch * self.batch
        return [torch.randperm(samples, generator=generator)[:used].view(-1, self.batch) for _ in range(self.epochs)]


def copies(models: Sequence[nn.Module]) -> Weights:
    """The parameters of models of one architecture, stacked."""
    states = [dict(model.named_parameters()) for model in models]
    return {name: torch.stack([state[name].detach() for state in states]) for name in states[0]}


class Ensemble:
    """E copies of a network with one logit, and the state of their optimizer.

    Args:
        model: The architecture; its own weights are not used. Buffers are shared, modes as they are.
        weights: Where the copies begin.
    """

    def __init__(self, model: nn.Module, weights: Mapping[str, Tensor]) -> None:
        self.model = model
        self.weights: Weights = {name: w.clone() for name, w in weights.items()}
        self.size = len(next(iter(self.weights.values())))

    def outputs(self, x: Float[Tensor, "n ..."]) -> Float[Tensor, "E n"]:
        """The logits of every copy, on the same inputs."""
        with torch.no_grad():
            return torch.cat([self.logits(self.weights, part, shared=True) for part in x.split(_EVALUATED)], 1)

    def train(
        self,
        x: Float[Tensor, "n ..."],
        y: Float[Tensor, "E n"],
        how: Training,
        *,
        members: Int[Tensor, "E m"] | None = None,
        lrs: Sequence[float] | None = None,
        after: Callable[[int, Float[Tensor, " E"]], None] | None = None,
    ) -> None:
        """Train all copies, in place.

        Args:
            x: Inputs.
            y: Labels in {0, 1} of each copy.
            how: The recipe.
            members: Which samples each copy sees; all of them if not given, and then all copies see the same batches.
            lrs: The first step's rate of each copy, instead of the recipe's.
            after: Called after every epoch with its number (from 1) and each copy's mean loss over its steps.
        """
        count = x.shape[0] if members is None else members.shape[1]
        if count < how.batch:
            raise ValueError(f"{count} samples do not fill a batch of {how.batch}.")
        factors = torch.tensor([how.lr] if lrs is None else lrs, dtype=torch.float64) / how.lr
        step = _Step(self, x, y, how, members, how.rates(count).outer(factors))
        run = partial(Recorded(), step, ()) if x.is_cuda else step
        for epoch, order in enumerate(how.orders(count), start=1):
            step.begin(order)
            for _ in range(len(order)):
                run()
            if after is not None:
                after(epoch, step.mean_loss())

    def logits(self, weights: Weights, x: Tensor, *, shared: bool) -> Float[Tensor, "E n"]:
        """Of every copy, on the same inputs (n, ...) or on its own (E, n, ...)."""
        if is_plain(self.model):
            return outputs(self.model, weights, x, shared).squeeze(2)
        call = torch.vmap(partial(torch.func.functional_call, self.model), in_dims=(0, None if shared else 0))
        return call(weights, x).squeeze(2)


class _Step:
    """One step of all copies. What changes between steps is in tensors, so that the step can be replayed."""

    def __init__(
        self,
        ensemble: Ensemble,
        x: Tensor,
        y: Tensor,
        how: Training,
        members: Tensor | None,
        rates: Tensor,
    ) -> None:
        device = x.device
        self.x, self.y, self.how, self.members = x, y.to(x.dtype), how, members
        self.weights = list(ensemble.weights.values())
        self.first = [torch.zeros_like(w) for w in self.weights]
        self.second = [torch.zeros_like(w) for w in self.weights] if how.optimizer == "adam" else []
        self.rates = rates.to(device, x.dtype)
        self.order = torch.zeros(len(rates) // how.epochs, how.batch, dtype=torch.int64, device=device)
        self.cursor, self.done = (torch.zeros(1, dtype=torch.int64, device=device) for _ in range(2))
        self.losses = torch.zeros(ensemble.size, dtype=x.dtype, device=device)
        names = list(ensemble.weights)

        def loss(weights: tuple[Tensor, ...], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            f = ensemble.logits(dict(zip(names, weights, strict=True)), x, shared=members is None)
            losses = F.binary_cross_entropy_with_logits(f, y, reduction="none").mean(1)
            return losses.sum(), losses  # a copy's weights change its own loss alone

        self.gradients = torch.func.grad(loss, has_aux=True)

    def begin(self, order: Tensor) -> None:
        """An epoch with these batches."""
        self.order.copy_(order)
        self.cursor.zero_()
        self.losses.zero_()

    def mean_loss(self) -> Float[Tensor, " E"]:
        return self.losses / len(self.order)

    def __call__(self) -> None:
        batch = self.order.index_select(0, self.cursor).view(-1)
        if self.members is None:
            x, y = self.x.index_select(0, batch), self.y.index_select(1, batch)
        else:
            own = self.members.index_select(1, batch)
            x, y = self.x[own], self.y.gather(1, own)
        gradients, losses = self.gradients(tuple(self.weights), x, y)
        with torch.no_grad():
            rate = self.rates.index_select(0, self.done)
            self.done += 1
            self.cursor += 1
            self.losses += losses
            directions = self._adam(gradients) if self.second else self._momentum(gradients)
            for w, direction in zip(self.weights, directions, strict=True):
                w.addcmul_(rate.view(-1, *[1] * (w.ndim - 1)), direction, value=-1)

    def _momentum(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        torch._foreach_mul_(self.first, self.how.momentum)
        torch._foreach_add_(self.first, list(gradients))
        return self.first

    def _adam(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        steps = self.done.to(self.rates.dtype)
        torch._foreach_mul_(self.first, 0.9)
        torch._foreach_add_(self.first, list(gradients), alpha=0.1)
        torch._foreach_mul_(self.second, 0.999)
        torch._foreach_addcmul_(self.second, list(gradients), list(gradients), value=0.001)
        sizes = torch._foreach_div(self.second, 1 - 0.999 ** steps[0])
        torch._foreach_sqrt_(sizes)
        torch._foreach_add_(sizes, 1e-8)
        means = torch._foreach_div(self.first, 1 - 0.9 ** steps[0])
        return list(torch._foreach_div(means, sizes))
