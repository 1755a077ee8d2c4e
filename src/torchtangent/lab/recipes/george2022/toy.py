"""The yin-yang task: where a network and its linearization err at equal training loss (figure 5.1)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

import torchtangent as tt
from torchtangent.lab.data.synthetic import in_disks, yin_yang, yin_yang_grid
from torchtangent.lab.models import mlp, seeded
from torchtangent.lab.recipes.george2022.ensembles import Ensemble, Linearizations, Networks, logistic
from torchtangent.lab.runner import Context
from torchtangent.lab.study import Part

NAMES = tuple(f"yin-yang-{k}" for k in range(5))
"""The runs are cut into these parts: fewer matrices at a time stay in the processor's cache, and a stop costs less."""

REGIMES = ("α = 1", "α = 100", "linearized")
REGIONS = ("large areas", "disks", "strips")


def configuration(pick: Callable[[Any, Any, Any], Any]) -> dict[str, dict[str, Any]]:
    """What the parts of this file are given. `smoke` takes fifty times longer steps, and so many times fewer."""
    runs = pick(4, 20, 1)
    shared = {
        "runs": runs,
        "samples": 100,
        "widths": pick([60, 60, 60], [60, 60, 60], [8]),
        "lr": pick(0.5, 0.01, 0.5),
        "levels": pick([0.5, 0.4, 0.3], [0.5, 0.4, 0.3], [0.65, 0.6]),
        "least": pick(100, 5000, 20),
        "most": pick(500, 25_000, 40),
        "side": pick(30, 60, 10),
        "marks": pick([1, 4, 10, 20, 40, 100], [50, 200, 500, 1000, 2000, 5000], [5, 20]),
        "points": pick(40, 60, 8),
        "checked": pick(20, 200, 3),
    }
    return {part: shared | {"first": k * runs} for k, part in enumerate(NAMES)}


@dataclass(frozen=True)
class Trained:
    """What is kept of an ensemble's training.

    Attributes:
        losses: The training loss of each at some iterations; after the end, that at the end.
        reached: The first iteration with a loss below each level; −1 if there is none.
        at_levels: The outputs on the grid then.
        at_marks: The outputs on the grid at some early iterations.
        end: The last iteration.
    """

    losses: Float[Tensor, "T E"]
    reached: Int[Tensor, "L E"]
    at_levels: Float[Tensor, "L E G"]
    at_marks: Float[Tensor, "K E G"]
    end: int


def yin_yang_runs(context: Context) -> Mapping[str, Any]:
    """TG-Fig5.1: networks from some seeds at both α, and their linearizations, compared at equal training loss.

    In all arrays with a value for each run, runs are the last axis.
    """
    config = context.config
    seeds = range(config["first"], config["first"] + config["runs"])
    models = [seeded(partial(mlp, [2, *config["widths"], 1]), seed).to(context.device) for seed in seeds]
    drawn = [yin_yang(config["samples"], torch.Generator().manual_seed(seed)) for seed in seeds]
    x, y = (torch.stack(parts).to(context.device) for parts in zip(*drawn, strict=True))
    grid, labels = (part.to(context.device) for part in yin_yang_grid(config["side"]))
    makers: dict[str, Callable[[], Ensemble]] = {
        "α = 1": lambda: Networks(models, x, y, grid, 1.0, config["lr"]),
        "α = 100": lambda: Networks(models, x, y, grid, 100.0, config["lr"]),
        "linearized": lambda: Linearizations(models, x, y, grid, config["lr"]),
    }
    runs = [_train(context, makers[name](), turn) for turn, name in enumerate(REGIMES)]
    reached = torch.stack([run.reached for run in runs])
    losses = torch.stack([logistic(run.at_levels, labels) for run in runs])
    found = {
        "losses": torch.stack([run.losses for run in runs]),
        "reached": reached,
        "region_losses": torch.stack([losses[..., region].mean(3) for region in _regions(grid)], dim=1),
        "map_sums": torch.stack([_map_sum(losses, reached, k) for k in (1, 2)]).half(),
        "distances": torch.stack([_distance(run.at_marks, runs[2].at_marks) for run in runs[:2]]),
    }
    return {
        "iterations": np.array(_iterations(config)),
        "ends": np.array([[run.end] * config["runs"] for run in runs]),
        "levels": np.array(config["levels"]),
        "marks": np.array(config["marks"]),
        **{name: value.cpu().numpy() for name, value in found.items()},
        "by_parameters": np.array(_by_parameters(config, models[0], x[0], y[0], grid)),
    }


