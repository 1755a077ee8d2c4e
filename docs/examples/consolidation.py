"""Elastic weight consolidation: a second task is learned, held by the Fisher matrix of the first or not."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from trained import accuracy, model, x_test, x_train, y_train

import torchtangent as tt

fisher = tt.fisher(model, (x_train, y_train), tt.KFAC)  # of the digits as they are
before = {name: p.detach() for name, p in model.named_parameters()}
pixels = torch.randperm(64)  # the second task: their pixels in another order


def learn(model: nn.Module, penalty: Callable[[nn.Module], Tensor], epochs: int = 15) -> None:
    """SGD on the second task."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for _ in range(epochs):
        for batch in torch.randperm(len(x_train)).split(32):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x_train[batch][:, pixels]), y_train[batch])
            (loss + penalty(model)).backward()
            optimizer.step()


for strength in (0.0, 1.0, 100.0):
    later = copy.deepcopy(model)
    # ½ strength (θ − θ₀)ᵀ F (θ − θ₀)
    learn(later, lambda m: strength / 2 * fisher.quad({k: p - before[k] for k, p in m.named_parameters()}))  # noqa: B023
    first, second = (accuracy(later(x).argmax(1)) for x in (x_test, x_test[:, pixels]))
    print(f"strength {strength:3g}: accuracy on the first task {first:.0%}, on the second {second:.0%}")
