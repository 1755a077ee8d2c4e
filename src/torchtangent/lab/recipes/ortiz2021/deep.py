"""ResNet18: one network at a time, its kernel at all samples.

BatchNorm is read as follows. The kernel at initialization, and with it the linearization, has the initial statistics
(mean 0, variance 1), as the paper's text says. Networks are trained with the statistics of the batch ("train"), or with
the initial ones throughout ("frozen"). A trained network's kernel is taken with the statistics it has gathered
("running"), or with the initial ones put back ("initial"), as in the released code.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

import torchtangent as tt
from torchtangent.lab.recipes.ortiz2021.eigenfunctions import products_of_random_vectors, signs, timed
from torchtangent.lab.recipes.ortiz2021.learning import MEASURED, Problem, accuracy, problem, recipe, train_linear
from torchtangent.lab.recipes.ortiz2021.measures.rotation import STATISTICS
from torchtangent.lab.recipes.ortiz2021.rotation import cifar2
from torchtangent.lab.runner import Context
from torchtangent.lab.train import Descent

WHOLE = ("eigenvalues", "binarized", "random", "kernel_seconds", "eigen_seconds", "linear_seconds", "cifar2_test")
PER_INDEX = ("linear_loss", "linear_test", "linear_distance")
PER_RUN = ("network_loss", "network_test", "network_distance", "network_cosine")
"""Arrays of the kernel's part, as they are and one row for each index, and of the runs on single eigenfunctions."""


def kernel(context: Context) -> Mapping[str, Any]:
    """The kernel at all samples, its eigenvectors, and linearizations trained on their signs and on CIFAR2."""
    config = context.config
    setting = problem(context)
    K, kernel_seconds = timed(lambda: setting.kernel(precision=config["precision"]))
    pairs, eigen_seconds = timed(lambda: tt.spectrum.top(K, config["eigenfunctions"]))
    labels = signs(pairs, config["indices"])
    how = recipe(config)
    linear = train_linear(K, setting.outputs(), labels, setting.train, how)
    which = config["indices"].index(config["eigenfunction"])
    unbiased = train_linear(K, None, labels[which, None], setting.train, how)
    task = train_linear(K, setting.outputs(), cifar2(setting.classes)[None], setting.train, how)
    return {
        "indices": np.array(config["indices"]),
        "labels": np.packbits(labels.bool().cpu().numpy(), axis=1),
        "eigenvalues": pairs.values.cpu().numpy(),
        "binarized": (pairs.vectors.abs().sum(0) / len(setting.x) ** 0.5).cpu().numpy(),
        "random": products_of_random_vectors(len(setting.x), config["draws"], config["seed"]),
        "kernel_seconds": kernel_seconds,
        "eigen_seconds": eigen_seconds,
        **linear,
        "unbiased_loss": unbiased["linear_loss"],
        "unbiased_test": unbiased["linear_test"],
        "cifar2_test": task["linear_test"],
    }


def network(context: Context) -> Mapping[str, Any]:
    """OJ-Fig2, OJ-Fig3: the network trained on the signs of one eigenfunction."""
    config = context.config
    setting = problem(context)
    curves = _trained(context, setting, _stored_labels(context, setting), config["statistics"])[1]
    return {name: values[None] for name, values in curves.items()}


def collected(context: Context) -> Mapping[str, Any]:
    """OJ-Gram, OJ-Bin, OJ-Fig2, OJ-Fig3: the runs on single eigenfunctions beside the linearizations, in one place."""
    found = context.arrays("kernel-ResNet18")
    order = np.argsort(context.config["indices"])
    indices = np.array(context.config["indices"])[order]
    chosen = [found["indices"].tolist().index(index) for index in indices]
    runs = [context.arrays(context.part.needs[1:][k]) for k in order]
    return {
        "indices": indices,
        **{name: found[name] for name in WHOLE},
        **{name: found[name][chosen] for name in PER_INDEX},
        **{name: np.concatenate([run[name] for run in runs]) for name in PER_RUN},
        "network_seconds": np.sum([run["network_seconds"] for run in runs]),
    }


