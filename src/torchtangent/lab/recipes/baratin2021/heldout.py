"""Alignment of tangent kernels with labels on images that networks are not trained on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

import torchtangent as tt
from torchtangent.lab.recipes.baratin2021.training import CLASSES, Images, descend, halts, images, network
from torchtangent.lab.runner import Context
from torchtangent.lab.study import Part
from torchtangent.lab.train import deterministic

NETWORKS = ("MLP", "VGG19", "ResNet18")


@deterministic()
def alignment(context: Context) -> Mapping[str, Any]:
    """TG-FigB.5 and B.6: centred and uncentred alignment with the true labels on test images, along training.

    Kernels are taken in eval mode: with the statistics of a batch an output depends on the whole batch and has no
    tangent features of its own. So that running statistics are those of the data from the beginning, some batches go
    through a network with BatchNorm before it is trained.
    """
    config = context.config
    stops = halts(config["steps"], config["halts"])
    data = images(context)
    rows = [_run(context, data, seed, stops) for seed in config["seeds"]]
    cka, uncentred = np.moveaxis(np.array(rows, dtype=np.float32), 2, 0)
    return {"steps": np.array(stops), "cka": cka, "uncentred": uncentred}


def _run(context: Context, data: Images, seed: int, stops: list[int]) -> list[tuple[float, float]]:
    config = context.config
    model = network(config, data.x.shape[1:], seed).to(context.device).train()
    with torch.no_grad():
        for x in data.x.split(config["batch"])[: config["settling"]]:
            model(x)
    n, rows = config["samples"], []
    for _ in context.track(
        descend(model, data.x, data.y, lr=config["lr"], batch=config["batch"], seed=seed, stops=stops), len(stops)
    ):
        rows.append(label_alignment(model, data.x_test[:n], data.y_test[:n]))
    return rows


def label_alignment(model: nn.Module, x: Float[Tensor, "N ..."], y: Int[Tensor, " N"]) -> tuple[float, float]:
    """CKA(K, YYᵀ) with centering per class, and ⟨K, YYᵀ⟩ / ‖K‖ ‖YYᵀ‖, of the kernel in eval mode."""
    training = model.training
    model.eval()
    K = tt.ntk(model, x, progress=False)
    model.train(training)
    Y = F.one_hot(y, CLASSES).to(K)
    return float(tt.alignment.cka(K, y)), float(tt.alignment.kernels(K, torch.einsum("nc,me->nmce", Y, Y)))


PARTS = tuple(Part(f"held-out-{network}", alignment, long=True) for network in NETWORKS)


def configuration(pick: Callable[[Any, Any, Any], Any]) -> dict[str, dict[str, Any]]:
    """Of the parts above. ResNet18 has BatchNorm; VGG19 at smoke scale is a small network of its kind."""
    mlp = {
        "network": "MLP",
        "depth": 6,
        "width": pick(80, 80, 8),
        "data": pick("digits", "mnist", "digits"),
        "side": pick(8, 28, 8),
        "train": pick(1000, 10_000, 40),
        "test": pick(300, 5000, 20),
        "samples": pick(40, 100, 5),
        "seeds": pick([0, 1], [0, 1, 2], [0]),
        "steps": pick(400, 3000, 8),
        "halts": pick(10, 16, 3),
        "batch": pick(50, 100, 10),
        "lr": pick(0.02, 0.02, 0.02),
        "settling": 0,
    }
    vgg = mlp | {
        "network": pick("ConvNet", "VGG19", "ConvNet"),
        "base": pick(8, 64, 2),
        "data": pick("digits", "cifar10", "digits"),
        "side": pick(8, 32, 8),
        "seeds": pick([0, 1], [0], [0]),
        "steps": pick(400, 2000, 8),
        "halts": pick(10, 12, 3),
        "lr": 0.01,
    }
    resnet = vgg | {
        "network": "ResNet18",
        "base": pick(4, 64, 2),
        "steps": pick(200, 1000, 4),
        "settling": pick(20, 50, 2),
    }
    return dict(zip((part.name for part in PARTS), (mlp, vgg, resnet), strict=True))
