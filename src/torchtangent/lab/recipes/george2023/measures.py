"""How the claims' values are read off the arrays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from torchtangent.lab.measures import exponent
from torchtangent.lab.rules import Measured
from torchtangent.lab.study import Arrays

COMPARED = ("Diag", "QuasiDiag", "KFAC", "EKFAC")
"""The representations in the thesis' figures."""


def pair(name: str) -> Callable[[Arrays], Measured]:
    """A value of each pair of Gaussians."""
    return lambda arrays: {"A, B": arrays[name][0], "C, D": arrays[name][1]}


def smallest_step(over: str, under: str) -> Callable[[Arrays], Measured]:
    """The ratio at the shortest step, median over directions."""
    return lambda arrays: float(np.median(arrays[over][:, 0] / arrays[under][:, 0]))


def remainder_order(arrays: Arrays) -> Measured:
    """The exponent of the relative remainder |KL / ½δwᵀFδw − 1| in the step, where it is above rounding."""
    steps = arrays["steps"]
    remainder = np.median(np.abs(2 * arrays["kl"] / arrays["quadratic_fisher"] - 1), axis=0)
    use = (steps > 1e-3) & (steps < 0.05)
    return float(np.polyfit(np.log(steps[use]), np.log(remainder[use]), 1)[0])


def bounds(arrays: Arrays) -> dict[str, np.ndarray]:
    """The Rademacher bound on the gap of each sample, with either printed last term."""
    n, confidence = arrays["n"], arrays["confidence"]
    log = np.log(2 / confidence)
    twice = 2 * arrays["complexity"]
    return {"eq. 2.5.4": twice + np.sqrt(log / n), "eq. B.2.5": twice + 3 * np.sqrt(log / (2 * n))}


def bound_violations(arrays: Arrays) -> Measured:
    """The fraction of samples whose gap exceeds the bound."""
    return {name: float(np.mean(arrays["gap"] > bound)) for name, bound in bounds(arrays).items()}


def quad_relative(name: str) -> Callable[[Arrays], Measured]:
    """The largest relative difference of vᵀMv to the dense one."""

    def measure(arrays: Arrays) -> Measured:
        values = dict(zip(arrays["representations"].tolist(), arrays["values"], strict=True))
        return float(np.max(np.abs(values[name] / values["Dense"] - 1)))

    return measure


def kfac_ratio(arrays: Arrays) -> Measured:
    """KFAC's vᵀMv over vᵀFv, for v = θ and random v."""
    values = dict(zip(arrays["representations"].tolist(), arrays["values"], strict=True))
    ratio = values["KFAC"] / values["Dense"]
    return {"v = θ": float(ratio[0]), "random v, median": float(np.median(ratio[1:]))}


def slope(arrays: Arrays) -> Measured:
    """The exponent with which the error of the sampled Fisher falls."""
    error = np.log(arrays["mc_errors"]).mean(1)
    return float(np.polyfit(np.log(arrays["mc_samples"]), error, 1)[0])


def spectra_differ(arrays: Arrays) -> Measured:
    """The largest difference of eigenvalues relative to the first."""
    a, b = arrays["eigenvalues_fisher"], arrays["eigenvalues_kernel"]
    return float(np.max(np.abs(a - b)) / a[0])


def trained(arrays: Arrays, name: str, kind: str) -> dict[str, np.ndarray]:
    """A measure by representation at the checkpoints after the first epoch: (checkpoints, ...) each."""
    at = arrays["kinds"].tolist().index(kind)
    return {representation: arrays[name][1:, at, i] for i, representation in enumerate(arrays["names"].tolist())}


def typical(measure: str, names: tuple[str, ...], kind: str = "sampled") -> Callable[[Arrays], Measured]:
    """The median over trained checkpoints, draws of v (and dampings) by representation."""

    def measured(arrays: Arrays) -> Measured:
        values = trained(arrays, measure, kind)
        return {name: float(np.median(values[name])) for name in names}

    return measured


def worst_traces(kind: str) -> Callable[[Arrays], Measured]:
    """The largest relative error of the trace over checkpoints, by representation."""

    def measured(arrays: Arrays) -> Measured:
        at = arrays["kinds"].tolist().index(kind)
        worst = arrays["trace_error"][:, at].max(0)
        return {name: float(worst[arrays["names"].tolist().index(name)]) for name in COMPARED}

    return measured


