"""Networks of one architecture side by side, trained as one module."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F


class Copies(nn.Module):
    """E networks of linear layers with ReLUs between them and one output, each on its own inputs.

    A step of this module is a step of all of them. On a GPU it takes hardly longer than one network's.

    >>> nets = [nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)) for _ in range(2)]
    >>> x = torch.randn(2, 5, 2)
    >>> torch.allclose(Copies(nets)(x)[1], nets[1](x[1]).squeeze(1), atol=1e-6)
    True
    """

    def __init__(self, models: Sequence[nn.Sequential]) -> None:
        super().__init__()
        layers = list(zip(*(_linear(model) for model in models), strict=True))
        self.weights = nn.ParameterList(torch.stack([one.weight.detach() for one in layer]) for layer in layers)
        self.biases = nn.ParameterList(torch.stack([one.bias.detach() for one in layer]) for layer in layers)
        self._architecture = (models[0],)  # in a tuple, so that its weights are not this module's

    def forward(self, x: Float[Tensor, "E n d"]) -> Float[Tensor, "E n"]:
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias[:, None], x.relu() if i else x, weight.mT)
        return x.squeeze(2)

    def network(self, e: int) -> nn.Sequential:
        """The e-th network, with weights as they are now."""
        model = copy.deepcopy(self._architecture[0])
        self.write(e, model)
        return model

    def write(self, e: int, model: nn.Sequential) -> None:
        """Give a network of the same architecture the weights of the e-th one."""
        for layer, weight, bias in zip(_linear(model), self.weights, self.biases, strict=True):
            layer.weight.data, layer.bias.data = weight.detach()[e].clone(), bias.detach()[e].clone()


def _linear(model: nn.Sequential) -> list[nn.Linear]:
    return [module for module in model if isinstance(module, nn.Linear)]


def logistic(f: Float[Tensor, "E n"], y: Float[Tensor, "E n"]) -> Float[Tensor, " E"]:
    """The binary cross-entropy of every copy, for labels −1 and 1."""
    return F.softplus(-y * f).mean(1)
