"""Networks and their linearizations trained on the same labels, by the same recipe, with the same batches."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

import torchtangent as tt
from torchtangent.lab.ensemble import Ensemble, Training, copies
from torchtangent.lab.models import init_lecun, lenet, mlp, resnet18
from torchtangent.lab.runner import Context
from torchtangent.linear import dual

EVALUATED = 2000  # samples at a time
MEASURED = 10_000  # training samples, the first, on which a network's loss is taken after every epoch


@dataclass(frozen=True, eq=False)
class Problem:
    """A network at its initialization, and images: those to train on first, then those to test on.

    Attributes:
        model: With one output, in eval mode.
        x: Standardized channel by channel with the training images' mean and deviation.
        classes: Of the images.
        train: How many images come first.
    """

    model: nn.Module
    x: Float[Tensor, "N *shape"]
    classes: Int[Tensor, " N"]
    train: int

    def kernel(self, model: nn.Module | None = None, precision: str | None = None) -> Float[Tensor, "N N"]:
        """The tangent kernel on all images, of the network or of another one."""
        model = self.model if model is None else model
        return tt.ntk(model, self.x, reduce="trace", precision=precision, progress=False).to(self.x.device)

    def outputs(self, model: nn.Module | None = None) -> Float[Tensor, " N"]:
        """The logits of the network, or of another one."""
        model = self.model if model is None else model
        with torch.no_grad():
            return torch.cat([model(part).squeeze(1) for part in self.x.split(EVALUATED)])


def problem(context: Context) -> Problem:
    """The configured network and images, on the device."""
    return problems(context, [context.config["seed"]])[0]


def problems(context: Context, seeds: Sequence[int]) -> list[Problem]:
    """The configured network from several seeds, with the same images."""
    config = context.config
    data = context.data(config["data"])
    every = data.x_train.to(context.device)
    deviation, mean = torch.std_mean(every, (0, 2, 3), keepdim=True)
    train, test = every[: config["train"]], data.x_test[: config["test"]].to(context.device)
    x = (torch.cat([train, test]) - mean) / deviation
    x = F.adaptive_avg_pool2d(x, config["side"])  # the least images at smoke scale; else as they are
    classes = torch.cat([data.y_train[: config["train"]], data.y_test[: config["test"]]]).to(context.device)
    models = [_network(config, (x.shape[1], x.shape[2], x.shape[3]), seed).to(context.device) for seed in seeds]
    return [Problem(model, x, classes, len(train)) for model in models]


def _network(config: Mapping[str, Any], shape: tuple[int, int, int], seed: int) -> nn.Module:
    """The configured network for images of this shape, in eval mode."""
    if config["network"] == "MLP":
        model: nn.Module = mlp([math.prod(shape), config["width"], config["width"], 1])
    elif config["network"] == "LeNet":
        model = lenet(shape)
    else:
        model = resnet18(shape[0], base=config["base"])
    return init_lecun(model, torch.Generator().manual_seed(seed)).eval()


def recipe(config: Mapping[str, Any], **changes: Any) -> Training:
    """How the study trains: SGD with momentum 0.9 from 0.05 linearly to 0, if the configuration says nothing else."""
    given = {key: config[key] for key in ("epochs", "batch", "lr", "optimizer") if key in config}
    return Training(**{"seed": config["seed"], **given, **changes})


def accuracy(f: Float[Tensor, "E n"], y: Float[Tensor, "E n"]) -> Float[Tensor, " E"]:
    """The fraction of logits on the right side of zero."""
    return ((f > 0) == (y > 0.5)).float().mean(1)


def distances(ensemble: Ensemble, start: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """‖θ − θ₀‖ and 1 − cos(θ, θ₀) of every copy."""

    def flat(weights: Mapping[str, Tensor]) -> Tensor:
        return torch.cat([w.flatten(1) for w in weights.values()], 1).double()

    now, before = flat(ensemble.weights), flat(start)
    return (now - before).norm(dim=1), 1 - torch.cosine_similarity(now, before, dim=1)


def member(model: nn.Module, ensemble: Ensemble, index: int) -> nn.Module:
    """One copy of an ensemble as a network of its own."""
    alone = copy.deepcopy(model)
    alone.load_state_dict({name: w[index] for name, w in ensemble.weights.items()}, strict=False)
    return alone


def train_networks(
    problem: Problem,
    y: Float[Tensor, "E N"],
    how: Training,
    *,
    lrs: Sequence[float] | None = None,
    after: Callable[[int, Ensemble], None] = lambda epoch, ensemble: None,
) -> tuple[Ensemble, dict[str, np.ndarray]]:
    """A copy of the network for each row of labels, all from θ₀; curves (E, epochs), distances, seconds.

    Each at the recipe's rate, or at one of its own.
    """
    start = copies([problem.model] * len(y))
    ensemble = Ensemble(problem.model, start)
    n, losses, tested = problem.train, [], []

    def measure(epoch: int, _: Tensor) -> None:
        f = ensemble.outputs(problem.x[: min(n, MEASURED)])
        losses.append(F.binary_cross_entropy_with_logits(f, y[:, : f.shape[1]], reduction="none").mean(1))
        tested.append(accuracy(ensemble.outputs(problem.x[n:]), y[:, n:]))
        after(epoch, ensemble)

    begin = time.perf_counter()
    ensemble.train(problem.x[:n], y[:, :n], how, lrs=lrs, after=measure)
    l2, cosine = distances(ensemble, start)
    return ensemble, {
        "network_loss": torch.stack(losses, 1).cpu().numpy(),
        "network_test": torch.stack(tested, 1).cpu().numpy(),
        "network_distance": l2.cpu().numpy(),
        "network_cosine": cosine.cpu().numpy(),
        "network_seconds": np.array(time.perf_counter() - begin),
    }


def train_linear(
    K: Float[Tensor, "N N"], f0: Float[Tensor, " N"] | None, y: Float[Tensor, "E N"], train: int, how: Training
) -> dict[str, np.ndarray]:
    """The linearization with kernel K for each row of labels; curves (E, epochs), distances, seconds."""
    begin = time.perf_counter()
    offset, offset_test = (None, None) if f0 is None else (f0[:train], f0[train:])
    fit = dual.SGD(
        K[:train, :train],
        y[:, :train].T,
        f0=offset,
        loss="bce",
        lr=how.lr,
        momentum=how.momentum,
        schedule="linear",
    ).run(
        epochs=how.epochs,
        batch_size=how.batch,
        K_test=K[train:, :train],
        y_test=y[:, train:].T,
        f0_test=offset_test,
        seed=how.seed,
        drop_last=True,
    )
    assert fit.test_accuracy is not None
    return {
        "linear_loss": fit.train_loss.T.cpu().numpy(),
        "linear_test": fit.test_accuracy.T.cpu().numpy(),
        "linear_distance": fit.distance().cpu().numpy(),
        "linear_seconds": np.array(time.perf_counter() - begin),
    }
