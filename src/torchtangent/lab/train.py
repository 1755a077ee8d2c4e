"""Plain training: stochastic gradient descent, a seed, nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from torchtangent.operators.recorded import Recorded


@final
class Descent:
    """SGD, a step at a time: exactly torch.optim.SGD's update, on a GPU as a replayed CUDA graph.

    The first step on a GPU runs plainly. From then on forward pass, backward pass and update are one graph, because a
    small network takes longer to launch than to compute. So every step is given tensors of the same shapes (`batches`
    drops the last incomplete batch), and the model must stay in the mode and on the device of the first step.

    Args:
        model: Trained in place, its trainable parameters.
        loss: (outputs, *rest) ↦ the loss, a scalar.
        lr: Of the next step; the attribute may be set at any time.
        momentum: As in torch.optim.SGD.
        weight_decay: Likewise.

    >>> model = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> descent = Descent(model, F.mse_loss, lr=0.25)
    >>> descent(torch.ones(3, 1), torch.zeros(3, 1)), model.weight.item()  # w ← w − 0.25 · 2w
    (tensor(1.), 0.5)
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., Tensor],
        *,
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
    ) -> None:
        self._model, self._loss, self._momentum, self._weight_decay = model, loss, momentum, weight_decay
        self._parameters: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
        if not self._parameters:
            raise ValueError("The model has no trainable parameters: nothing requires a gradient.")
        self._velocity = [torch.zeros_like(p) for p in self._parameters]
        self._value = torch.zeros((), dtype=self._parameters[0].dtype, device=self._parameters[0].device)
        self._rate = torch.full_like(self._value, lr)  # a tensor, so that it can change between replays
        self._lr = lr
        self._shapes: list[torch.Size] = []
        self._recorded = Recorded() if self._value.is_cuda else None

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        return self._lr

    @lr.setter
    def lr(self, lr: float) -> None:
        self._lr = lr
        self._rate.fill_(lr)

    def __call__(self, x: Float[Tensor, "n ..."], *rest: Tensor) -> Float[Tensor, ""]:
        """A step on loss(model(x), *rest).

        Returns:
            The loss before the step, detached, on the model's device: nothing waits for it.
        """
        given = [x, *rest]
        shapes = [t.shape for t in given]
        if self._shapes and shapes != self._shapes:
            raise ValueError(
                f"A step on tensors of shapes {_words(shapes)} after one on {_words(self._shapes)}: the step is "
                "recorded once, so all must be alike. Drop the last incomplete batch, or make another Descent."
            )
        self._shapes = shapes
        if self._recorded is None:
            self._step(*given)
        else:
            self._recorded(self._step, given)
        return self._value.clone()

    def _step(self, x: Tensor, *rest: Tensor) -> None:
        """All that changes from step to step is in tensors, so that on a GPU it can be replayed."""
        loss = self._loss(self._model(x), *rest)
        gradients = list(torch.autograd.grad(loss, self._parameters))
        with torch.no_grad():  # by hand: torch.optim takes seconds to import
            if self._weight_decay:
                gradients = list(torch._foreach_add(gradients, self._parameters, alpha=self._weight_decay))
            torch._foreach_mul_(self._velocity, self._momentum)
            torch._foreach_add_(self._velocity, gradients)
            torch._foreach_sub_(self._parameters, torch._foreach_mul(self._velocity, self._rate))
            self._value.copy_(loss)


@contextmanager
def deterministic() -> Iterator[None]:
    """On a GPU convolutions are always summed in the same order; the user's settings return.

    The order must not be chosen by timing either, though that finds faster ones for maps of a pixel or two.
    """
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        yield
    finally:
        cudnn.deterministic, cudnn.benchmark = before


def batches(
    count: int, batch: int, generator: torch.Generator, device: torch.device | str = "cpu"
) -> Iterator[Int[Tensor, " batch"]]:
    """The batches of one epoch: the samples' indices in an order drawn now, the last incomplete batch dropped.

    >>> [len(index) for index in batches(10, 4, torch.Generator().manual_seed(0))]
    [4, 4]
    """
    if count < batch:
        raise ValueError(f"{count} samples do not fill a batch of {batch}.")
    order = torch.randperm(count, generator=generator, device=generator.device)
    return iter(order[: count // batch * batch].to(device).split(batch))


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


def _words(shapes: list[torch.Size]) -> str:
    return ", ".join(str(tuple(shape)) for shape in shapes)
