"""Neural anisotropy directions (NADs): at the origin, averaged over inputs, and as images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent import anisotropy
from torchtangent.lab.recipes.ortiz2021.setting import gaussian, image_shape, network
from torchtangent.lab.runner import Context


def averaged(context: Context) -> Mapping[str, Any]:
    """OJ-NAD: directions at the origin, and of the average over Gaussian inputs, twice with other inputs."""
    config, shape = context.config, image_shape(context.config)
    alignments, seen, overlaps = [], [], []
    for name in context.track(config["networks"]):
        model = network(name, shape, config).double().to(context.device)
        origin = anisotropy.directions(model, shape)
        x = gaussian(shape, 2 * config["averaged"], config["seed"], next(model.parameters()))
        halves = [anisotropy.directions(model, shape, x=half) for half in x.split(config["averaged"])]
        V, *W = (found.vectors.flatten(1)[: config["leading"]] for found in (origin, *halves))
        alignments.append(torch.stack([found.alignments for found in (origin, *halves)]))
        seen.append(anisotropy.MixedDerivative(model, shape, x).norms(origin.vectors.flatten(1).T).square())
        overlaps.append([_overlap(V, W[0]), _overlap(V, W[1]), _overlap(W[0], W[1])])
    return {
        "networks": np.array(config["networks"]),
        "alignments": torch.stack(alignments).cpu().numpy(),
        "averaged_at_origin": torch.stack(seen).cpu().numpy(),
        "overlaps": np.array(overlaps),
        "leading": config["leading"],
    }


def _overlap(V: Float[Tensor, "K d"], W: Float[Tensor, "K d"]) -> float:
    """The mean squared cosine of two subspaces given by orthonormal rows: 1 for the same, K/d for random ones."""
    return float((V @ W.T).square().sum() / len(V))


def first(context: Context) -> Mapping[str, Any]:
    """OJ-Fig10: the first directions at the origin as images, and random images to compare them with."""
    config, shape = context.config, image_shape(context.config)
    found = []
    for name in context.track(config["networks"]):
        model = network(name, shape, config).to(context.device)
        found.append(anisotropy.directions(model, shape, k=config["count"]).vectors.squeeze(1))
    return {
        "networks": np.array(config["networks"]),
        "images": torch.stack(found).cpu().numpy(),
        "random": gaussian(shape, config["random"], config["seed"], torch.empty(0)).squeeze(1).numpy(),
    }
