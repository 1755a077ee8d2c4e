"""Easy images and difficult ones among them: which the tangent kernel aligns with first, and how depth matters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

import torchtangent as tt
from torchtangent.lab.data import Dataset, difficult
from torchtangent.lab.recipes.baratin2021.training import descend, halts, network, standardized
from torchtangent.lab.runner import Context
from torchtangent.lab.study import Part

KINDS = {"random labels": "mixture-random", "other characters": "mixture-kmnist"}
"""What the difficult images are, and the part."""

DEPTHS = (3, 5, 7, 9)


def watched(context: Context) -> Mapping[str, Any]:
    """TG-Fig6.4 and B.7: CKA on easy and on difficult training images while an MLP learns both; (seeds, steps)."""
    config = context.config
    stops = halts(config["steps"], config["halts"])
    easy = context.data(config["data"])
    other = _other(context, easy)
    rows = [_run(context, easy, other, seed, stops) for seed in config["seeds"]]
    on_easy, on_difficult = np.moveaxis(np.array(rows, dtype=np.float32), 2, 0)
    return {"steps": np.array(stops), "easy": on_easy, "difficult": on_difficult}


def _run(context: Context, easy: Dataset, other: Dataset | None, seed: int, stops: list[int]) -> list[list[float]]:
    config = context.config
    drawn = difficult(
        easy,
        other,
        easy_count=config["easy"],
        difficult_count=config["difficult"],
        generator=torch.Generator().manual_seed(seed),
    )
    x = standardized(drawn.x.to(context.device), drawn.x[:1].to(context.device), config["side"])[0]
    y, hard = drawn.y.to(context.device), drawn.difficult.to(context.device)
    model = network(config, x.shape[1:], seed).to(context.device)
    n = config["samples"]
    (x_easy, y_easy), (x_hard, y_hard) = ((x[mask][:n], y[mask][:n]) for mask in (~hard, hard))
    probe = tt.TangentProbe(
        model, x_easy, y_easy, x_test=x_hard, y_test=y_hard, steps=stops, measures=["cka"], layers=False
    )
    rows = []
    for step, _ in context.track(
        descend(model, x, y, lr=config["lr"], batch=config["batch"], seed=seed, stops=stops), len(stops)
    ):
        record = probe.log(step)
        assert record is not None  # every stop is one to measure at
        rows.append([record["cka"], record["test/cka"]])
    return rows


def _other(context: Context, easy: Dataset) -> Dataset | None:
    """The data set of difficult images: None for the easy one with random labels."""
    name = context.config["other"]
    if name != "turned":
        return None if name is None else context.data(name)
    x, x_test = (a.flip(2).transpose(2, 3) for a in (easy.x_train, easy.x_test))
    return Dataset(x, easy.y_train, x_test, easy.y_test, easy.checksums)


PARTS = (
    *(Part(name, watched) for name in KINDS.values()),
    *(Part(f"depth-{depth}", watched, long=True) for depth in DEPTHS),
)


def configuration(pick: Callable[[Any, Any, Any], Any]) -> dict[str, dict[str, Any]]:
    """Of the parts above. At smoke scale other characters are digits turned by a quarter."""
    common = {
        "network": "MLP",
        "data": pick("digits", "mnist", "digits"),
        "side": pick(8, 28, 8),
        "easy": pick(800, 10_000, 40),
        "difficult": pick(80, 1000, 10),
        "samples": pick(40, 100, 5),
        "seeds": pick([0, 1], [0, 1, 2], [0]),
        "batch": pick(40, 100, 10),
    }
    kinds = {"mixture-random": None, "mixture-kmnist": pick("turned", "kmnist", "turned")}
    mixture = {"depth": 6, "width": pick(80, 80, 8), "lr": 0.02}
    depth = {"other": None, "width": pick(60, 60, 8), "lr": 0.01}
    return {
        **{
            part: common | mixture | {"other": other, "steps": pick(250, 6000, 8), "halts": pick(7, 15, 3)}
            for part, other in kinds.items()
        },
        **{
            f"depth-{count}": common | depth | {"depth": count, "steps": pick(800, 5000, 8), "halts": pick(12, 13, 3)}
            for count in DEPTHS
        },
    }
