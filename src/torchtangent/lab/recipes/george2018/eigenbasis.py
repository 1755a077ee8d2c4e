"""Figures 4.2 and 4.4 (c): what gradients look like in a Kronecker-factored eigenbasis that grows old."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, count
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchtangent.lab.recipes.george2018 import kfe
from torchtangent.lab.recipes.george2018.setting import recognition, reconstruction
from torchtangent.lab.recipes.george2018.training import How, Task, best, descend, make
from torchtangent.lab.runner import Context

_DECAY = 0.75  # of EKFAC-ra's running average, as in the released code


def classifier(context: Context) -> Mapping[str, Any]:
    """TG-Fig4.2: errors of KFAC and EKFAC along training of a small classifier, then correlations of its gradients.

    The basis, and KFAC's eigenvalues, are those of the measured samples when they were last computed; EKFAC's scalings
    are always those of the moment.
    """
    config = context.config
    task = recognition(context)
    steps = range(0, config["steps"] + 1, config["measure_every"])
    errors = np.zeros((len(config["seeds"]), 2, len(steps)))
    found: dict[str, Any] = {"steps": np.array(steps), "off_diagonal": np.zeros((len(config["seeds"]), 2))}
    x, y = task.x[: config["samples"]], task.y[: config["samples"]]
    for i, seed in enumerate(context.track(config["seeds"])):
        model = task.network(seed, False)
        assert isinstance(model, nn.Sequential)
        optimizer = torch.optim.Adam(model.parameters(), config["lr"])
        trial = How("Adam", config["lr"], 0.9, config["batch"], epochs=0, seed=seed)
        for step in _steps(task, model, optimizer, trial, config["steps"]):
            if step % config["measure_every"]:
                continue
            a, d = kfe.factors(model, config["layer"] - 1, x, y, task.loss)
            if step % config["basis_every"] == 0:
                basis = kfe.Basis.of(a, d)
            for j, diagonal in enumerate((basis.values, basis.scalings(a, d))):
                errors[i, j, step // config["measure_every"]] = float(kfe.error(a, d, basis, diagonal))
        matrices = _correlations(a, d, config["block"])
        found["off_diagonal"][i] = [_off_diagonal(matrix) for matrix in matrices]
        if i == 0:
            found["correlations"] = np.stack([matrix.cpu().numpy() for matrix in matrices]).astype(np.float16)
    return {**found, "errors": errors, "basis_every": np.array(config["basis_every"])}


def _correlations(a: Tensor, d: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Of the first gradient coordinates, in the parameters' basis and in the KFE."""
    basis = kfe.Basis.of(a, d)
    chosen = torch.arange(block, device=a.device)
    rotated = kfe.coordinates(a @ basis.right, d @ basis.left, chosen)
    return kfe.correlations(kfe.coordinates(a, d, chosen)), kfe.correlations(rotated)


def _off_diagonal(matrix: Tensor) -> float:
    """The mean magnitude off the diagonal."""
    size = len(matrix)
    return float((matrix.abs().sum() - matrix.diagonal().abs().sum()) / (size * (size - 1)))


def spectra(context: Context) -> Mapping[str, Any]:
    """TG-Fig4.4 (c): the spectrum of G and of its approximations in a basis that is computed once and kept.

    A layer of the auto-encoder is followed while EKFAC-ra trains it. KFAC keeps its eigenvalues, EKFAC has the scalings
    of the moment, EKFAC-ra its running average over the steps.
    """
    config = context.config
    task = reconstruction(context)
    trial = How.of(config, *best(context.arrays("search-EKFAC-ra")), epochs=1, seed=config["seed"])
    model = task.network(trial.seed, False)
    assert isinstance(model, nn.Sequential)
    weight, bias = [module for module in model if isinstance(module, nn.Linear)][config["layer"] - 1].parameters()
    x, y = task.x[: config["samples"]], task.y[: config["samples"]]
    steps = _steps(task, model, make(model, trial), trial, config["begin"] + config["steps"])
    next(step for step in steps if step == config["begin"])
    basis = kfe.Basis.of(*kfe.factors(model, config["layer"] - 1, x, y, task.loss))
    average = basis.values
    distances: list[list[float]] = []
    for age, _ in enumerate(chain([config["begin"]], steps)):
        context.stepped(age, config["steps"])
        if age:
            g = torch.cat([weight.grad, bias.grad.unsqueeze(1)], 1)
            average = _DECAY * average + (1 - _DECAY) * trial.batch * basis.rotate(g.double()).square()
        if age % config["measure_every"]:
            continue
        a, d = kfe.factors(model, config["layer"] - 1, x, y, task.loss)
        true = kfe.spectrum(a, d)
        approximations = (basis.values, basis.scalings(a, d), average)
        distances.append([float(kfe.distance(true, values)) for values in approximations])
    ends = [true, *(values.flatten().sort(descending=True).values for values in approximations)]
    shown = np.unique(np.geomspace(1, len(true), min(len(true), 200)).astype(int)) - 1
    return {
        "steps": np.arange(0, config["steps"] + 1, config["measure_every"]),
        "distances": np.array(distances).T,
        "shown": shown + 1,
        "spectra": torch.stack(ends)[:, torch.from_numpy(shown)].cpu().numpy(),
    }


def _steps(task: Task, model: nn.Module, optimizer: torch.optim.Optimizer, how: How, total: int) -> Iterator[int]:
    """Train; yield the number of steps taken, from 0 to the total."""
    yield 0
    taken = chain.from_iterable(descend(task, model, optimizer, how, epoch) for epoch in count())
    for step, _ in zip(range(1, total + 1), taken, strict=False):
        yield step
