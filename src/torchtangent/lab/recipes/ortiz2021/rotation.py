"""Sections 4.1 to 4.3: sample sizes, the rotation of the kernel, and kernels of trained networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

import torchtangent as tt
from torchtangent.lab.ensemble import Ensemble, copies
from torchtangent.lab.recipes.ortiz2021.learning import (
    Problem,
    accuracy,
    distances,
    member,
    problem,
    problems,
    recipe,
    train_linear,
    train_networks,
)
from torchtangent.lab.runner import Context


def sample_sizes(context: Context) -> Mapping[str, Any]:
    """OJ-CIFAR2, OJ-Fig5, OJ-Fig6, OJ-Tab1: CIFAR2 with growing training sets; the kernel while the largest trains."""
    config = context.config
    settings = problems(context, config["seeds"])
    y = cifar2(settings[0].classes)
    subsets = [_stratified(settings[0], max(config["sizes"]), seed) for seed in config["seeds"]]
    networks = _networks(context, settings, subsets, y)
    linear: dict[str, list[list[np.ndarray]]] = {}
    for setting, subset in zip(settings, subsets, strict=True):
        K, f0 = setting.kernel(), setting.outputs()
        test = torch.arange(setting.train, len(K), device=subset.device)
        runs = []
        for size in config["sizes"]:
            used = torch.cat([subset[:size], test])
            part = K[used][:, used]
            runs.append(train_linear(part, f0[used], y[used][None], size, recipe(config)))
        for name in ("linear_loss", "linear_test", "linear_distance"):
            linear.setdefault(name, []).append([run[name][0] for run in runs])
    return {
        "sizes": np.array(config["sizes"]),
        "probed": np.array(config["probed"]),
        **networks,
        **{name: np.array(values).swapaxes(0, 1) for name, values in linear.items()},  # (sizes, seeds, …)
    }


def _networks(
    context: Context, settings: Sequence[Problem], subsets: Sequence[Int[Tensor, " m"]], y: Float[Tensor, " N"]
) -> dict[str, np.ndarray]:
    """A network for each seed at every size: curves (sizes, seeds, epochs); energy along the largest's training."""
    config = context.config
    first = settings[0]
    start = copies([setting.model for setting in settings])
    curves: dict[str, list[list[Tensor]]] = {"network_loss": [], "network_test": [], "network_distance": []}
    energies: list[Tensor] = []
    for size in context.track(config["sizes"]):
        ensemble = Ensemble(first.model, start)
        for values in curves.values():
            values.append([])

        def measure(epoch: int, loss: Tensor, size: int = size, ensemble: Ensemble = ensemble) -> None:
            tested = accuracy(ensemble.outputs(first.x[first.train :]), y[first.train :].expand(ensemble.size, -1))
            found = (loss, tested, distances(ensemble, start)[0])
            for values, value in zip(curves.values(), found, strict=True):
                values[-1].append(value)
            if size == max(config["sizes"]) and epoch in config["probed"]:
                energies.append(_energy(context, first, ensemble, y))

        if size == max(config["sizes"]):
            energies.append(_energy(context, first, ensemble, y))
        members = torch.stack([subset[:size] for subset in subsets])
        ensemble.train(first.x, y.expand(ensemble.size, -1), recipe(config), members=members, after=measure)
    return {
        **{name: np.array([torch.stack(runs, 1).cpu().numpy() for runs in values]) for name, values in curves.items()},
        "energy": torch.stack(energies, 1).cpu().numpy(),  # (seeds, probed)
    }


def _energy(context: Context, setting: Problem, ensemble: Ensemble, y: Float[Tensor, " N"]) -> Float[Tensor, " E"]:
    """The energy concentration of the labels on the leading eigenvectors of every copy's kernel."""
    x, labels = setting.x[: context.config["kernel_samples"]], 2 * y[: context.config["kernel_samples"]] - 1
    kernels = (
        tt.ntk(member(setting.model, ensemble, i), x, reduce="trace", progress=False) for i in range(ensemble.size)
    )
    return torch.stack([tt.alignment.energy(K, labels, k=context.config["eigenvectors"]) for K in kernels])


def initial_energy(context: Context) -> Mapping[str, Any]:
    """OJ-Tab1: the energy concentration before training, from many seeds."""
    config = context.config
    found = []
    for setting in context.track(problems(context, config["seeds"])):
        labels = 2 * cifar2(setting.classes) - 1
        found.append(float(tt.alignment.energy(setting.kernel(), labels, k=config["eigenvectors"])))
    return {"energy": np.array(found)}


def pretrained(context: Context) -> Mapping[str, Any]:
    """OJ-Fig8, OJ-Fig9: linearizations at points of a network's training, on the task it was trained on.

    Both are unbiased, J(θ − θ_t), and start at the zero function.
    """
    config = context.config
    setting = problem(context)
    pairs = tt.spectrum.top(setting.kernel(), config["eigenfunction"] + 1)
    eigen = tt.spectrum.eigentasks(pairs)[:, -1].to(setting.x.dtype)
    y = torch.stack([eigen, cifar2(setting.classes)])
    points = {0: copies([setting.model] * len(y))}

    def keep(epoch: int, ensemble: Ensemble) -> None:
        if epoch in config["points"]:
            points[epoch] = {name: w.clone() for name, w in ensemble.weights.items()}

    _, networks = train_networks(setting, y, recipe(config), after=keep)
    found: dict[str, list[list[np.ndarray]]] = {"linear_loss": [], "linear_test": []}
    for weights in context.track(list(points.values())):
        runs = []
        for i, labels in enumerate(y):
            K = setting.kernel(member(setting.model, Ensemble(setting.model, weights), i))
            runs.append(train_linear(K, None, labels[None], setting.train, recipe(config)))
        for name, values in found.items():
            values.append([run[name][0] for run in runs])
    return {
        "tasks": np.array(["eigenfunction", "CIFAR2"]),
        "points": np.array(list(points)),
        **networks,
        **{name: np.array(values).swapaxes(0, 1) for name, values in found.items()},  # (tasks, points, epochs)
    }


def cifar2(classes: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
    """1 for the classes 0 to 4, 0 for 5 to 9."""
    return (classes <= 4).float()


def _stratified(setting: Problem, most: int, seed: int) -> Int[Tensor, " m"]:
    """Training samples in random order, of which every beginning has the classes in nearly equal parts."""
    generator = torch.Generator().manual_seed(seed)
    classes = setting.classes[: setting.train].cpu()
    order = torch.randperm(len(classes), generator=generator)
    rank = torch.empty_like(order)
    for c in classes.unique():
        own = order[classes[order] == c]
        rank[own] = torch.arange(len(own))
    shuffled = order[torch.argsort(rank[order], stable=True)]
    return shuffled[:most].to(setting.classes.device)
