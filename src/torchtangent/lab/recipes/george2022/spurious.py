"""Spurious correlations: an attribute that is easier to see than the label, and that mostly agrees with it.

CelebA and Waterbirds have to be fetched by hand. The stand-in for both are images with a bright patch in one of two
corners: a network is trained from scratch to tell the classes 0–4 from 5–9 (for CelebA), or one that was trained on
eight classes learns to tell the other two, cats and dogs in CIFAR-10 (for Waterbirds, where the study begins with a
network trained on ImageNet).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from torchtangent.lab import data as datasets
from torchtangent.lab.data import Groups
from torchtangent.lab.recipes.george2022.images import network, prepared, split
from torchtangent.lab.recipes.george2022.noise import SEEDS
from torchtangent.lab.recipes.george2022.pretrained import from_imagenet, on_other_classes, with_new_head
from torchtangent.lab.recipes.george2022.scaled import Task, train
from torchtangent.lab.runner import Context
from torchtangent.lab.study import Part

ALPHAS = {"a05": 0.5, "a1": 1.0, "a100": 100.0}
PAIR = (3, 5)
"""The classes that the network which was trained on the others learns to tell: cats and dogs."""

_GROUPS = ("00", "01", "10", "11")  # label, attribute
_TRAINED = 1000  # samples of the training set as it is that are looked at


def configuration(pick: Callable[[Any, Any, Any], Any]) -> dict[str, dict[str, Any]]:
    """What the parts of this file are given, by part. At small scales the stand-in takes the photographs' place."""
    standin = {
        "data": pick("digits", "cifar10", "digits"),
        "side": pick(8, 32, 8),
        "train": pick(1437, 15_000, 300),
        "agree": 0.95,
        "strength": 0.25,
        "network": pick("MLP", "ResNet18", "MLP"),
        "widths": pick([128, 128], [], [16]),
        "base": pick(0, 64, 0),
        "lr": pick(0.05, 0.01, 0.05),
        "batch": pick(50, 100, 20),
        "smoothing": 0.66,
        "until": pick(0.02, 0.02, 0.5),
        "watched": pick(90, 150, 5),
        "probed": pick(50, 100, 5),
        "start": "scratch",
        "seed": 0,
    }
    tuned = standin | {
        "start": "other classes",
        "strength": pick(1.0, 0.5, 1.0),
        "train": pick(290, 4795, 40),
        "lr": pick(0.01, 0.001, 0.01),
        "before": pick(10, 3, 1),
        "before_lr": 0.05,
    }
    real = pick({}, {"side": 224, "watched": 180}, {})
    celeba = standin | real | {"data": pick("digits", "celeba", "digits"), "train": pick(300, 20_000, 300)}
    birds = tuned | real | {"data": pick("digits", "waterbirds", "digits")}
    birds["start"] = pick("other classes", "ImageNet", "other classes")
    lengths = {
        "patch": {"a05": pick(40, 20, 2), "a1": pick(40, 20, 2), "a100": pick(80, 40, 2)},
        "finetuned": {"a05": pick(100, 40, 2), "a1": pick(100, 40, 2), "a100": pick(300, 60, 2)},
    }
    found = {
        f"{name}-{key}-s{seed}": run | {"alpha": alpha, "seed": seed, "epochs": lengths[name][key]}
        for name, run in (("patch", standin), ("finetuned", tuned))
        for seed in SEEDS
        for key, alpha in ALPHAS.items()
    }
    found |= {
        f"{name}-{key}": run | {"alpha": alpha, "epochs": pick(2, 100, 2)}
        for name, run in (("celeba", celeba), ("waterbirds", birds))
        for key, alpha in ALPHAS.items()
    }
    return found


