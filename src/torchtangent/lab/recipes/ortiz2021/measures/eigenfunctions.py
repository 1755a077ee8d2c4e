"""How the claims on learned eigenfunctions are read off the arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from torchtangent.lab.measures import spearman
from torchtangent.lab.rules import Measured
from torchtangent.lab.study import Arrays

REACHED = 0.01
"""The training loss that counts as fitted."""

NETWORKS = ("MLP", "LeNet")
DEEP = ("ResNet18",)
"""At its own, smaller scale, and so judged by itself."""
ALL = (*NETWORKS, *DEEP)


def learned(arrays: Arrays, network: str, name: str, part: str = "eigenfunctions") -> np.ndarray:
    """An array of the part for a network."""
    return arrays[f"{part}-{network}/{name}"]


def final(arrays: Arrays, network: str, kind: str, part: str = "eigenfunctions") -> np.ndarray:
    """Test accuracy at the last epoch for each index, of the networks or of the linearizations."""
    return learned(arrays, network, f"{kind}_test", part)[..., -1]


def epochs_to(loss: np.ndarray, goal: float = REACHED) -> np.ndarray:
    """The first epoch, from 1, whose mean training loss is at most the goal; one more than there are if none is.

    >>> epochs_to(np.array([[0.5, 0.009], [0.5, 0.4]]))
    array([2, 3])
    """
    below = loss <= goal
    return np.where(below.any(-1), below.argmax(-1), loss.shape[-1]) + 1


def falls_with_index(part: str = "eigenfunctions", among: Sequence[str] = NETWORKS) -> Callable[[Arrays], Measured]:
    """Spearman's correlation of test accuracy and index."""

    def measure(arrays: Arrays) -> Measured:
        return {
            f"{network}, {kind}": spearman(
                learned(arrays, network, "indices", part), final(arrays, network, kind, part)
            )
            for network in networks(arrays, part, among)
            for kind in ("network", "linear")
        }

    return measure


def linear_advantage(part: str = "eigenfunctions", among: Sequence[str] = NETWORKS) -> Callable[[Arrays], Measured]:
    """Test accuracy of the linearization minus that of the network, averaged over the indices."""

    def measure(arrays: Arrays) -> Measured:
        return {
            network: float(np.mean(final(arrays, network, "linear", part) - final(arrays, network, "network", part)))
            for network in networks(arrays, part, among)
        }

    return measure


def indices_won(among: Sequence[str] = NETWORKS) -> Callable[[Arrays], Measured]:
    """The fraction of indices at which the linearization is at least as accurate as the network."""
    return lambda arrays: {
        network: float(np.mean(final(arrays, network, "linear") >= final(arrays, network, "network")))
        for network in networks(arrays, among=among)
    }


def same_order(among: Sequence[str] = NETWORKS) -> Callable[[Arrays], Measured]:
    """Spearman's correlation between the accuracies of networks and of linearizations."""
    return lambda arrays: {
        network: spearman(final(arrays, network, "linear"), final(arrays, network, "network"))
        for network in networks(arrays, among=among)
    }


def networks(arrays: Arrays, part: str = "eigenfunctions", among: Sequence[str] = NETWORKS) -> list[str]:
    """The networks that the entry looks at."""
    return [network for network in among if any(name.startswith(f"{part}-{network}/") for name in arrays)]


def grows_with_index(network: str) -> Callable[[Arrays], Measured]:
    """Spearman's correlation of the index with time to fit, distance and cosine distance of the networks."""

    def measure(arrays: Arrays) -> Measured:
        index = learned(arrays, network, "indices")
        return {
            "epochs": spearman(index, epochs_to(learned(arrays, network, "network_loss"))),
            "ℓ2 distance": spearman(index, learned(arrays, network, "network_distance")),
            "cosine distance": spearman(index, learned(arrays, network, "network_cosine")),
        }

    return measure


def ranges(network: str) -> Callable[[Arrays], Measured]:
    """The largest time to fit, distance and cosine distance of the networks."""

    def measure(arrays: Arrays) -> Measured:
        return {
            "epochs": float(epochs_to(learned(arrays, network, "network_loss")).max()),
            "ℓ2 distance": float(learned(arrays, network, "network_distance").max()),
            "cosine distance": float(learned(arrays, network, "network_cosine").max()),
        }

    return measure


