"""The three examples of section 5.4, solved exactly: which samples are learned first, by the network and linearized."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from torchtangent.lab.recipes.george2022 import modes
from torchtangent.lab.recipes.george2022.modes import Array, Modes
from torchtangent.lab.runner import Context
from torchtangent.lab.study import Part

REGIMES: dict[str, Callable[..., Array]] = {"network": modes.network, "linearized": modes.linearized}


def configuration(pick: Callable[[Any, Any, Any], Any]) -> dict[str, dict[str, Any]]:
    """What the parts of this file are given, by part; ends of time are the released code's."""
    shared = {"sigma": 1e-3, "points": pick(250, 250, 60)}
    noisy = shared | {"samples": 20, "flipped": 5}
    return {
        "example-1": shared | {"mu": [9.0, 8.0, 7.0, 6.0, 5.0], "network_end": 1.0, "linearized_end": 250.0},
        "example-2": noisy | {"noise": 5.0, "bases": pick(20, 30, 2)} | {"network_end": 1.0, "linearized_end": 50.0},
        "example-3": noisy
        | {"noise": 10.0, "cores": [1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]}
        | {"network_end": 0.2, "linearized_end": 10.0},
    }


def example_1(mu: Float[Array, " N"]) -> tuple[Float[Array, "N N"], Float[Array, " N"]]:
    """Inputs √μ_i e_i and labels μ_{n−i+1}/√μ_i: what is largest in the inputs is smallest in the labels.

    >>> example_1(np.array([4.0, 1.0]))[1]
    array([0.5, 4. ])
    """
    return np.diag(np.sqrt(mu)), mu[::-1] / np.sqrt(mu)


def example_2(
    samples: int, flipped: int, noise: float
) -> tuple[Float[Array, "N D"], Float[Array, " N"], Bool[Array, " N"]]:
    """Inputs κ_i y_i e₁ + η e_{i+1}, labels y_i = ±1, and where κ_i = −1: there the label is noise."""
    y, wrong = _labels(samples, flipped)
    return np.column_stack([np.where(wrong, -y, y), noise * np.eye(samples)]), y, wrong


def example_3(
    samples: int, flipped: int, noise: float, core: float
) -> tuple[Float[Array, "N D"], Float[Array, " N"], Bool[Array, " N"]]:
    """Inputs κ_i y_i e₁ + λ y_i e₂ + η e_{i+2}, labels y_i = ±1, and where κ_i = −1: there e₁ misleads."""
    y, wrong = _labels(samples, flipped)
    return np.column_stack([np.where(wrong, -y, y), core * y, noise * np.eye(samples)]), y, wrong


def _labels(samples: int, flipped: int) -> tuple[Float[Array, " N"], Bool[Array, " N"]]:
    """Labels of both signs in turn; the last samples are the flipped ones."""
    index = np.arange(samples)
    return np.where(index % 2 == 0, 1.0, -1.0), index >= samples - flipped


def opposed(context: Context) -> Mapping[str, Any]:
    """TG-Ex1 and TG-Ex-init: θ_i/θ*_i of every mode, begun at θ⁰ = σ and, as w⁰ = √σ gives it, at σ/2."""
    config = context.config
    problem = modes.decompose(*example_1(np.array(config["mu"])))
    found: dict[str, Any] = {"mu": problem.mu, "labels": problem.labels}
    w0 = np.sqrt(config["sigma"]) * np.ones(len(problem.mu))
    for name, formula in REGIMES.items():
        t = found[f"{name}_times"] = np.linspace(0, config[f"{name}_end"], config["points"])
        for init, start in {"": np.full_like(w0, config["sigma"]), "_printed": w0**2 / 2}.items():
            found[f"{name}_learned{init}"] = formula(t, start, problem.mu, problem.target) / problem.target
    return found | {"start_printed": w0**2 / 2 / config["sigma"]}


def noisy_labels(context: Context) -> Mapping[str, Any]:
    """TG-Ex2: the error on clean and on noisy samples, with random bases for modes that share μ = η², and a bad one."""
    config = context.config
    x, y, wrong = example_2(config["samples"], config["flipped"], config["noise"])
    first = np.where(wrong, -y, y) / np.sqrt(len(y))
    draws = [np.random.default_rng(seed).normal(size=(len(y), len(y) - 1)) for seed in range(config["bases"])]
    problems = [modes.in_basis(x, y, _completed(first, draw)) for draw in context.track(draws)]
    # All that is left of the labels in one single vector of the basis.
    aligned = modes.in_basis(x, y, _completed(first, np.column_stack([y, draws[0][:, 1:]])))
    found = {"bases": _group_errors(config, problems, y, wrong), "aligned": _group_errors(config, [aligned], y, wrong)}
    return {
        **_times(config),
        **{f"{name}_{kind}": errors for kind, both in found.items() for name, errors in both.items()},
        "first": problems[0].left[:, 0] * problems[0].y[0],
        "first_expected": (1 - 2 * config["flipped"] / config["samples"]) * np.where(wrong, -y, y),
        "labels": np.stack([problem.labels for problem in problems]),
        "labels_aligned": aligned.labels,
    }


def spurious(context: Context) -> Mapping[str, Any]:
    """TG-Ex3: the error where the spurious feature agrees with the label and where it does not, for several λ."""
    config = context.config
    found: dict[str, list[Array]] = {}
    for core in context.track(config["cores"]):
        x, y, wrong = example_3(config["samples"], config["flipped"], config["noise"], core)
        problem = modes.decompose(x, y)
        for name, errors in _group_errors(config, [problem], y, wrong).items():
            found.setdefault(name, []).append(errors[0])
        found.setdefault("labels", []).append(problem.labels)
    return {
        **_times(config),
        "cores": np.array(config["cores"]),
        "labels": np.stack(found.pop("labels")),
        **{f"{name}_errors": np.stack(errors) for name, errors in found.items()},
    }


def _completed(first: Float[Array, " N"], others: Float[Array, "N K"]) -> Float[Array, "N N"]:
    """An orthonormal basis that begins with a unit vector and goes on with the others, made orthogonal in turn."""
    return np.linalg.qr(np.column_stack([first, others]))[0]


def _times(config: Mapping[str, Any]) -> dict[str, Float[Array, " T"]]:
    return {f"{name}_times": np.linspace(0, config[f"{name}_end"], config["points"]) for name in REGIMES}


def _group_errors(
    config: Mapping[str, Any], problems: list[Modes], y: Float[Array, " N"], wrong: Bool[Array, " N"]
) -> dict[str, Float[Array, "B 3 T"]]:
    """What `by_group` says of each problem's exact solution, in both regimes."""
    found = {}
    for name, formula in REGIMES.items():
        t, rows = _times(config)[f"{name}_times"], []
        for problem in problems:
            theta = formula(t, np.full(len(problem.mu), config["sigma"]), problem.mu, problem.target)
            rows.append(by_group(problem.outputs(theta), y, wrong))
        found[name] = np.array(rows)
    return found


def by_group(f: Float[Array, "*any T N"], y: Float[Array, " N"], wrong: Bool[Array, " N"]) -> Float[Array, "*any 3 T"]:
    """Mean squared errors: of the samples that are right, of those that are wrong, of all; in float32, to be kept."""
    errors = (f - y) ** 2
    means = [errors[..., group].mean(-1) for group in (~wrong, wrong, wrong | ~wrong)]
    return np.stack(means, axis=-2).astype(np.float32)


PARTS = (Part("example-1", opposed), Part("example-2", noisy_labels), Part("example-3", spurious))