def least_cosine(arrays: Arrays) -> Measured:
    """The smallest cosine at the largest damping."""
    values = trained(arrays, "solve_cosine", "sampled")
    return {name: float(values[name][:, -1].min()) for name in (*COMPARED, "KFAC-π")}


def violations(part: str) -> Callable[[Arrays], Measured]:
    """In how many layers EKFAC is further from G than KFAC, beyond rounding."""

    def measured(arrays: Arrays) -> Measured:
        return float(np.sum(arrays[f"{part}/ekfac"] > arrays[f"{part}/kfac"] * (1 + 1e-12) + 1e-14))

    return measured


def line_ratio(arrays: Arrays, name: str = "eigenvalues", init: int = 0) -> float:
    """λ₁₀/λ₁, median over seeds."""
    values = arrays[name][init]
    return float(np.median(values[:, 9] / values[:, 0]))


def beyond_rank_three(arrays: Arrays) -> Measured:
    """The fourth or a later eigenvalue relative to the first, of networks whose biases are zero; the largest."""
    values = arrays["eigenvalues"][2]
    return float(np.max(np.abs(values[:, 3:]).max(1) / values[:, 0]))


def cosine_energy(arrays: Arrays) -> np.ndarray:
    """The energy of every eigenvector at every frequency of the cosine basis: (seeds, frequency, index)."""
    n = len(arrays["x"])
    basis = np.cos(np.pi * np.outer(np.arange(n), np.arange(n) + 0.5) / n)
    basis /= np.linalg.norm(basis, axis=1, keepdims=True)
    return np.square(basis @ arrays["eigenvectors"][0])


def order_correlation(arrays: Arrays) -> Measured:
    """Spearman's correlation of index and dominant frequency in the first half, median over seeds."""
    half = len(arrays["x"]) // 2
    frequency = cosine_energy(arrays).argmax(1)[:, :half]
    index = np.arange(half)

    def ranks(values: np.ndarray) -> np.ndarray:
        return np.array([np.mean(np.flatnonzero(np.sort(values) == value)) for value in values])

    return float(np.median([np.corrcoef(index, ranks(row))[0, 1] for row in frequency]))


def moved(arrays: Arrays) -> dict[str, float]:
    """Displacements relative to the first singular direction's."""
    first = arrays["moved_singular"][0]
    return {
        "random": float(np.median(arrays["moved_random"]) / first),
        "last singular": float(arrays["moved_singular"][-1] / first),
    }


def other_interpolators(arrays: Arrays) -> Measured:
    """The smallest norm of other interpolators relative to the shortest one's, and what they miss of the labels."""
    return {"norm": float(arrays["others_norm"].min()), "misfit": float(arrays["others_error"])}


def noise_exponent(arrays: Arrays) -> Measured:
    """The exponent with which the error of a covariance falls with the number of draws."""
    return exponent(arrays["draws"], np.exp(np.log(arrays["errors"]).mean(1)))


def largest_ratio(over: str, under: str) -> Callable[[Arrays], Measured]:
    """The largest ratio of two arrays."""
    return lambda arrays: float(np.max(arrays[over] / arrays[under]))


def margin_bounds(arrays: Arrays) -> np.ndarray:
    """The right-hand side of (B.2.5) without the margin loss, for each sample and γ."""
    return 2 * arrays["complexity"] + 3 * np.sqrt(np.log(2 / arrays["confidence"]) / (2 * arrays["n"]))


def margin_violations(arrays: Arrays) -> Measured:
    """The fraction of samples that violate (B.2.5), for each γ."""
    return _by_gamma(arrays, arrays["gap"] > margin_bounds(arrays))


def expected_violations(arrays: Arrays) -> Measured:
    """The fraction of samples that violate proposition 2.5.1, for each γ."""
    last = np.sqrt(np.log(1 / arrays["confidence"]) / (2 * arrays["n"]))
    return _by_gamma(arrays, arrays["margin_gap"] > 2 * arrays["complexity"].mean(0) + last)


def _by_gamma(arrays: Arrays, violated: np.ndarray) -> Measured:
    return {
        f"γ = {gamma:g}": float(np.mean(column)) for gamma, column in zip(arrays["gap_gammas"], violated.T, strict=True)
    }
