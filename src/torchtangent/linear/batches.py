"""The samples of each step of SGD, and its learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from numbers import Integral
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

Schedule = str | Callable[[int], float]
Epochs = Iterator[list[Int[Tensor, " _"]]]
"""The batches of each epoch, on the CPU."""

SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "linear": lambda done: 1 - done,
    "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,
}
"""Factors on the learning rate, as functions of the fraction of steps done."""


def check_schedule(schedule: Schedule) -> None:
    """Refuse the name of an unknown schedule."""
    if not callable(schedule) and schedule not in SCHEDULES:
        names = ", ".join(map(repr, SCHEDULES))
        raise ValueError(f"schedule={schedule!r} is not known. Choose one of {names}, or pass a function of the step.")


def rates(lr: float, schedule: Schedule, steps: int) -> list[float]:
    """The learning rate of each step.

    >>> rates(1.0, "linear", 4)
    [1.0, 0.75, 0.5, 0.25]
    """
    factor = schedule if callable(schedule) else (lambda t: SCHEDULES[schedule](t / steps))
    return [lr * float(factor(t)) for t in range(steps)]


def check_count(value: Any, name: str) -> None:
    """Refuse anything but a whole number of at least 1."""
    if not isinstance(value, Integral) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}.")


def shuffled(samples: int, epochs: int, batch_size: int, seed: int, drop_last: bool) -> tuple[int, Epochs]:
    """The number of steps, and their batches: all samples, shuffled anew for each epoch."""
    check_count(batch_size, "batch_size")
    used = samples - samples % batch_size if drop_last else samples
    if used == 0:
        raise ValueError(f"drop_last leaves no batch: batch_size={batch_size} is more than the {samples} samples.")

    def drawn() -> Epochs:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(epochs):
            yield [*torch.randperm(samples, generator=generator, device="cpu")[:used].split(batch_size)]

    return epochs * math.ceil(used / batch_size), drawn()


def divided(batches: Iterable[Tensor], epochs: int, samples: int) -> tuple[int, Epochs]:
    """The number of given batches, and the batches divided into epochs of equally many."""
    given = [torch.as_tensor(batch).cpu() for batch in batches]
    for t, batch in enumerate(given):
        if batch.dim() != 1 or len(batch) == 0 or batch.dtype != torch.long:
            raise ValueError(
                f"batches[{t}] must be a list of samples (int64), got {tuple(batch.shape)} of {batch.dtype}."
            )
        if int(batch.min()) < 0 or int(batch.max()) >= samples:
            raise ValueError(
                f"batches[{t}] must be indices of the {samples} samples, got {int(batch.min())} to {int(batch.max())}."
            )
    if not given or len(given) % epochs:
        raise ValueError(f"{len(given)} batches cannot be divided into epochs={epochs} parts of as many steps.")
    steps = len(given) // epochs
    return len(given), (given[i : i + steps] for i in range(0, len(given), steps))