def growth(arrays: Arrays, network: str) -> np.ndarray:
    """α after training over α before, for every eigenfunction: (trained, K)."""
    return learned(arrays, network, "alignments") / learned(arrays, network, "eigenvalues")


def spikes(network: str, only: tuple[int, ...] = ()) -> Callable[[Arrays], Measured]:
    """Growth of the alignment of the eigenfunction trained on, over the largest growth of another."""

    def measure(arrays: Arrays) -> Measured:
        found = {}
        for k, row in zip(learned(arrays, network, "trained").tolist(), growth(arrays, network), strict=True):
            if not only or k in only:
                found[f"φ{k}"] = float(row[k] / np.delete(row, k).max())
        return found

    return measure


def order_kept(network: str, only: tuple[int, ...] = ()) -> Callable[[Arrays], Measured]:
    """Spearman's correlation of the alignments before and after training, without the one trained on."""

    def measure(arrays: Arrays) -> Measured:
        before, after = learned(arrays, network, "eigenvalues"), learned(arrays, network, "alignments")
        found = {}
        for k, row in zip(learned(arrays, network, "trained").tolist(), after, strict=True):
            if not only or k in only:
                found[f"φ{k}"] = spearman(np.delete(before, k), np.delete(row, k))
        return found

    return measure


def binarized(arrays: Arrays) -> Measured:
    """⟨φ_j, sign φ_j⟩ / √m, averaged over the eigenfunctions."""
    return {network: float(np.mean(learned(arrays, network, "binarized"))) for network in networks(arrays, among=ALL)}


def random_products(arrays: Arrays) -> Measured:
    """The size of the average inner product of random unit vectors."""
    return float(abs(np.mean(np.concatenate([learned(arrays, n, "random") for n in networks(arrays)]))))


def seconds(arrays: Arrays) -> Measured:
    """Seconds to compute the kernel of all samples."""
    return {network: float(learned(arrays, network, "kernel_seconds")) for network in networks(arrays, among=ALL)}


def converged_faster(among: Sequence[str] = NETWORKS) -> Callable[[Arrays], Measured]:
    """The fraction of tasks whose training loss the network brings to 0.01 in fewer epochs than its linearization."""

    def measure(arrays: Arrays) -> Measured:
        found = {}
        for network in networks(arrays, among=among):
            times = [epochs_to(learned(arrays, network, f"{kind}_loss")) for kind in ("network", "linear")]
            found[network] = float(np.mean(times[0] < times[1]))
        return found

    return measure


def crossing(arrays: Arrays) -> Measured:
    """The index at which the accuracies of LeNet and its linearization on MNIST cross; NaN if never."""
    index = learned(arrays, "LeNet", "indices", "mnist")
    gap = final(arrays, "LeNet", "linear", "mnist") - final(arrays, "LeNet", "network", "mnist")
    changes = np.flatnonzero(np.sign(gap[1:]) != np.sign(gap[:-1]))
    if not len(changes):
        return float("nan")
    i = changes[-1]
    return float(index[i] + (index[i + 1] - index[i]) * gap[i] / (gap[i] - gap[i + 1]))


def adam_falls(arrays: Arrays) -> Measured:
    """Spearman's correlation of test accuracy and index, for each rate."""
    return {
        f"{network}, {kind}, rate {rate:g}": spearman(learned(arrays, network, "indices", "adam"), accuracy)
        for network in networks(arrays, "adam")
        for kind in ("network", "linear")
        for rate, accuracy in zip(
            learned(arrays, network, "rates", "adam"), final(arrays, network, kind, "adam"), strict=True
        )
    }


def adam_advantage(arrays: Arrays) -> Measured:
    """Test accuracy of the linearization minus that of the network, each at its better rate, averaged over indices."""
    found = {}
    for network in networks(arrays, "adam"):
        best = {kind: final(arrays, network, kind, "adam").mean(1).max() for kind in ("network", "linear")}
        found[network] = float(best["linear"] - best["network"])
    return found
