"""Trials: a network trained by one optimizer at one setting, and what it took."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

import torchtangent as tt
from torchtangent.lab.train import batches

KRONECKER = ("KFAC", "EKFAC", "EKFAC-ra")
"""The optimizers under study; their settings are a learning rate and a damping."""

BASELINES = ("SGD", "SGD+BN", "Adam+BN")
"""What they are compared with; settings are a learning rate and a momentum (β₁ of Adam)."""

COMPARED = {
    "autoencoder": (*KRONECKER, "SGD+BN", "Adam+BN"),
    "VGG11": (*KRONECKER, "SGD", "SGD+BN"),
    "ResNet34": ("KFAC", "EKFAC-ra", "SGD+BN"),
}
"""The optimizers of each comparison."""

Curves = dict[str, np.ndarray]
CURVES = ("loss", "valid", "seconds")
"""What is kept of a trial, epoch by epoch."""

_EVALUATED = 1000  # samples at a time


@dataclass(frozen=True, eq=False)
class Task:
    """Samples, networks to train on them, and what is to be minimized.

    Attributes:
        x: Inputs to train on.
        y: Their targets.
        x_valid: Inputs to validate on.
        y_valid: Their targets.
        network: From a seed, and whether it has BatchNorm, to a network.
        loss: Of outputs and targets: the mean over samples.
        valid: What is measured on the validation samples: the mean over samples.
    """

    x: Tensor
    y: Tensor
    x_valid: Tensor
    y_valid: Tensor
    network: Callable[[int, bool], nn.Module]
    loss: Callable[[Tensor, Tensor], Tensor]
    valid: Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class How:
    """One trial: all that is chosen besides the task.

    Attributes:
        optimizer: One of `KRONECKER` or `BASELINES`.
        lr: Learning rate η.
        other: The damping ε, or the momentum of a baseline.
        batch: Samples in a step; the last incomplete batch of an epoch is dropped.
        epochs: Passes over the samples.
        seed: Of the weights and of the order of samples.
        basis_every: Steps between two decompositions.
        damping_rule: How ε is added, by optimizer (see `tt.optim`).
        sua: Whether the taps of convolutions count as uncorrelated.
        halve_every: Epochs after which the learning rate is halved; 0: never.
    """

    optimizer: str
    lr: float
    other: float
    batch: int
    epochs: int
    seed: int = 0
    basis_every: int = 50
    damping_rule: str = "single"
    sua: bool = False
    halve_every: int = 0

    @classmethod
    def of(cls, config: Mapping[str, Any], lr: float, other: float, **more: Any) -> How:
        """A trial as a part's configuration has it, at some setting; keywords replace or add."""
        given = {field.name: config[field.name] for field in fields(cls) if field.name in config}
        return cls(**{**given, "lr": lr, "other": other, **more})


def make(model: nn.Module, how: How) -> torch.optim.Optimizer:
    """The optimizer of a trial; no momentum but in the baselines."""
    if how.optimizer in ("SGD", "SGD+BN"):
        return torch.optim.SGD(model.parameters(), how.lr, momentum=how.other)
    if how.optimizer == "Adam+BN":
        return torch.optim.Adam(model.parameters(), how.lr, betas=(how.other, 0.999))
    if how.optimizer not in KRONECKER:
        raise ValueError(f"no optimizer {how.optimizer!r}; there are: {', '.join((*KRONECKER, *BASELINES))}")
    shared: dict[str, Any] = {"basis_every": how.basis_every, "damping_rule": how.damping_rule, "sua": how.sua}
    shared["kl_clip"] = None  # the paper's steps are as long as their rate
    if how.optimizer == "KFAC":
        return tt.optim.KFAC(model, how.lr, how.other, **shared)
    scalings = "batch" if how.optimizer == "EKFAC" else "average"
    return tt.optim.EKFAC(model, how.lr, how.other, scalings=scalings, **shared)


def train(task: Task, how: How) -> Curves:
    """Run a trial.

    Returns:
        `loss`: The mean over the steps of each epoch, infinite from the epoch on in which the trial diverged.
        `valid`: Measured after each epoch in evaluation mode; infinite likewise.
        `seconds`: Of training up to the end of each epoch; evaluation does not count.
        `steps`: The loss of every step, infinite likewise.
    """
    model = task.network(how.seed, how.optimizer.endswith("+BN"))
    optimizer = make(model, how)
    steps = np.full((how.epochs, len(task.x) // how.batch), np.inf)
    valid, seconds = np.full(how.epochs, np.inf), np.zeros(how.epochs)
    spent = 0.0
    for epoch in range(how.epochs):
        begin = _now(task.x)
        losses = _epoch(task, model, optimizer, how, epoch)
        spent += _now(task.x) - begin
        seconds[epoch:] = spent
        if not bool(torch.isfinite(losses).all()):
            break
        steps[epoch] = losses.cpu().numpy()
        valid[epoch] = evaluate(model, task.x_valid, task.y_valid, task.valid)
        if how.halve_every and (epoch + 1) % how.halve_every == 0:
            for group in optimizer.param_groups:
                group["lr"] /= 2
    return {"loss": steps.mean(1), "valid": valid, "seconds": seconds, "steps": steps.flatten()}


def _epoch(task: Task, model: nn.Module, optimizer: torch.optim.Optimizer, how: How, epoch: int) -> Tensor:
    """The losses of an epoch's steps; not finite where training broke down."""
    try:
        return torch.stack(list(descend(task, model, optimizer, how, epoch)))
    except torch.linalg.LinAlgError:  # second moments that are not finite have no eigenvectors
        return torch.full((len(task.x) // how.batch,), torch.inf)


def descend(
    task: Task, model: nn.Module, optimizer: torch.optim.Optimizer, how: How, epoch: int
) -> Iterator[Float[Tensor, ""]]:
    """Take the steps of an epoch, in an order drawn from the seed; yield the loss that each began with."""
    model.train()
    order = torch.Generator().manual_seed(1000 * how.seed + epoch)
    for index in batches(len(task.x), how.batch, order, task.x.device):
        optimizer.zero_grad()
        loss = task.loss(model(task.x[index]), task.y[index])
        loss.backward()
        with warnings.catch_warnings():
            # Steps that are skipped because nothing is finite any more are seen in the loss.
            warnings.simplefilter("ignore", tt.TangentWarning)
            optimizer.step()
        yield loss.detach()


@torch.no_grad()
def evaluate(model: nn.Module, x: Tensor, y: Tensor, measure: Callable[[Tensor, Tensor], Tensor]) -> float:
    """The mean of a measure over samples, in evaluation mode."""
    model.eval()
    parts = zip(x.split(_EVALUATED), y.split(_EVALUATED), strict=True)
    total = torch.stack([measure(model(a), b) * len(a) for a, b in parts]).sum()
    return float(total / len(x))


def _now(x: Tensor) -> float:
    """Seconds, after the device has done its work."""
    if x.is_cuda:
        torch.cuda.synchronize(x.device)
    return time.perf_counter()


def stacked(trials: Sequence[Curves], *shape: int, names: Sequence[str] = CURVES) -> Curves:
    """The curves of several trials as (*shape, epochs), in float32."""
    return {
        name: np.stack([curves[name] for curves in trials]).reshape(*shape, -1).astype(np.float32) for name in names
    }


def best(search: Mapping[str, np.ndarray]) -> tuple[float, float]:
    """The setting with the lowest training loss in the last epoch of a search."""
    last = search["loss"][..., -1]
    i, j = np.unravel_index(np.argmin(last), last.shape)
    return float(search["rates"][i]), float(search["others"][j])
