"""Plain training: stochastic gradient descent, a seed, nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def epochs(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    count: int,
    lr: float,
    batch: int,
    momentum: float = 0.9,
    seed: int = 0,
) -> Iterator[tuple[int, float]]:
    """Train on the cross-entropy, in place; yield (epoch, mean training loss) after each one.

    Every epoch goes through the data in an order drawn from the seed; the last batch may be smaller.
    """
    order = torch.Generator().manual_seed(seed)
    parameters: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
    velocity = [torch.zeros_like(p) for p in parameters]
    for epoch in range(1, count + 1):
        total = 0.0
        for index in torch.randperm(len(x), generator=order).split(batch):
            index = index.to(x.device)
            loss = F.cross_entropy(model(x[index]), y[index])
            gradient = torch.autograd.grad(loss, parameters)
            with torch.no_grad():  # by hand: torch.optim takes seconds to import
                torch._foreach_mul_(velocity, momentum)
                torch._foreach_add_(velocity, gradient)
                torch._foreach_add_(parameters, velocity, alpha=-lr)
            total += loss.item() * len(index)
        yield epoch, total / len(x)


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor, batch: int = 1000) -> float:
    """The fraction of samples whose largest output is the right one."""
    right = sum(int((model(a).argmax(1) == b).sum()) for a, b in zip(x.split(batch), y.split(batch), strict=True))
    return right / len(x)
