"""The data sets 𝒟(u), on which one direction tells the label, and how well they are learned."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent import anisotropy
from torchtangent.lab.ensemble import Ensemble, Training, copies
from torchtangent.lab.recipes.ortiz2021.learning import Problem, accuracy, member, recipe, train_linear
from torchtangent.lab.recipes.ortiz2021.setting import image_shape, network, unit_vectors
from torchtangent.lab.runner import Context

MARGINS = {"ε": 1.0, "ε/2": 0.5}
"""How far 𝒟(u)'s classes are from the plane between them, with ε = 1: in the paper's text, and in the authors' code."""


def sample(
    u: Float[Tensor, " d"], count: int, margin: float, sigma: float, seed: int
) -> tuple[Float[Tensor, "N d"], Float[Tensor, " N"]]:
    """𝒟(u): x = margin · y u + w, with a fair sign y and w normal, of deviation sigma, in the plane orthogonal to u."""
    generator = torch.Generator().manual_seed(seed)
    y = 2 * torch.randint(2, (count,), generator=generator).to(u) - 1
    w = sigma * torch.randn(count, len(u), generator=generator, dtype=u.dtype).to(u)
    return w + (margin * y - w @ u).outer(u), y


def data_set(context: Context) -> Mapping[str, Any]:
    """OJ-Data-D(u): projections and covariance of 𝒟(u), with u random, for both readings of ε."""
    config = context.config
    u = unit_vectors(1, config["dimension"], config["seed"])[0]
    across = unit_vectors(1, len(u), config["seed"] + 1)[0]
    along_u, along_other, eigenvalues, apart = [], [], [], []
    for margin in context.track(list(config["margins"].values())):
        x, y = sample(u, config["samples"], margin, config["sigma"], config["seed"] + 2)
        means = torch.stack([x[y == sign].mean(0) for sign in (1, -1)])
        within = x - means[(y < 0).long()]
        gap = means[0] - means[1]
        gap -= (gap @ u) * u
        # What ‖gap‖² is on average where the classes differ by chance alone.
        chance = config["sigma"] ** 2 * (len(u) - 1) * sum(1 / int((y == sign).sum()) for sign in (1, -1))
        along_u.append(y * (x @ u))
        along_other.append(within @ across)
        eigenvalues.append(torch.linalg.eigvalsh(within.T @ within / len(x)).flip(0))
        apart.append(float(gap.square().sum() / chance))
    return {
        "margins": np.array(list(config["margins"])),
        "margin": np.array(list(config["margins"].values())),
        "along": torch.stack(along_u).numpy(),
        "across": torch.stack(along_other).numpy(),
        "eigenvalues": torch.stack(eigenvalues).numpy(),
        "apart_elsewhere": np.array(apart),
        "samples": config["samples"],
        "sigma": config["sigma"],
    }


def accuracies(context: Context) -> Mapping[str, Any]:
    """OJ-Fig4, OJ-NADdef: test accuracy of LeNet and of its linearization on 𝒟(v_j), with α(g_v)."""
    config, shape = context.config, image_shape(context.config)
    model = network("LeNet", shape, config).to(context.device)
    found = anisotropy.directions(copy.deepcopy(model).double(), shape)
    directions = found.vectors[config["indices"]].flatten(1).float()
    most, tested = max(config["sizes"]), config["test_samples"]
    form = (len(config["margins"]), len(config["indices"]), len(config["sizes"]))
    linearized, trained = np.zeros(form), np.zeros(form)
    for i, margin in enumerate(context.track(list(config["margins"].values()))):
        drawn = [sample(u, most + tested, margin, config["sigma"], config["seed"]) for u in directions]
        x = torch.stack([x.unflatten(1, shape) for x, _ in drawn])
        y = torch.stack([(y + 1) / 2 for _, y in drawn])
        for j in range(len(x)):
            setting = Problem(model, x[j], y[j].long(), most)
            K, f0 = setting.kernel(), setting.outputs()
            for k, size in enumerate(config["sizes"]):
                used = torch.cat([torch.arange(size), torch.arange(most, most + tested)]).to(K.device)
                fit = train_linear(K[used][:, used], f0[used], y[j, used][None], size, _training(config, size))
                linearized[i, j, k] = fit["linear_test"][0, -1]
        for k, size in enumerate(config["sizes"]):
            ensemble = Ensemble(model, copies([model] * len(x)))
            members = torch.arange(len(x))[:, None] * (most + tested) + torch.arange(size)
            labels = y.flatten().expand(len(x), -1)
            ensemble.train(x.flatten(0, 1), labels, _training(config, size), members=members.to(x.device))
            for j in range(len(x)):
                f = Problem(member(model, ensemble, j), x[j, most:], y[j, most:].long(), 0).outputs()
                trained[i, j, k] = accuracy(f[None], y[j, None, most:])
    return {
        "margins": np.array(list(config["margins"])),
        "indices": np.array(config["indices"]),
        "sizes": np.array(config["sizes"]),
        "alignments": found.alignments[config["indices"]].cpu().numpy(),
        "linearized": linearized,
        "network": trained,
    }


def _training(config: Mapping[str, Any], size: int) -> Training:
    """The study's recipe; a batch has at most as many samples as there are."""
    return recipe(config, batch=min(config["batch"], size))
