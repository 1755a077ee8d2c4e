"""Copies trained together go where each would go alone with torch's own optimizers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchtangent.lab.ensemble import Ensemble, Training, copies
from torchtangent.lab.models import lenet, mlp, seeded


class Squared(nn.Module):
    """A layer that the wide network does not know."""

    def forward(self, x: Tensor) -> Tensor:
        return x.square()


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: mlp([64, 6, 1]),
    "lenet": lambda: lenet((1, 8, 8)),
    "pooled first": lambda: nn.Sequential(
        nn.MaxPool2d(2),
        nn.Tanh(),
        nn.Conv2d(1, 3, 2, stride=2, dilation=2, padding=1),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(12, 1),
    ),
    "through vmap": lambda: nn.Sequential(nn.Conv2d(1, 2, 3, bias=False), Squared(), nn.Flatten(), nn.Linear(72, 1)),
}


def alone(model: nn.Module, x: Tensor, y: Tensor, how: Training) -> list[float]:
    """torch.optim with the same batches; the mean loss of every epoch."""
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
    more = {"momentum": how.momentum} if how.optimizer == "sgd" else {}
    optimizer = kinds[how.optimizer](model.parameters(), lr=how.lr, **more)
    steps = how.epochs * (len(x) // how.batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1 - t / steps)
    found = []
    for order in how.orders(len(x)):
        losses = []
        for batch in order:
            optimizer.zero_grad()
            loss = F.binary_cross_entropy_with_logits(model(x[batch]).squeeze(1), y[batch])
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        found.append(sum(losses) / len(losses))
    return found


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("own", [False, True], ids=["same samples", "own samples"])
@pytest.mark.parametrize("size", [3, 10])  # convolutions with zeros between the copies, and in groups
def test_together_as_alone(name: str, optimizer: Literal["sgd", "adam"], own: bool, size: int) -> None:
    x = torch.randn(23, 1, 8, 8, dtype=torch.float64)
    models = [seeded(NETWORKS[name], s).double() for s in range(size)]
    y = torch.randint(2, (size, 23)).double()
    how = Training(epochs=3, batch=5, lr=0.05 if optimizer == "sgd" else 0.01, optimizer=optimizer, seed=4)
    members = torch.stack([torch.randperm(23)[:17] for _ in range(size)]) if own else None
    ensemble = Ensemble(NETWORKS[name]().double(), copies(models))
    losses: list[Tensor] = []
    ensemble.train(x, y, how, members=members, after=lambda epoch, loss: losses.append(loss))
    outputs = ensemble.outputs(x)
    for i, model in enumerate(models):
        seen = members[i] if members is not None else torch.arange(23)
        expected = alone(model, x[seen], y[i, seen], how)
        torch.testing.assert_close(torch.stack(losses)[:, i], torch.tensor(expected, dtype=torch.float64))
        torch.testing.assert_close(outputs[i], model(x).squeeze(1).detach(), rtol=1e-8, atol=1e-10)


def test_rates_of_their_own() -> None:
    x, y = torch.randn(20, 1, 8, 8, dtype=torch.float64), torch.randint(2, (20,)).double()
    models = [seeded(NETWORKS["mlp"], 0).double() for _ in range(2)]
    how = Training(epochs=2, batch=5, optimizer="adam")
    ensemble = Ensemble(models[0], copies(models))
    ensemble.train(x, y.expand(2, -1), how, lrs=[0.01, 0.1])
    for model, lr, f in zip(models, [0.01, 0.1], ensemble.outputs(x), strict=True):
        alone(model, x, y, replace(how, lr=lr))
        torch.testing.assert_close(f, model(x).squeeze(1).detach(), rtol=1e-8, atol=1e-10)


def test_too_few_samples() -> None:
    ensemble = Ensemble(mlp([4, 1]), copies([mlp([4, 1])]))
    with pytest.raises(ValueError, match="3 samples do not fill a batch of 8"):
        ensemble.train(torch.randn(3, 4), torch.zeros(1, 3), Training(epochs=1, batch=8))
