"""What can be seen inside a network during a forward pass: the last representation, and which ReLUs are on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from torchtangent.complexity.fixed import batches
from torchtangent.jacobians.call import Network, undisturbed
from torchtangent.kernel.samples import Samples

_RELUS = (F.relu, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_)


@dataclass(frozen=True, eq=False)
class Activity:
    """What a forward pass shows.

    Attributes:
        outputs: f(x).
        representation: The input of the last linear layer; None if there is no such layer, or if the first axis of
            its input is not the samples.
        on: Whether each ReLU output is positive, for all layers in one vector; empty if there are none.
    """

    outputs: Float[Tensor, "N *out"]
    representation: Float[Tensor, "N *inner"] | None
    on: Bool[Tensor, " S"]


def activity(network: Network, samples: Samples) -> Activity:
    """Run the network on all samples, and record what can be seen inside."""
    outputs: list[Tensor] = []
    representations: list[Tensor] = []
    on = [torch.empty(0, dtype=torch.bool, device=samples.device)]
    with undisturbed():
        network.value(samples.few())  # from then on it is run once, also if its forward needs gradients
    for x in batches(samples):
        with undisturbed(), _Watch() as watch:
            f = network.value(x)
        outputs.append(f)
        representations += [r for r in watch.into_linear if r.dim() > 1 and len(r) == len(f)]
        on += watch.on
    return Activity(torch.cat(outputs), torch.cat(representations) if representations else None, torch.cat(on))


class _Watch(TorchFunctionMode):
    """Intercepts every call of `linear` and `relu`, by modules or as functions, without touching a module."""

    def __init__(self) -> None:
        super().__init__()
        self.into_linear: list[Tensor] = []  # the last one only
        self.on: list[Tensor] = []

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.linear:
            self.into_linear = [(args[0] if args else kwargs["input"]).detach().clone()]
        y = func(*args, **kwargs)
        if func in _RELUS:
            self.on.append((y > 0).flatten())
        return y