def groups(context: Context) -> Mapping[str, Any]:
    """TG-Fig5.3, TG-FigC.7, TG-FigC.8: samples for each label and attribute along training on both together.

    `with` are the groups in which the attribute helps: those where it agrees with the label; in CelebA the women.
    """
    photographed = context.config["data"] in ("celeba", "waterbirds")
    model, sets = (_photographed if photographed else _patched)(context)
    looked = {"train": (sets["train"].x[:_TRAINED], sets["train"].y[:_TRAINED])}
    for part in ("train", "test"):
        looked |= _by_group(part, sets[part], context.config["watched"])
    task = Task(sets["train"].x, sets["train"].y, looked, _spread(sets["test"].x, context.config["probed"]))
    helped = ("01", "11") if context.config["data"] == "celeba" else ("00", "11")
    return train(context, model, task) | {"with": np.array(helped)}


def _by_group(part: str, samples: Groups, most: int) -> dict[str, tuple[Tensor, Tensor]]:
    """At most so many samples of each group, by name."""
    found = {}
    for number, name in enumerate(_GROUPS):
        chosen = (samples.group == number).nonzero()[:most, 0]
        found[f"{part} {name}"] = (samples.x[chosen], samples.y[chosen])
    return found


def _spread(x: Float[Tensor, "n c h w"], count: int) -> Float[Tensor, "count c h w"]:
    """So many samples at equal distances: photographs are in the order of their groups."""
    return x[torch.arange(count, device=x.device) * len(x) // count]


def _patched(context: Context) -> tuple[nn.Module, dict[str, Groups]]:
    """A network with one output, and the stand-in's samples."""
    config, raw = context.config, split(context)
    generator = torch.Generator().manual_seed(config["seed"])
    scratch = config["start"] == "scratch"
    pair = torch.tensor(PAIR)

    def marked(x: Float[Tensor, "n c h w"], y: Int[Tensor, " n"], agree: float) -> Groups:
        if not scratch:
            x, y = x[torch.isin(y, pair)], y[torch.isin(y, pair)]
        binary = (y >= 5).long()  # that tells the pair, too
        x, binary = x[: config["train"]], binary[: config["train"]]
        found = datasets.spurious(x, binary, agree=agree, generator=generator)
        blended = torch.lerp(x, found.x, config["strength"])
        return Groups(prepared(context, blended), found.y.to(context.device), found.spurious.to(context.device))

    sets = {"train": marked(raw.x, raw.y, config["agree"]), "test": marked(raw.x_test, raw.y_test, 0.5)}
    if scratch:
        return network(context, sets["train"].x, outputs=1), sets
    others = ~torch.isin(raw.y, pair)
    before = on_other_classes(context, prepared(context, raw.x[others]), raw.y[others].to(context.device))
    return with_new_head(before, config["seed"]), sets


def _photographed(context: Context) -> tuple[nn.Module, dict[str, Groups]]:
    """A network with one output, and CelebA's or Waterbirds' samples."""
    config = context.config
    read = {"celeba": datasets.celeba, "waterbirds": datasets.waterbirds}[config["data"]]
    sets = {}
    for part in ("train", "test"):
        photographs = read(context.data_root, part)
        context.checksums.update(photographs.checksums)
        index = torch.arange(min(config["train"], len(photographs.y)))
        if part == "test":
            members = [(photographs.group == number).nonzero()[: config["watched"], 0] for number in range(4)]
            index = torch.cat(members)
        found = photographs.read(index)
        sets[part] = Groups(*(t.to(context.device) for t in (found.x, found.y, found.spurious)))
    if config["start"] == "ImageNet":
        return with_new_head(from_imagenet(context.data_root).to(context.device), config["seed"]), sets
    return network(context, sets["train"].x, outputs=1), sets


PARTS = (
    *(
        Part(f"{name}-{key}-s{seed}", groups, long=True)
        for name in ("patch", "finetuned")
        for seed in SEEDS
        for key in ALPHAS
    ),
    *(
        Part(f"{name}-{key}", groups, long=True, by_hand=title)
        for name, title in (("celeba", "CelebA"), ("waterbirds", "Waterbirds"))
        for key in ALPHAS
    ),
)