def pretrained(context: Context) -> Mapping[str, Any]:
    """OJ-Fig8: the network on one eigenfunction, and its linearizations at the weights where it ends, without bias.

    They differ in BatchNorm's statistics.
    """
    config = context.config
    setting = problem(context)
    y = _stored_labels(context, setting)
    model, curves = _trained(context, setting, y, config["statistics"])
    before = context.arrays("kernel-ResNet18")
    after = []
    for statistics in config["linearized_with"]:
        K = setting.kernel(_with_statistics(model, statistics), precision=config["precision"])
        after.append(train_linear(K, None, y[None], setting.train, recipe(config)))
        del K
    return {
        "tasks": np.array(["eigenfunction"]),
        "points": np.array([0, *[config["epochs"]] * len(after)]),
        **{name: values[None] for name, values in curves.items()},
        "linear_loss": np.stack([before["unbiased_loss"], *(run["linear_loss"] for run in after)], 1),
        "linear_test": np.stack([before["unbiased_test"], *(run["linear_test"] for run in after)], 1),
    }


def table(context: Context) -> Mapping[str, Any]:
    """OJ-Tab1: CIFAR2; energy concentration before and after training, for both readings of the statistics."""
    config = context.config
    setting = problem(context)
    y = cifar2(setting.classes)
    model, curves = _trained(context, setting, y, config["statistics"])
    x, labels = setting.x[: config["kernel_samples"]], 2 * y[: config["kernel_samples"]] - 1

    def energy(network: nn.Module) -> float:
        K = tt.ntk(network, x, reduce="trace", precision=config["precision"], progress=False)
        return float(tt.alignment.energy(K, labels, k=config["eigenvectors"]))

    return {
        "energy_before": energy(setting.model),
        "energy_after": np.array([energy(_with_statistics(model, statistics)) for statistics in STATISTICS]),
        **curves,
    }


class _Mixed(nn.Module):
    """A network whose convolutions compute in bfloat16 where there is a GPU; one logit per sample."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, " n"]:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda):
            return self.model(x).squeeze(1).float()


def _trained(
    context: Context, setting: Problem, y: Float[Tensor, " N"], statistics: str
) -> tuple[nn.Module, dict[str, np.ndarray]]:
    """The network trained from θ₀ by the study's recipe; curves over epochs, distances, seconds."""
    model, n, how = copy.deepcopy(setting.model), setting.train, recipe(context.config)
    mixed = _Mixed(model).train(statistics == "train")
    x = setting.x.to(memory_format=torch.channels_last)
    start = [p.detach().clone() for p in model.parameters()]
    descent = Descent(mixed, F.binary_cross_entropy_with_logits, lr=how.lr, momentum=how.momentum)
    rates, losses, tested = how.rates(n).tolist(), [], []
    began = time.perf_counter()
    for epoch in context.track(how.orders(n)):
        for batch in epoch.to(x.device):
            descent.lr = rates.pop(0)
            descent(x[batch], y[batch])
        mixed.eval()
        f = _outputs(mixed, x[: min(n, MEASURED)])
        losses.append(F.binary_cross_entropy_with_logits(f, y[: len(f)]))
        tested.append(accuracy(_outputs(mixed, x[n:])[None], y[None, n:])[0])
        mixed.train(statistics == "train")
    mixed.eval()
    now, then = (torch.cat([p.flatten() for p in ps]).double() for ps in (model.parameters(), start))
    return model, {
        "network_loss": torch.stack(losses).cpu().numpy(),
        "network_test": torch.stack(tested).cpu().numpy(),
        "network_distance": (now - then).norm().detach().cpu().numpy(),
        "network_cosine": (1 - torch.cosine_similarity(now, then, dim=0)).detach().cpu().numpy(),
        "network_seconds": np.array(time.perf_counter() - began),
    }


@torch.no_grad()
def _outputs(model: nn.Module, x: Float[Tensor, "n c h w"]) -> Float[Tensor, " n"]:
    return torch.cat([model(part) for part in x.split(2000)])


def _with_statistics(model: nn.Module, statistics: str) -> nn.Module:
    """A copy of a trained network, BatchNorm with the statistics it has gathered, or with the initial ones."""
    model = copy.deepcopy(model).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d) and statistics == "initial":
            module.reset_running_stats()
    return model


def _stored_labels(context: Context, setting: Problem) -> Float[Tensor, " N"]:
    """The signs of the configured eigenfunction, as the kernel's part left them."""
    found = context.arrays("kernel-ResNet18")
    row = found["labels"][found["indices"].tolist().index(context.config["eigenfunction"])]
    return torch.from_numpy(np.unpackbits(row, count=len(setting.x)).astype(np.float32)).to(context.device)
