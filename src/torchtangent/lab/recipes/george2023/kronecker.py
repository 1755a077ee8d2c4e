"""Chapter 4 and appendix A: Kronecker factorizations, on random data where every claim can be checked exactly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from torchtangent.lab.runner import Context


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    """‖found − expected‖ / ‖expected‖ in the Frobenius norm."""
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def moments(a: np.ndarray, d: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """G = E[(a⊗d)(a⊗d)ᵀ], A = E[aaᵀ], B = E[ddᵀ] over samples given as rows."""
    g = np.einsum("ni,no->nio", a, d).reshape(len(a), -1)
    return g.T @ g / len(a), a.T @ a / len(a), d.T @ d / len(d)


def independence(context: Context) -> Mapping[str, Any]:
    """TG-Prop4.2.1: the Kronecker factorization is exact without covariance, and only then.

    Pairs (aᵢ, dⱼ) over all i and j are a sample in which aaᵀ and ddᵀ have covariance exactly 0. Scaling
    each d by 1 + ρ(‖a‖²/mean − 1) brings covariance in.
    """
    config = context.config
    rng = np.random.default_rng(config["seed"])
    rhos = np.array(config["rhos"])
    errors = np.zeros((config["trials"], len(rhos)))
    for trial in context.track(range(config["trials"])):
        a = rng.standard_normal((config["inputs_drawn"], config["inputs"]))
        d = rng.standard_normal((config["outputs_drawn"], config["outputs"]))
        i, j = np.divmod(np.arange(len(a) * len(d)), len(d))
        norm = np.square(a[i]).sum(1, keepdims=True)
        for k, rho in enumerate(rhos):
            G, A, B = moments(a[i], d[j] * (1 + rho * (norm / norm.mean() - 1)))
            errors[trial, k] = relative(np.kron(A, B), G)
    return {"rhos": rhos, "errors": errors, **_identities(rng, config["trials"])}


def _identities(rng: np.random.Generator, trials: int) -> dict[str, np.ndarray]:
    """Appendix A.1: the largest relative errors of the Kronecker product's identities over random matrices."""
    names = ("inverse", "mixed product", "transpose", "rank", "singular values", "singular vectors")
    errors = np.zeros((trials, len(names)))
    for trial in range(trials):
        A, C = rng.standard_normal((2, 4, 4))
        B, D = rng.standard_normal((2, 3, 3))
        left, s_A, right = np.linalg.svd(A)
        left_B, s_B, right_B = np.linalg.svd(B)
        low = np.outer(A[:, 0], C[0]) + np.outer(A[:, 1], C[1])
        rank = np.linalg.matrix_rank(np.kron(low, B))
        AB = np.kron(A, B)
        vectors = np.kron(left, left_B) * np.kron(s_A, s_B) @ np.kron(right, right_B)
        errors[trial] = (
            relative(np.kron(np.linalg.inv(A), np.linalg.inv(B)), np.linalg.inv(AB)),
            relative(AB @ np.kron(C, D), np.kron(A @ C, B @ D)),
            relative(np.kron(A.T, B.T), AB.T),
            abs(rank - np.linalg.matrix_rank(low) * np.linalg.matrix_rank(B)),
            relative(np.sort(np.kron(s_A, s_B)), np.sort(np.linalg.svd(AB, compute_uv=False))),
            relative(vectors, AB),
        )
    return {"identity_names": np.array(names), "identity_errors": errors}


def random_layers(context: Context) -> Mapping[str, Any]:
    """TG-ThmA.1–3 on random layers: samples (a, d) with dependence, sizes and sample counts drawn at random."""
    config = context.config
    rng = np.random.default_rng(config["seed"])
    rows = []
    for _ in context.track(range(config["trials"])):
        inputs, outputs, n = rng.integers(1, 7), rng.integers(1, 7), rng.integers(1, 40)
        a = rng.standard_normal((n, inputs)) @ rng.standard_normal((inputs, inputs))
        mixing = rng.standard_normal((inputs, outputs)) * rng.random()
        d = np.tanh(a @ mixing) + rng.random() * rng.standard_normal((n, outputs))
        rows.append(_errors(rng, *moments(a, d), perturbations=config["perturbations"]))
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def _errors(
    rng: np.random.Generator, G: np.ndarray, A: np.ndarray, B: np.ndarray, perturbations: int
) -> dict[str, float]:
    """Frobenius errors of KFAC, EKFAC and of other diagonals in KFAC's eigenbasis, relative to ‖G‖."""
    s_A, U_A = np.linalg.eigh(A)
    s_B, U_B = np.linalg.eigh(B)
    U = np.kron(U_A, U_B)

    def error(diagonal: np.ndarray) -> float:
        return relative(U * diagonal @ U.T, G)

    best = np.einsum("pi,pq,qi->i", U, G, U, optimize=True)  # s* = E[(Uᵀg)²]
    others = [
        error(best * (1 + scale * rng.standard_normal(best.shape))) for scale in np.logspace(-3, 0, perturbations)
    ]
    values, basis = np.linalg.eigh(G)
    moments_in_basis = np.einsum("pi,pq,qi->i", basis, G, basis, optimize=True)
    return {
        "ekfac": error(best),
        "kfac": error(np.kron(s_A, s_B)),
        "best_other": min(others),
        "eigenvalue_error": float(np.abs(values - moments_in_basis).max() / values.max()),
    }


def damping(context: Context) -> Mapping[str, Any]:
    """TG-A.4: damping both factors, and what it adds to the eigenvalues of their product."""
    config = context.config
    rng = np.random.default_rng(config["seed"])
    s_A, s_B = (np.sort(rng.gamma(0.5, size=size))[::-1] for size in (config["inputs"], config["outputs"]))
    product = np.kron(s_A, s_B)
    formula, words, added = [], [], []
    for epsilon in config["epsilons"]:
        root = np.sqrt(epsilon)
        extra = epsilon + np.kron(s_A, root * np.ones_like(s_B)) + np.kron(root * np.ones_like(s_A), s_B)
        formula.append(relative(np.kron(s_A + root, s_B + root), product + extra))
        words.append(relative(np.kron(s_A + epsilon, s_B + epsilon), product + extra))
        added.append(extra)
    return {
        "epsilons": np.array(config["epsilons"]),
        "eigenvalues": product,
        "added": np.array(added),
        "formula_error": np.array(formula),
        "words_error": np.array(words),
    }