@torch.no_grad()
def _train(context: Context, ensemble: Ensemble, turn: int) -> Trained:
    """Train until every loss is below the last level, but at least and at most so many iterations."""
    config, device = context.config, context.device
    iterations, most = _iterations(config), config["most"]
    levels = torch.tensor(config["levels"], device=device)[:, None]
    reached = torch.full((len(levels), config["runs"]), -1, device=device)
    at_levels = torch.zeros(*reached.shape, config["side"] ** 2, device=device)
    everyone = torch.ones(config["runs"], dtype=torch.bool, device=device)
    at_marks, seen = [], []
    for i in range(most + 1):
        losses = ensemble.loss()
        new = (losses < levels) & (reached < 0)
        if new.any():
            reached[new] = i
            for level, chosen in enumerate(new):
                at_levels[level, chosen] = ensemble.on_grid(chosen)
        if i in config["marks"]:
            at_marks.append(ensemble.on_grid(everyone))
        if i in iterations:
            seen.append(losses)
            context.stepped(turn * most + i, len(REGIMES) * most)
        if i >= config["least"] and bool((reached[-1] >= 0).all()):
            break
        ensemble.step()
    seen += [losses] * (len(iterations) - len(seen))
    return Trained(torch.stack(seen), reached, at_levels, torch.stack(at_marks), i)


def _iterations(config: Mapping[str, Any]) -> list[int]:
    """When the loss is noted: from the start to the end, evenly in the logarithm."""
    spread = np.geomspace(1, config["most"], config["points"])
    return np.unique(np.r_[0, spread.round().astype(int)]).tolist()


def _regions(x: Float[Tensor, "G 2"]) -> list[Bool[Tensor, " G"]]:
    """Which points of the grid are in each region: the quarters without a disk, the disks, the strips at their side.

    A strip is what lies between a disk and the horizontal boundary.
    """
    disks, other = in_disks(x), x.prod(1) < 0
    beside = ((x[:, 0].abs() - 0.5).abs() <= 0.3) & (x[:, 1].abs() < 0.5)
    return [~disks & ~other, disks, ~disks & other & beside]


def _map_sum(losses: Float[Tensor, "R L E G"], reached: Int[Tensor, "R L E"], other: int) -> Float[Tensor, "L G"]:
    """Δloss between the first regime and another, the sum over the runs that reach a level in both."""
    counted = (reached[0] >= 0) & (reached[other] >= 0)
    return ((losses[0] - losses[other]) * counted[..., None]).sum(1)


def _distance(f: Float[Tensor, "K E G"], other: Float[Tensor, "K E G"]) -> Float[Tensor, "K E"]:
    """How far outputs on the grid are from others, relative to the size of these."""
    return (f - other).norm(dim=2) / other.norm(dim=2)


def _by_parameters(config: Mapping[str, Any], model: nn.Module, x: Tensor, y: Tensor, grid: Tensor) -> float:
    """How far the kernel's way to train the linearized network ends from `tt.linearize` itself, in float64."""
    model, x, y, grid = copy.deepcopy(model).double(), x.double(), y.double(), grid.double()
    by_kernel = Linearizations([model], x[None], y[None], grid, config["lr"])
    module = tt.linearize(model, bias=False)
    weights: list[Tensor] = list(module.parameters())
    for _ in range(config["checked"]):
        by_kernel.loss()
        by_kernel.step()
        gradient = torch.autograd.grad(logistic(module(x).squeeze(1), y).mean(), weights)
        with torch.no_grad():
            torch._foreach_add_(weights, gradient, alpha=-config["lr"])
    with torch.no_grad():
        found = module(grid).squeeze(1)
    expected = by_kernel.on_grid(torch.ones(1, dtype=torch.bool, device=x.device))[0]
    return float((expected - found).norm() / found.norm())


PARTS = tuple(Part(name, yin_yang_runs) for name in NAMES)
