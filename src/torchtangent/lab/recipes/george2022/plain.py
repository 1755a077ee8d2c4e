"""The three examples again, by gradient descent on a plain linear network with one hidden layer (figure C.9)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from torchtangent.lab.recipes.george2022.examples import by_group, example_1, example_2, example_3
from torchtangent.lab.recipes.george2022.modes import Array
from torchtangent.lab.runner import Context
from torchtangent.lab.study import Part

REGIMES = ("network", "linearized")
"""What the small α and the large one stand for."""


def configuration(pick: Callable[[Any, Any, Any], Any]) -> dict[str, dict[str, Any]]:
    """What the parts of this file are given, by part."""
    shared = {
        "alphas": [0.1, 10.0],
        "lr": 1e-3,
        "scale": 0.5,
        "runs": pick(8, 20, 2),
        "points": pick(100, 100, 75),
    }
    groups = {"samples": 20, "flipped": 5, "width": pick(22, 200, 22)}
    return {
        "plain-1": shared | {"mu": [9.0, 8.0, 7.0, 6.0, 5.0], "width": 5, "steps": [150, 4000]},
        "plain-2": shared | groups | {"noise": 5.0, "steps": [300, pick(4000, 6000, 1500)]},
        "plain-3": shared | groups | {"noise": 10.0, "core": 1.0, "steps": [150, pick(1500, 3000, 600)]},
    }


def modes_learned(context: Context) -> Mapping[str, Any]:
    """TG-FigC.9, example 1: which part of every label is learned; each belongs to one mode."""
    x, y = example_1(np.array(context.config["mu"]))
    found: dict[str, Array] = {}
    for name, steps, outputs in _trained(context, x, y):
        found |= {f"{name}_steps": steps, f"{name}_learned": (outputs / y).astype(np.float32)}
    return found


def groups_learned(context: Context) -> Mapping[str, Any]:
    """TG-FigC.9, examples 2 and 3: the mean squared errors of both groups of samples."""
    config = context.config
    sizes = config["samples"], config["flipped"], config["noise"]
    x, y, wrong = example_3(*sizes, config["core"]) if "core" in config else example_2(*sizes)
    found: dict[str, Array] = {}
    for name, steps, outputs in _trained(context, x, y):
        found |= {f"{name}_steps": steps, f"{name}_errors": by_group(outputs, y, wrong)}
    return found


def _trained(
    context: Context, x: Float[Array, "N D"], y: Float[Array, " N"]
) -> Iterator[tuple[str, Int[Array, " T"], Float[Array, "E T N"]]]:
    """For each regime: its name, steps spread over training, and the outputs of networks from all seeds at these."""
    config = context.config
    runs = list(zip(REGIMES, config["alphas"], config["steps"], strict=True))
    for name, alpha, count in context.track(runs):
        steps = np.unique(np.linspace(0, count, config["points"]).round().astype(int))
        yield name, steps, descend(x, y, steps, alpha, config)


def descend(
    x: Float[Array, "N D"], y: Float[Array, " N"], steps: Int[Array, " T"], alpha: float, config: Mapping[str, Any]
) -> Float[Array, "E T N"]:
    """Outputs α(f − f₀) of f = w₂ᵀW₁x at these steps of gradient descent on the mean squared error, at the rate η/α².

    Weights begin uniform as PyTorch's do, times `scale`, as if there were `width` features like hidden units: those
    beyond x are zero, and their weights never matter.
    """
    width, rate = config["width"], config["lr"] / alpha**2
    draws = [np.random.default_rng(seed) for seed in range(config["runs"])]
    bound = config["scale"] / np.sqrt(width)
    first = bound * np.stack([rng.uniform(-1, 1, (width, x.shape[1])) for rng in draws])
    last = bound * np.stack([rng.uniform(-1, 1, (1, width)) for rng in draws])
    start = last @ first
    seen, wanted = [], set(steps.tolist())
    for step in range(steps[-1] + 1):
        outputs = alpha * (last @ first - start)[:, 0] @ x.T
        if step in wanted:
            seen.append(outputs)
        slope = (2 * alpha / len(y) * (outputs - y) @ x)[:, None]
        change = slope @ first.transpose(0, 2, 1)
        first -= rate * last.transpose(0, 2, 1) @ slope
        last -= rate * change
    return np.stack(seen, axis=1)


PARTS = (Part("plain-1", modes_learned), Part("plain-2", groups_learned), Part("plain-3", groups_learned))
