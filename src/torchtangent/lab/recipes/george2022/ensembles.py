"""Networks and linearizations from many seeds, trained together by gradient descent on the logistic loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

import torchtangent as tt
from torchtangent.lab.ensemble import copies


class Ensemble(ABC):
    """One network or linearization for every seed, trained together on samples of its own."""

    @abstractmethod
    def loss(self) -> Float[Tensor, " E"]:
        """The training loss of each at its present parameters; what the next step needs is kept."""

    @abstractmethod
    def step(self) -> None:
        """A step of gradient descent from where `loss` was called."""

    @abstractmethod
    def on_grid(self, chosen: Bool[Tensor, " E"]) -> Float[Tensor, "chosen G"]:
        """The outputs of some of them on the grid."""


class Networks(Ensemble):
    """α(f − f₀) of fully connected networks with ReLUs, each on its own samples, at the learning rate η/α².

    Layers of all networks are products of stacked matrices, and gradients are taken by hand: autograd costs half as
    much again. What is kept is how far weights have moved, not the weights: for α = 100 a step is near the rounding of
    these in float32.
    """

    def __init__(self, models: list[nn.Module], x: Tensor, y: Tensor, grid: Tensor, alpha: float, lr: float) -> None:
        self.x, self.y, self.grid, self.alpha, self.lr = x, y, grid, alpha, lr
        self.start = [w if w.ndim == 3 else w[:, None] for w in copies(models).values()]
        self.moved = [torch.zeros_like(w) for w in self.start]
        self.at_start = _layers(self.start, x)[-1]
        self.gradient: list[Tensor] = []

    def loss(self) -> Float[Tensor, " E"]:
        weights = torch._foreach_add(self.start, self.moved)
        layers = _layers(weights, self.x)
        f = self.alpha * (layers[-1] - self.at_start).squeeze(2)
        back = self.alpha * _slope(f, self.y).unsqueeze(2)
        self.gradient = []
        for k in reversed(range(len(layers) - 1)):
            self.gradient = [torch.bmm(back.mT, layers[k]), back.sum(1, keepdim=True), *self.gradient]
            if k:  # the layer's inputs are ReLUs: the sign says which of them are on
                back = torch.bmm(back, weights[2 * k]).mul_(layers[k].sign())
        return logistic(f, self.y).mean(1)

    def step(self) -> None:
        torch._foreach_add_(self.moved, self.gradient, alpha=-self.lr / self.alpha**2)

    def on_grid(self, chosen: Bool[Tensor, " E"]) -> Float[Tensor, "chosen G"]:
        start = [w[chosen] for w in self.start]
        now = [w + moved[chosen] for w, moved in zip(start, self.moved, strict=True)]
        grid = self.grid.expand(len(start[0]), -1, -1)
        return self.alpha * (_layers(now, grid)[-1] - _layers(start, grid)[-1]).squeeze(2)


class Linearizations(Ensemble):
    """J(θ − θ₀) of the same networks, by their tangent kernels: θ − θ₀ is always some Jᵀc."""

    def __init__(self, models: list[nn.Module], x: Tensor, y: Tensor, grid: Tensor, lr: float) -> None:
        self.y, self.lr = y, lr
        pairs = list(zip(models, x, strict=True))
        self.kernel = torch.stack([tt.ntk(model, own, reduce="trace") for model, own in pairs])
        self.grid_kernel = torch.stack([tt.ntk(model, grid, own, reduce="trace") for model, own in pairs])
        self.c = torch.zeros_like(y)
        self.slope = torch.zeros_like(y)

    def loss(self) -> Float[Tensor, " E"]:
        f = _times(self.kernel, self.c)
        self.slope = _slope(f, self.y)
        return logistic(f, self.y).mean(1)

    def step(self) -> None:
        self.c -= self.lr * self.slope

    def on_grid(self, chosen: Bool[Tensor, " E"]) -> Float[Tensor, "chosen G"]:
        return _times(self.grid_kernel[chosen], self.c[chosen])


def _layers(weights: Sequence[Tensor], x: Float[Tensor, "E n i"]) -> list[Float[Tensor, "E n _"]]:
    """The inputs and what each layer makes of them; weights (E, o, i) and biases (E, 1, o) in turn, ReLUs between."""
    layers = [x]
    for w, b in zip(weights[::2], weights[1::2], strict=True):
        z = torch.baddbmm(b, layers[-1], w.mT)
        layers.append(z.relu_() if w is not weights[-2] else z)
    return layers


def _times(matrices: Float[Tensor, "E m n"], vectors: Float[Tensor, "E n"]) -> Float[Tensor, "E m"]:
    return torch.bmm(matrices, vectors.unsqueeze(2)).squeeze(2)


def logistic(f: Float[Tensor, "*any n"], y: Float[Tensor, "*some n"]) -> Float[Tensor, "*any n"]:
    """The loss log(1 + e^(−yf)) of every sample."""
    return F.softplus(-y * f)


def _slope(f: Float[Tensor, "E n"], y: Float[Tensor, "E n"]) -> Float[Tensor, "E n"]:
    """The gradient of the mean logistic loss of each by its outputs."""
    return -y * torch.sigmoid(-y * f) / f.shape[1]
