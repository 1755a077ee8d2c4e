"""EKFAC in the place of SGD: the same loop, the training loss after each epoch. Neither rate was searched for."""

import copy

import torch
from torch import nn
from trained import accuracy, initial, x_test, x_train, y_train

import torchtangent as tt


def losses(model: nn.Module, optimizer: torch.optim.Optimizer, epochs: int = 5) -> list[float]:
    """The training loss after each epoch."""
    found = []
    for _ in range(epochs):
        for batch in torch.randperm(len(x_train), generator=torch.Generator().manual_seed(0)).split(50):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x_train[batch]), y_train[batch]).backward()
            optimizer.step()
        with torch.no_grad():
            found.append(nn.functional.cross_entropy(model(x_train), y_train).item())
    return found


models = {name: copy.deepcopy(initial) for name in ("SGD", "EKFAC")}
optimizers = {
    "SGD": torch.optim.SGD(models["SGD"].parameters(), lr=0.1, momentum=0.9),
    "EKFAC": tt.optim.EKFAC(models["EKFAC"], lr=0.1, damping=1e-2, momentum=0.9, basis_every=20),
}
print(optimizers["EKFAC"].explain())
for name, optimizer in optimizers.items():
    shown = "  ".join(f"{loss:.4f}" for loss in losses(models[name], optimizer))
    print(f"{name:6} training loss  {shown}   test accuracy {accuracy(models[name](x_test).argmax(1)):.1%}")
