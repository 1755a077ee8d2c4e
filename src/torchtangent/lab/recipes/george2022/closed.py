"""What the closed forms of section 5.4 say, beside the gradient flow itself, integrated numerically."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Float

from torchtangent.lab.recipes.george2022 import modes
from torchtangent.lab.recipes.george2022.modes import Array, Modes
from torchtangent.lab.runner import Context
from torchtangent.lab.study import Part


def configuration(pick: Callable[[Any, Any, Any], Any]) -> dict[str, dict[str, Any]]:
    """What the parts of this file are given, by part."""
    small = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 100]
    powers = pick(small, small, [2, 50, 100])
    return {
        "closed-forms": {
            "problems": pick(3, 20, 1),
            "samples": 6,
            "dimension": 8,
            "start": 0.05,
            "times": pick(30, 60, 6),
            "end": 3.0,
            "linearized_end": 40.0,
            "settled": 200.0,
            "clearly": 0.05,
        },
        "times": {"mu": [9.0, 4.0, 1.0], "targets": [0.5, 0.25, 2.0], "epsilon": 1e-4, "powers": powers},
        "sequence": {"ratios": [0.6, 0.75, 0.9, 1.1, 1.25, 1.5], "epsilon": 1e-2, "powers": powers},
    }


def closed_forms(context: Context) -> Mapping[str, Any]:
    """TG-Prop5.4.1: gradient flow in w on random data, integrated, beside the closed forms; paths of the first problem.

    More dimensions than samples, so that some modes have μ = 0, and labels without a part in one mode, so that θ* = 0.
    """
    config = context.config
    times = {
        "network": np.linspace(0, config["end"], config["times"]),
        "linearized": np.linspace(0, config["linearized_end"], config["times"]),
    }
    errors: dict[str, list[float]] = {}
    paths: dict[str, Array] = {}
    for seed in context.track(range(config["problems"])):
        x, y = _problem(config, seed)
        problem = modes.decompose(x, y)
        start = np.full(len(problem.mu), config["start"])
        known = start, problem.mu, problem.target
        truth = {name: integrated(x, y, problem, start, t, linear=name == "linearized") for name, t in times.items()}
        formulas = {
            "network": modes.network(times["network"], *known),
            "linearized": modes.linearized(times["linearized"], *known),
            "printed": modes.linearized(times["linearized"], *known, factor=1.0),
        }
        found = {
            f"{name}_errors": _error(theta, truth.get(name, truth["linearized"])) for name, theta in formulas.items()
        }
        found |= {"unflipped": _unflipped(config, x, y, start), "linearization_start": _printed_start(start)}
        for name, value in found.items():
            errors.setdefault(name, []).append(value)
        if seed == 0:
            paths = {
                **{f"{name}_times": t for name, t in times.items()},
                **{f"{name}_integrated": theta for name, theta in truth.items()},
                **{f"{name}_formula": theta for name, theta in formulas.items()},
                **{"mu": problem.mu, "target": problem.target},
            }
    return paths | {name: np.array(values) for name, values in errors.items()}


def _unflipped(config: Mapping[str, Any], x: Array, y: Array, start: Array) -> float:
    """With signs as they come: the largest θ_λ in the end where ỹ_λ is clearly negative, over the largest |θ*|."""
    raw = modes.decompose(x, y, flip=False)
    ends = integrated(x, y, raw, start, np.array([0.0, config["settled"]]), linear=False)[-1]
    negative = ends[raw.labels < -config["clearly"]]
    return float(np.abs(negative).max(initial=0.0) / np.abs(raw.target).max())


def _printed_start(start: Float[Array, " R"]) -> float:
    """Where the printed linearization Σ w w⁰ v begins, relative to θ⁰."""
    w0 = np.sqrt(2 * start)
    return float(np.max(w0 * w0 / start))


def _problem(config: Mapping[str, Any], seed: int) -> tuple[Float[Array, "N D"], Float[Array, " N"]]:
    """Random inputs, and labels without a part in the third mode."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(config["samples"], config["dimension"])) / 2
    y = rng.normal(size=config["samples"])
    u = np.linalg.svd(x)[0][:, 2]
    return x, y - u * (u @ y)


def _error(theta: Float[Array, "T R"], truth: Float[Array, "T R"]) -> float:
    """The largest difference at any time, relative to the largest θ."""
    return float(np.abs(theta - truth).max() / np.abs(truth).max())


