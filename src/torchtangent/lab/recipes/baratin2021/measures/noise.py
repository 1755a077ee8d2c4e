"""How the claims' values are read off the curves of spectrum and alignment; means over seeds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from torchtangent.lab.measures import spearman
from torchtangent.lab.recipes.baratin2021.measures.curves import at_equal_loss, fitted, learning, reached
from torchtangent.lab.recipes.baratin2021.measures.seeds import over_seeds
from torchtangent.lab.rules import Measured
from torchtangent.lab.study import Arrays

Run = dict[str, np.ndarray]
Measure = Callable[[Arrays], Measured]

_SHARED = ("steps", "indices", "shares")


def runs(arrays: Arrays, part: str) -> list[Run]:
    """The arrays of a part, seed by seed."""
    names = [key.partition("/")[2] for key in arrays if key.startswith(f"{part}/")]
    whole = {name: arrays[f"{part}/{name}"] for name in names}
    count = len(whole["train_loss"])
    return [{name: a if name in _SHARED else a[seed] for name, a in whole.items()} for seed in range(count)]


def _mean(part: str, read: Callable[[Run], float]) -> Measure:
    """The mean over seeds of what is read off a run, with its standard error."""
    return lambda arrays: over_seeds(np.array([read(run) for run in runs(arrays, part)]))


def drop(part: str) -> Measure:
    """The least effective rank of the training kernel over that at the start."""
    return _mean(part, lambda run: run["train_rank"].min() / run["train_rank"][0])


def drop_early(part: str) -> Measure:
    """The step at which the effective rank has made half of its way down, over the number of all steps."""

    def read(run: Run) -> float:
        rank = run["train_rank"]
        return reached(run["steps"], -rank, -(rank[0] + rank.min()) / 2) / run["steps"][-1]

    return _mean(part, read)


def growth(part: str) -> Measure:
    """The largest and the mean eigenvalue, when the training set is fitted (or at the end), over those at the start."""

    def measure(arrays: Arrays) -> Measured:
        found = []
        for run in runs(arrays, part):
            values = np.stack([run["train_eigenvalues"][:, 0], run["train_mean"]])
            found.append(values[:, fitted(run["train_accuracy"])] / values[:, 0])
        largest, mean = np.mean(found, axis=0)
        return {"largest": largest, "mean": mean}

    return measure


def growth_by_index(part: str) -> Measure:
    """Spearman's correlation of an eigenvalue's index with its growth until the training set is fitted."""

    def read(run: Run) -> float:
        values = run["train_eigenvalues"]
        return spearman(run["indices"], values[fitted(run["train_accuracy"])] / values[0])

    return _mean(part, read)


def share(part: str, k: int) -> Measure:
    """T_k of the training kernel when the training set is fitted, or at the end."""

    def read(run: Run) -> float:
        return run["train_shares"][fitted(run["train_accuracy"]), run["shares"].tolist().index(k)]

    return _mean(part, read)


def rank_against_accuracy(part: str) -> Measure:
    """Spearman's correlation of the training kernel's effective rank and test accuracy, over the points of training."""
    return _mean(part, lambda run: spearman(run["train_rank"], run["test_accuracy"]))


def rebound(part: str) -> Measure:
    """The effective rank at the end over its least, and by how much test accuracy is below its best at the end."""

    def measure(arrays: Arrays) -> Measured:
        rank, accuracy = arrays[f"{part}/train_rank"], arrays[f"{part}/test_accuracy"]
        return {
            "rank, end over least": float(np.mean(rank[:, -1] / rank.min(1))),
            "test accuracy lost": float(np.mean(accuracy.max(1) - accuracy[:, -1])),
        }

    return measure


def sets_differ(part: str) -> Measure:
    """The median, over points of training and eigenvalues, of |log₁₀| of test over training eigenvalues."""
    return _mean(
        part, lambda run: float(np.median(np.abs(np.log10(run["test_eigenvalues"] / run["train_eigenvalues"]))))
    )


def cka_growth(part: str) -> Measure:
    """CKA at the end over that at the start, on the training and on the test set."""
    return lambda arrays: {
        name: float(np.mean([run[f"{name}_cka"][-1] / run[f"{name}_cka"][0] for run in runs(arrays, part)]))
        for name in ("train", "test")
    }


def cka_end(part: str) -> Measure:
    """CKA on the test set at the end."""
    return _mean(part, lambda run: run["test_cka"][-1])


def clean_over_noisy(part: str) -> Measure:
    """Mean CKA on the test set over that on the training set, while the network learns what generalizes."""

    def read(run: Run) -> float:
        phase = learning(run["test_accuracy"])
        return run["test_cka"][phase].mean() / run["train_cka"][phase].mean()

    return _mean(part, read)


def layers_above(part: str, level: float) -> Measure:
    """How many layers' CKA on the test set is above a level at some point of training."""
    return _mean(part, lambda run: float(np.sum(run["test_layers"].max(0) > level)))


def last_layer(part: str) -> Measure:
    """The largest CKA of the last layer along training over that of the best layer."""
    return _mean(part, lambda run: run["test_layers"][:, -1].max() / run["test_layers"].max())


def layer_peaks(part: str) -> Measure:
    """The step at which a layer's CKA peaks over that at which test accuracy does: the median over layers, by set."""

    def read(run: Run, name: str) -> float:
        times = run["steps"] + 1.0
        peaks = times[run[f"{name}_layers"].argmax(0)]
        return float(np.median(peaks) / times[run["test_accuracy"].argmax()])

    return lambda arrays: {
        name: float(np.mean([read(run, name) for run in runs(arrays, part)])) for name in ("train", "test")
    }


def slower(fast: str, slow: str) -> Measure:
    """The least effective rank at the small learning rate over that at the usual one."""

    def measure(arrays: Arrays) -> Measured:
        small, usual = (arrays[f"{part}/train_rank"].min(1) for part in (slow, fast))
        return over_seeds(small / usual)

    return measure


def rates_at_equal_loss(name: str, fast: str, slow: str) -> Measure:
    """The mean of a curve at both learning rates, over training losses that both runs go through."""

    def measure(arrays: Arrays) -> Measured:
        pairs = [
            at_equal_loss((a["train_loss"], a[name]), (b["train_loss"], b[name]))
            for a, b in zip(runs(arrays, fast), runs(arrays, slow), strict=True)
        ]
        return {"usual": float(np.mean([a for a, _ in pairs])), "small": float(np.mean([b for _, b in pairs]))}

    return measure
