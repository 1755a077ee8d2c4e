"""How the claims on sample sizes and the kernel's rotation are read off the arrays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from torchtangent.lab.measures import spearman
from torchtangent.lab.recipes.ortiz2021.measures.eigenfunctions import DEEP, epochs_to, learned, networks
from torchtangent.lab.rules import Measured
from torchtangent.lab.study import Arrays

SATURATED = 0.002
"""A test accuracy counts as saturated within so much of the curve's best."""

TASKS = ("eigenfunction", "CIFAR2")

STATISTICS = ("running", "initial")
"""What BatchNorm has in the kernel of a trained network: what it gathered, or what it began with."""


def best(arrays: Arrays, network: str, kind: str) -> np.ndarray:
    """The best test accuracy along training, mean over seeds, for every size."""
    return learned(arrays, network, f"{kind}_test", "sizes").max(-1).mean(1)


def gap(arrays: Arrays, network: str) -> np.ndarray:
    """The network's test accuracy minus its linearization's, for every size."""
    return best(arrays, network, "network") - best(arrays, network, "linear")


def gap_grows(arrays: Arrays) -> Measured:
    """Spearman's correlation of the non-linear advantage and the number of samples."""
    return {n: spearman(learned(arrays, n, "sizes", "sizes"), gap(arrays, n)) for n in networks(arrays, "sizes")}


def gap_at(position: int) -> Callable[[Arrays], Measured]:
    """The non-linear advantage with the fewest (0) or the most (−1) samples."""
    return lambda arrays: {n: float(gap(arrays, n)[position]) for n in networks(arrays, "sizes")}


def deep_gap(arrays: Arrays) -> Measured:
    """ResNet18's best test accuracy on CIFAR2 minus its linearization's."""
    ours, linear = arrays["table-ResNet18-train/network_test"], arrays["eigenfunctions-ResNet18/cifar2_test"]
    return float(ours.max() - linear.max())


def distance_grows(arrays: Arrays) -> Measured:
    """Spearman's correlation of the networks' ‖θ − θ₀‖ at saturation and the number of samples."""
    return {n: spearman(learned(arrays, n, "sizes", "sizes"), distance(arrays, n)) for n in networks(arrays, "sizes")}


def distance(arrays: Arrays, network: str) -> np.ndarray:
    """‖θ − θ₀‖ of the networks when test accuracy saturates, mean over seeds, for every size."""
    moved, at = learned(arrays, network, "network_distance", "sizes"), _saturation(arrays, network, "network")
    return np.take_along_axis(moved, at[..., None], -1)[..., 0].mean(1)


def _saturation(arrays: Arrays, network: str, kind: str) -> np.ndarray:
    """The first epoch, from 0, within `SATURATED` of the best test accuracy: (sizes, seeds)."""
    tested = learned(arrays, network, f"{kind}_test", "sizes")
    return (tested >= tested.max(-1, keepdims=True) - SATURATED).argmax(-1)


def saturation_ratio(arrays: Arrays) -> Measured:
    """Epochs to saturation of the linearizations over those of the networks, median over sizes and seeds."""
    found = {}
    for network in networks(arrays, "sizes"):
        linear, ours = (_saturation(arrays, network, kind) + 1 for kind in ("linear", "network"))
        found[network] = float(np.median(linear / ours))
    return found


def slower_to_fit(arrays: Arrays) -> Measured:
    """The fraction of sizes and seeds at which the linearization ends with the higher training loss."""
    return {
        n: float(
            np.mean(
                learned(arrays, n, "linear_loss", "sizes")[..., -1]
                > learned(arrays, n, "network_loss", "sizes")[..., -1]
            )
        )
        for n in networks(arrays, "sizes")
    }