def integrated(
    x: Float[Array, "N D"],
    y: Float[Array, " N"],
    problem: Modes,
    start: Float[Array, " R"],
    times: Float[Array, " T"],
    *,
    linear: bool,
) -> Float[Array, "T R"]:
    """θ_λ along gradient flow on ½‖Xθ(w) − y‖² in w, or along that of θ linearized in w; modes are not told apart.

    The linearization is θ⁰ + Σ w⁰(w − w⁰)v; the thesis' Σ w w⁰ v would begin at 2θ⁰.
    """
    from scipy.integrate import solve_ivp  # takes long to import

    w0, v = np.sqrt(2 * start), problem.right

    def theta(w: Array) -> Array:
        return v @ (start + w0 * (w - w0) if linear else w**2 / 2)

    def flow(_: float, w: Array) -> Array:
        return -(w0 if linear else w) * (v.T @ (x.T @ (x @ theta(w) - y)))

    w, path = w0, [start]
    for span in pairwise(times):  # piece by piece: an integrator is more exact at its own ends than between
        w = solve_ivp(flow, span, w, method="DOP853", rtol=1e-13, atol=1e-15).y[:, -1]
        path.append(v.T @ theta(w))
    return np.array(path)


def times(context: Context) -> Mapping[str, Any]:
    """TG-Eq5.4.7: times of ε-convergence by the closed form's root, by the formulas for small θ⁰, and as printed."""
    config = context.config
    mu, target, epsilon = np.array(config["mu"]), np.array(config["targets"]), config["epsilon"]
    labels = mu * target
    found: dict[str, list[Array]] = {}
    for power in context.track(config["powers"]):
        start = np.full(len(mu), 10.0**-power)
        exact = {
            "network": modes.network_time(start, mu, target, epsilon),
            "linearized": modes.linearized_time(start, mu, target, epsilon),
        }
        rows = {
            "network": exact["network"],
            "linearized": exact["linearized"],
            "network_root": _roots(modes.network, exact["network"], start, mu, target, epsilon),
            "linearized_root": _roots(modes.linearized, exact["linearized"], start, mu, target, epsilon),
            "network_small": np.log(target**2 / epsilon / start) / (2 * labels),
            "linearized_small": np.log(target / epsilon) / (2 * mu * start),
            "network_printed": np.log(target / epsilon / start) / labels,
            "linearized_printed": np.log(target / epsilon) / (mu * start),
        }
        for name, row in rows.items():
            found.setdefault(name, []).append(row)
    sigma = 10.0 ** -np.array(config["powers"], dtype=float)
    return {"sigma": sigma, "mu": mu, "labels": labels, **{name: np.array(rows) for name, rows in found.items()}}


def _roots(
    formula: Callable[..., Array], guess: Array, start: Array, mu: Array, target: Array, epsilon: float
) -> Array:
    """When a closed form is ε short of its target, by bisection on each mode."""
    from scipy.optimize import brentq

    def short(t: float, i: int) -> float:
        one = slice(i, i + 1)
        return float(target[i] - epsilon - formula(np.array([t]), start[one], mu[one], target[one])[0, 0])

    return np.array([brentq(short, 0.0, 3 * guess[i], args=(i,), xtol=1e-300, rtol=1e-14) for i in range(len(mu))])


def sequence(context: Context) -> Mapping[str, Any]:
    """TG-Eq5.4.8: how much of other modes is learned when one is, for smaller and smaller θ⁰.

    All modes have θ* = 1; the first has ỹ = 1, the others one of `ratios`.
    """
    config = context.config
    ratios, sigma = np.array(config["ratios"]), 10.0 ** -np.array(config["powers"], dtype=float)
    one = np.ones(1)
    when = np.array([modes.network_time(s * one, one, one, config["epsilon"]) for s in context.track(sigma.tolist())])
    learned = [
        modes.network(t, np.full_like(ratios, s), ratios, 1 + 0 * ratios)[0] for s, t in zip(sigma, when, strict=True)
    ]
    # In the closed form θ = θ*/(1 + r); its logarithm says how θ* − θ vanishes where θ itself is 1 to rounding.
    log_r = -2 * ratios * when + np.log1p(-sigma)[:, None] - np.log(sigma)[:, None]
    return {"sigma": sigma, "ratios": ratios, "log_r": log_r, "learned": np.array(learned)}


PARTS = (Part("closed-forms", closed_forms), Part("times", times), Part("sequence", sequence))
