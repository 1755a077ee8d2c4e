"""The settings that are tried, the same number for every optimizer of a task; fixed before anything is run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchtangent.lab.recipes.george2018.training import COMPARED, KRONECKER

Pick = Callable[[Any, Any, Any], Any]
"""From the values at smoke, paper and test scale to that of the scale at hand."""


def every(pick: Pick) -> dict[str, dict[str, Any]]:
    """The configuration of every part that trains with some optimizer, by name of the part."""
    tuned = {name: _autoencoder(name, pick) for name in COMPARED["autoencoder"]}
    grid = ("rates", "others")
    chosen = {name: {key: value for key, value in values.items() if key not in grid} for name, values in tuned.items()}
    curves = {"epochs": pick(20, 8, 2), "seeds": pick([0, 1, 2], [0, 1, 2], [0, 1])}
    shorter = {"epochs": pick(12, 3, 1), "seeds": pick([0, 1], [0, 1], [0, 1])}
    seldom = pick([250], [250], [4])
    return {
        **{f"search-{name}": values | {"epochs": pick(5, 2, 1)} for name, values in tuned.items()},
        **{f"curves-{name}": values | curves for name, values in chosen.items()},
        **{
            f"frequency-{name}": chosen[name] | shorter | {"frequencies": [1, *seldom] if name == "KFAC" else seldom}
            for name in KRONECKER
        },
        "spectra": chosen["EKFAC-ra"]
        | {
            "layer": 4,
            "samples": pick(500, 1000, 8),
            "seed": 0,
            "begin": pick(28, 120, 1),
            "steps": pick(140, 480, 4),
            "measure_every": pick(7, 20, 2),
        },
        **{
            f"{network}-{name}": _images(network, name, pick)
            for network in ("VGG11", "ResNet34")
            for name in COMPARED[network]
        },
    }


def _autoencoder(name: str, pick: Pick) -> dict[str, Any]:
    """Sixteen settings: the published grid of (η, ε), or half-decades of η with two momenta for the baselines."""
    published = [0.1, 0.01, 0.001, 0.0001]
    if name in KRONECKER:
        rates, others = pick(published, published, [0.01, 0.001]), pick(published, published, [0.1, 0.01])
    else:
        half_decades = [1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003]
        if name == "Adam+BN":
            half_decades = [0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001, 0.00003]
        rates, others = pick(half_decades, half_decades, [0.01, 0.001]), [0.9, 0.99]
    return {
        "optimizer": name,
        "data": pick("digits", "mnist", "digits"),
        "side": pick(8, 28, 3),
        "train": pick(1437, 60_000, 16),
        "test": pick(360, 10_000, 8),
        "widths": pick([40, 20, 10, 5], [1000, 500, 250, 30], [4, 4, 3, 2]),
        "loss": "squared error",
        "batch": pick(50, 500, 8),
        "basis_every": pick(50, 50, 2),
        "damping_rule": "factored" if name == "KFAC" else "single",
        "rates": rates,
        "others": others,
    }


def _images(network: str, name: str, pick: Pick) -> dict[str, Any]:
    """Six settings on VGG11, four on ResNet34."""
    deep, kronecker = network == "ResNet34", name in KRONECKER
    rates = [0.01, 0.003] if deep else [0.03, 0.01, 0.003]
    if not kronecker:
        rates = [0.3, 0.1, 0.03, 0.01] if deep else [0.3, 0.1, 0.03, 0.01, 0.003, 0.001]
    batch = pick(20, 200, 8) if deep or not kronecker else pick(50, 500, 8)
    sizes = pick([20, 50], [200, 500], [4, 8]) if deep else pick([20, 50, 100], [200, 500, 1000], [2, 4, 8])
    return {
        "optimizer": name,
        "network": network,
        "data": pick("digits", "cifar10", "digits"),
        "side": pick(16 if deep else 32, 32, 8 if deep else 32),
        "train": pick(200, 6_000 if deep else 20_000, 8),
        "test": pick(100, 10_000, 4),
        "base": pick(4, 64, 1),
        "sua": True,
        "damping_rule": "root",
        "basis_every": pick(10, 50, 2),
        "rates": pick(rates, rates, rates[-1:]),
        "others": pick([0.1, 0.01], [0.1, 0.01], [0.1]) if kronecker else [0.9],
        "batch": batch,
        "batches": sizes if kronecker else [batch],
        "epochs": pick(3, 3, 1),
        "halve_every": 1,
        "halved_epochs": pick(4, 4, 1),
    }