def table(arrays: Arrays, network: str, statistics: str = "running", reading: str = "train") -> dict[str, float]:
    """Table 1: energy concentration before and after training, and test accuracy; means over seeds.

    ResNet18 has one seed, and readings: which statistics BatchNorm has in training, and which in the kernel after it.
    """
    if network == "ResNet18":
        part = f"table-ResNet18-{reading}"
        after = dict(zip(STATISTICS, arrays[f"{part}/energy_after"].tolist(), strict=True))
        before, tested = arrays[f"{part}/energy_before"], arrays[f"{part}/network_test"][-1]
        return {"init": float(before), "end": after[statistics], "test": float(tested)}
    energy = learned(arrays, network, "energy", "sizes")
    tested = learned(arrays, network, "network_test", "sizes")[-1, :, -1]
    return {"init": float(energy[:, 0].mean()), "end": float(energy[:, -1].mean()), "test": float(tested.mean())}


def table_of(network: str) -> Callable[[Arrays], Measured]:
    """Table 1's column of a network."""
    return lambda arrays: table(arrays, network)


def table_row(name: str) -> Callable[[Arrays], Measured]:
    """Table 1's row."""
    return lambda arrays: {network: table(arrays, network)[name] for network in (*networks(arrays, "sizes"), *DEEP)}


def energy_over_seeds(network: str) -> Callable[[Arrays], Measured]:
    """The lowest, the mean and the highest energy concentration before training, over seeds."""

    def measure(arrays: Arrays) -> Measured:
        energy = learned(arrays, network, "energy", "initial-energy")
        return {"lowest": float(energy.min()), "mean": float(energy.mean()), "highest": float(energy.max())}

    return measure


def energy_grows(network: str) -> Callable[[Arrays], Measured]:
    """Spearman's correlation of energy concentration, mean over seeds, and epoch."""

    def measure(arrays: Arrays) -> Measured:
        energy = learned(arrays, network, "energy", "sizes").mean(0)
        return spearman(np.arange(len(energy)), energy)

    return measure


def _at(arrays: Arrays, network: str, task: int, end: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Training loss and test accuracy along training of the network and of linearizations at its start and end."""
    loss, tested = (learned(arrays, network, name, "pretrained") for name in ("linear_loss", "linear_test"))
    ours = [learned(arrays, network, name, "pretrained")[task] for name in ("network_loss", "network_test")]
    return {
        "network": (ours[0], ours[1]),
        "linear at start": (loss[task, 0], tested[task, 0]),
        "linear at end": (loss[task, end], tested[task, end]),
    }


def fit_times(network: str, task: int = 0, end: int = -1) -> Callable[[Arrays], Measured]:
    """Epochs to a tenth of ln 2, the training loss of a constant."""
    goal = 0.1 * np.log(2)
    return lambda arrays: {
        name: float(epochs_to(loss[None], goal)[0]) for name, (loss, _) in _at(arrays, network, task, end).items()
    }


def accuracies(network: str, task: int = 0, end: int = -1) -> Callable[[Arrays], Measured]:
    """Test accuracy at the last epoch."""
    return lambda arrays: {name: float(tested[-1]) for name, (_, tested) in _at(arrays, network, task, end).items()}


def near_network(network: str, end: int = -1) -> Callable[[Arrays], Measured]:
    """The accuracy of the linearization at the end minus that of the network."""

    def measure(arrays: Arrays) -> Measured:
        found = _at(arrays, network, 0, end)
        return float(found["linear at end"][1][-1] - found["network"][1][-1])

    return measure


def change(task: int) -> Callable[[Arrays], Measured]:
    """Test accuracy of the linearization at the end of pretraining minus that of the one at its start."""

    def measure(arrays: Arrays) -> Measured:
        tested = {
            n: learned(arrays, n, "linear_test", "pretrained")[task, :, -1] for n in networks(arrays, "pretrained")
        }
        return {network: float(values[-1] - values[0]) for network, values in tested.items()}

    return measure


def share_of_change(arrays: Arrays) -> Measured:
    """How much of the loss of accuracy from the first point to the last has come after ten epochs of pretraining."""
    found = {}
    for network in networks(arrays, "pretrained"):
        points = learned(arrays, network, "points", "pretrained")
        tested = learned(arrays, network, "linear_test", "pretrained")[0, :, -1]
        early = int(np.flatnonzero(points <= 10)[-1])
        found[network] = float((tested[0] - tested[early]) / (tested[0] - tested[-1]))
    return found
