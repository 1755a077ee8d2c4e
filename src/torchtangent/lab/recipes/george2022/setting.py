"""What the parts share: networks, samples, and training as in the released code."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from torchtangent.lab.models import mlp, seeded
from torchtangent.lab.runner import Context

MOMENTUM = 0.9
ACTIVATIONS: dict[str, type[nn.Module]] = {"ReLU": nn.ReLU, "tanh": nn.Tanh}


def network(context: Context, activation: str = "ReLU", seed: int = 0) -> nn.Module:
    """A fully connected network for 28×28 images and ten classes, in float64."""
    build = partial(mlp, [784, *context.config["widths"], 10], ACTIVATIONS[activation])
    return seeded(build, seed).double().to(context.device)


def samples(context: Context) -> tuple[Float[Tensor, "N 1 h w"], Int[Tensor, " N"]]:
    """Training images, in float64, and their classes."""
    data, count = context.data(context.config["data"]), context.config["samples"]
    return data.x_train[:count].double().to(context.device), data.y_train[:count].to(context.device)


def test_samples(context: Context) -> tuple[Float[Tensor, "M 1 h w"], Int[Tensor, " M"]]:
    """Test images, in float64, and their classes."""
    data, count = context.data(context.config["data"]), context.config["test_samples"]
    return data.x_test[:count].double().to(context.device), data.y_test[:count].to(context.device)


def released(context: Context, model: nn.Module, alpha: float, seed: int = 0) -> Iterator[float]:
    """Train a network in place, for ever, in the released code's way; yields the loss of each batch before its step.

    The slope of the cross-entropy at α(f − f₀) is pulled back through f, and the learning rate divided by α once. The
    batches are those of `lab.train.epochs` with the same seed.
    """
    x, y = samples(context)
    start = copy.deepcopy(model).requires_grad_(False)
    parameters: list[Tensor] = list(model.parameters())
    velocity = [torch.zeros_like(p) for p in parameters]
    order = torch.Generator().manual_seed(seed)
    while True:
        for index in torch.randperm(len(x), generator=order).split(context.config["batch"]):
            index = index.to(x.device)
            f = model(x[index])
            scaled = (alpha * (f - start(x[index]))).detach().requires_grad_(True)
            loss = F.cross_entropy(scaled, y[index])
            yield loss.item()
            (slope,) = torch.autograd.grad(loss, scaled)
            gradient = torch.autograd.grad(f, parameters, slope)
            with torch.no_grad():
                torch._foreach_mul_(velocity, MOMENTUM)
                torch._foreach_add_(velocity, gradient)
                torch._foreach_add_(parameters, velocity, alpha=-context.config["lr"] / alpha)
