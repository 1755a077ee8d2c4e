"""What the thesis' chapters 2 to 4 and figures B.1 and B.2 should show, and the rules that decide."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from torchtangent.lab.claims import AtLeast, AtMost, Between, Claim, Each, Highest, Lowest, Measured, Near
from torchtangent.lab.study import Arrays

ROUNDING = 1e-10
"""What counts as equal to rounding in float64 after long sums."""

COMPARED = ("Diag", "QuasiDiag", "KFAC", "EKFAC")
"""The representations in the thesis' figures."""


def _pair(name: str) -> Callable[[Arrays], Measured]:
    return lambda arrays: {"A, B": arrays[name][0], "C, D": arrays[name][1]}


def _smallest_step(over: str, under: str) -> Callable[[Arrays], Measured]:
    """The ratio at the shortest step, median over directions."""
    return lambda arrays: float(np.median(arrays[over][:, 0] / arrays[under][:, 0]))


def _remainder_order(arrays: Arrays) -> Measured:
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


def _bound_violations(arrays: Arrays) -> Measured:
    return {name: float(np.mean(arrays["gap"] > bound)) for name, bound in bounds(arrays).items()}


def _quad_relative(name: str) -> Callable[[Arrays], Measured]:
    """The largest relative difference of vᵀMv to the dense one."""

    def measure(arrays: Arrays) -> Measured:
        values = dict(zip(arrays["representations"].tolist(), arrays["values"], strict=True))
        return float(np.max(np.abs(values[name] / values["Dense"] - 1)))

    return measure


def _kfac_comparable(arrays: Arrays) -> Measured:
    values = dict(zip(arrays["representations"].tolist(), arrays["values"], strict=True))
    ratio = values["KFAC"] / values["Dense"]
    return {"median ratio": float(np.median(ratio)), "least difference": float(np.min(np.abs(ratio - 1)))}


def _slope(arrays: Arrays) -> Measured:
    error = np.log(arrays["mc_errors"]).mean(1)
    return float(np.polyfit(np.log(arrays["mc_samples"]), error, 1)[0])


def _spectra_differ(arrays: Arrays) -> Measured:
    a, b = arrays["eigenvalues_fisher"], arrays["eigenvalues_kernel"]
    return float(np.max(np.abs(a - b)) / a[0])


def trained(arrays: Arrays, name: str, kind: str) -> dict[str, np.ndarray]:
    """A measure by representation at the checkpoints after the first epoch: (checkpoints, ...) each."""
    at = arrays["kinds"].tolist().index(kind)
    return {
        representation: arrays[name][1:, at, i] for i, representation in enumerate(arrays["names"].tolist())
    }


def _typical(measure: str, names: tuple[str, ...], kind: str = "sampled") -> Callable[[Arrays], Measured]:
    """The median over trained checkpoints, draws of v (and dampings) by representation."""

    def measured(arrays: Arrays) -> Measured:
        values = trained(arrays, measure, kind)
        return {name: float(np.median(values[name])) for name in names}

    return measured


def _worst_traces(kind: str) -> Callable[[Arrays], Measured]:
    def measured(arrays: Arrays) -> Measured:
        at = arrays["kinds"].tolist().index(kind)
        worst = arrays["trace_error"][:, at].max(0)
        return {name: float(worst[arrays["names"].tolist().index(name)]) for name in COMPARED}

    return measured


def _least_cosine(arrays: Arrays) -> Measured:
    """The smallest cosine at the largest damping."""
    values = trained(arrays, "solve_cosine", "sampled")
    return {name: float(values[name][:, -1].min()) for name in (*COMPARED, "KFAC-π")}


def _violations(part: str) -> Callable[[Arrays], Measured]:
    def measured(arrays: Arrays) -> Measured:
        return float(np.sum(arrays[f"{part}/ekfac"] > arrays[f"{part}/kfac"] * (1 + 1e-12) + 1e-14))

    return measured


def line_ratio(arrays: Arrays, name: str = "eigenvalues", init: int = 0) -> float:
    """λ₁₀/λ₁, median over seeds."""
    values = arrays[name][init]
    return float(np.median(values[:, 9] / values[:, 0]))


def cosine_energy(arrays: Arrays) -> np.ndarray:
    """The energy of every eigenvector at every frequency of the cosine basis: (seeds, frequency, index)."""
    n = len(arrays["x"])
    basis = np.cos(np.pi * np.outer(np.arange(n), np.arange(n) + 0.5) / n)
    basis /= np.linalg.norm(basis, axis=1, keepdims=True)
    return np.square(basis @ arrays["eigenvectors"][0])


def _order_correlation(arrays: Arrays) -> Measured:
    """Spearman's correlation of index and dominant frequency in the first half, median over seeds."""
    half = len(arrays["x"]) // 2
    frequency = cosine_energy(arrays).argmax(1)[:, :half]
    index = np.arange(half)

    def ranks(values: np.ndarray) -> np.ndarray:
        return np.array([np.mean(np.flatnonzero(np.sort(values) == value)) for value in values])

    return float(np.median([np.corrcoef(index, ranks(row))[0, 1] for row in frequency]))


def _moved(arrays: Arrays) -> Measured:
    first = arrays["moved_singular"][0]
    return {
        "random / first": float(np.median(arrays["moved_random"]) / first),
        "last / first": float(arrays["moved_singular"][-1] / first),
    }


CLAIMS = (
    Claim(
        id="TG-Fig2.1",
        name="distance",
        statement="Both pairs are at distance 1 in (μ, σ²).",
        published=1.0,
        measure=_pair("distance"),
        rule=Near(1.0, 1e-12),
    ),
    Claim(
        id="TG-Fig2.1",
        name="kl",
        statement="KL(A‖B) = ½(ln 2 − ½) and KL(C‖D) = 1/(2(1 − √¾)), by integration.",
        published="0.0966 and 3.73 (derived)",
        measure=_pair("kl_integrated"),
        rule=Each({"A, B": Near(0.5 * (np.log(2) - 0.5), 1e-6), "C, D": Near(1 / (2 - 3**0.5), 1e-6)}),
    ),
    Claim(
        id="TG-Fig2.1",
        name="overlap",
        statement="A and B overlap heavily, C and D hardly (area under both densities).",
        published="heavily; hardly",
        measure=_pair("overlap"),
        rule=Each({"A, B": AtLeast(0.75), "C, D": AtMost(0.25)}),
    ),
    Claim(
        id="TG-Eq2.4",
        name="kl",
        statement="KL(f at w+δw ‖ f at w) = ½ δwᵀFδw to second order: the ratio of KL to δwᵀFδw tends to ½.",
        published=0.5,
        measure=_smallest_step("kl", "quadratic_fisher"),
        rule=Near(0.5, 0.01),
    ),
    Claim(
        id="TG-Eq2.4",
        name="kl as printed",
        statement="As printed in eq. 3.2.4, without the ½: the ratio tends to 1.",
        published=1.0,
        measure=_smallest_step("kl", "quadratic_fisher"),
        rule=Near(1.0, 0.01),
        note="An erratum of the thesis: this line is expected not to hold.",
    ),
    Claim(
        id="TG-Eq2.4",
        name="remainder",
        statement="The remainder is o(‖δw‖²): relative to the quadratic form it vanishes with the step.",
        published="exponent > 0",
        measure=_remainder_order,
        rule=AtLeast(0.8),
        note="Exponent fitted for steps between 0.001 and 0.05; 1 for a smooth function.",
    ),
    Claim(
        id="TG-Eq2.4",
        name="l2",
        statement="‖δf‖² = δwᵀGδw to second order: their ratio tends to 1.",
        published=1.0,
        measure=_smallest_step("l2", "quadratic_l2"),
        rule=Near(1.0, 0.01),
    ),
    Claim(
        id="TG-Eq2.4",
        name="rademacher",
        statement="With probability 1 − δ, δ = 0.05, the generalization gap is at most 2R̂ plus the last term.",
        published="violated with probability ≤ 0.05",
        measure=_bound_violations,
        rule=AtMost(0.05),
    ),
    Claim(
        id="TG-Fig3.1",
        name="implicit",
        statement="vᵀFv by the implicit representation equals the dense one to float precision.",
        published="equal",
        measure=_quad_relative("Implicit"),
        rule=AtMost(ROUNDING),
        note="Largest relative difference.",
    ),
    Claim(
        id="TG-Fig3.1",
        name="kfac",
        statement="KFAC's vᵀFv is comparable to the dense one, not equal.",
        published="comparable, not equal",
        measure=_kfac_comparable,
        rule=Each({"median ratio": Between(0.5, 2.0), "least difference": AtLeast(1e-6)}),
    ),
    Claim(
        id="TG-FIM-def",
        name="closed form",
        statement="F is the Gram matrix of the gradients of √p_c log p_c, p held fixed.",
        published="equal",
        measure=lambda arrays: float(arrays["closed_form_error"]),
        rule=AtMost(ROUNDING),
    ),
    Claim(
        id="TG-FIM-def",
        name="monte carlo",
        statement="The sampled Fisher tends to the closed form as 1/√S.",
        published="exponent −½",
        measure=_slope,
        rule=Between(-0.6, -0.4),
    ),
    Claim(
        id="TG-FIM-def",
        name="spectrum",
        statement="F and the kernel of the same outputs share their non-zero spectrum.",
        published="equal",
        measure=_spectra_differ,
        rule=AtMost(ROUNDING),
        note="Largest difference relative to the first eigenvalue.",
    ),
    Claim(
        id="TG-Fig3.3",
        name="residual",
        statement="KFAC has the lowest residual of solves.",
        published="KFAC best",
        measure=_typical("solve_residual", COMPARED),
        rule=Lowest("KFAC"),
        note="Median over trained checkpoints, dampings and v; all damped exactly.",
    ),
    Claim(
        id="TG-Fig3.3",
        name="residual, π rule",
        statement="The same with KFAC damped by the π rule, as in the thesis' code.",
        published="KFAC best",
        measure=_typical("solve_residual", ("Diag", "QuasiDiag", "KFAC-π", "EKFAC")),
        rule=Lowest("KFAC-π"),
    ),
    Claim(
        id="TG-Fig3.3",
        name="large damping",
        statement="All cosines tend to 1 as λ grows.",
        published=1.0,
        measure=_least_cosine,
        rule=AtLeast(0.99),
        note="Smallest cosine at the largest λ.",
    ),
    Claim(
        id="TG-Fig3.4",
        name="residual",
        statement="EKFAC has the lowest residual of products.",
        published="EKFAC best",
        measure=_typical("product_residual", COMPARED),
        rule=Lowest("EKFAC"),
        note="Median over trained checkpoints and v.",
    ),
    Claim(
        id="TG-Fig3.5",
        name="relative difference",
        statement="EKFAC has the lowest relative error of vᵀFv.",
        published="EKFAC best",
        measure=_typical("quad_error", COMPARED),
        rule=Lowest("EKFAC"),
        note="Median over trained checkpoints and v.",
    ),
    Claim(
        id="TG-Fig3.6",
        name="exact",
        statement="With the same expectation, the traces of Diag, QuasiDiag and EKFAC equal that of F; KFAC's differs.",
        published="equal; differs",
        measure=_worst_traces("exact"),
        rule=Each(
            {name: AtMost(ROUNDING) for name in ("Diag", "QuasiDiag", "EKFAC")} | {"KFAC": AtLeast(1e-4)}
        ),
        note="Largest relative error over checkpoints.",
    ),
    Claim(
        id="TG-Fig3.6",
        name="sampled",
        statement="From sampled labels, KFAC's trace is less accurate than those of Diag, QuasiDiag and EKFAC.",
        published="KFAC worst",
        measure=_worst_traces("sampled"),
        rule=Highest("KFAC"),
        note="Largest relative error over checkpoints.",
    ),
    Claim(
        id="TG-Prop4.2.1",
        name="exact",
        statement="Without covariance of aaᵀ and ddᵀ, F = E[aaᵀ] ⊗ E[ddᵀ] exactly.",
        published="equal",
        measure=lambda arrays: float(arrays["errors"][:, 0].max()),
        rule=AtMost(ROUNDING),
        note="Largest relative error over random layers.",
    ),
    Claim(
        id="TG-Prop4.2.1",
        name="needed",
        statement="With covariance (ρ = 1) the factorization is not exact.",
        published="differs",
        measure=lambda arrays: float(arrays["errors"][:, -1].min()),
        rule=AtLeast(1e-3),
        note="Smallest relative error over random layers.",
    ),
    Claim(
        id="TG-Prop4.2.1",
        name="identities",
        statement="Kronecker products: inverse, mixed product, transpose, rank, singular values and vectors.",
        published="equal",
        measure=lambda arrays: dict(
            zip(arrays["identity_names"].tolist(), arrays["identity_errors"].max(0), strict=True)
        ),
        rule=AtMost(ROUNDING),
        note="Largest relative errors over random matrices.",
    ),
    Claim(
        id="TG-ThmA.1–3",
        name="theorem 1",
        statement="No other diagonal in KFAC's eigenbasis is closer to G than s*.",
        published="0 violations",
        measure=lambda arrays: float(
            np.sum(arrays["best_other"] < arrays["random-layers/ekfac"] * (1 - 1e-12))
        ),
        rule=AtMost(0),
    ),
    Claim(
        id="TG-ThmA.1–3",
        name="theorem 2, random layers",
        statement="‖G − EKFAC‖ ≤ ‖G − KFAC‖, always, on random layers.",
        published="0 violations",
        measure=_violations("random-layers"),
        rule=AtMost(0),
    ),
    Claim(
        id="TG-ThmA.1–3",
        name="theorem 2, real layers",
        statement="‖G − EKFAC‖ ≤ ‖G − KFAC‖ on every layer of the network, at every checkpoint.",
        published="0 violations",
        measure=_violations("real-layers"),
        rule=AtMost(0),
    ),
    Claim(
        id="TG-ThmA.1–3",
        name="theorem 3",
        statement="In the true eigenbasis the second moments E[(Uᵀ∇)²] are the eigenvalues.",
        published="equal",
        measure=lambda arrays: float(arrays["eigenvalue_error"].max()),
        rule=AtMost(ROUNDING),
    ),
    Claim(
        id="TG-A.4",
        name="formula",
        statement="(S_A + √ε) ⊗ (S_B + √ε) = S_A ⊗ S_B + ε′.",
        published="equal",
        measure=lambda arrays: float(arrays["formula_error"].max()),
        rule=AtMost(1e-14),
    ),
    Claim(
        id="TG-A.4",
        name="words",
        statement="As the words have it, adding ε (not √ε) to both factors gives the same.",
        published="equal",
        measure=lambda arrays: float(arrays["words_error"].max()),
        rule=AtMost(1e-14),
        note="An erratum of the thesis: this line is expected not to hold.",
    ),
    Claim(
        id="TG-FigB.1",
        name="few directions",
        statement="The top singular direction moves the outputs far; random directions and later singular ones hardly.",
        published="most directions ≈ no effect",
        measure=_moved,
        rule=AtMost(0.1),
        note="Displacements relative to the first singular direction's; random: median of all.",
    ),
    Claim(
        id="TG-FigB.2",
        name="order",
        statement="The index of an eigenvector follows its frequency in the first half of the spectrum.",
        published="remarkable alignment",
        measure=_order_correlation,
        rule=AtLeast(0.95),
        note="Spearman's correlation of index and dominant cosine frequency, median over seeds.",
    ),
    Claim(
        id="TG-FigB.2",
        name="eigenvalues",
        statement="λ₁₀/λ₁ ≈ 4 %, read as a ratio of eigenvalues.",
        published=0.04,
        measure=line_ratio,
        rule=Near(0.04, 0.25),
        note="Kaiming-normal weights, default biases; median over seeds.",
    ),
    Claim(
        id="TG-FigB.2",
        name="eigenvalues, centred",
        statement="The same for the centred kernel.",
        published=0.04,
        measure=lambda arrays: line_ratio(arrays, "eigenvalues_centred"),
        rule=Near(0.04, 0.25),
    ),
    Claim(
        id="TG-FigB.2",
        name="singular values",
        statement="√(λ₁₀/λ₁) ≈ 4 %, read as a ratio of singular values of the Jacobian.",
        published=0.04,
        measure=lambda arrays: line_ratio(arrays) ** 0.5,
        rule=Near(0.04, 0.25),
    ),
    Claim(
        id="TG-FigB.2",
        name="singular values, default init",
        statement="The same with PyTorch's default initialization.",
        published=0.04,
        measure=lambda arrays: line_ratio(arrays, init=1) ** 0.5,
        rule=Near(0.04, 0.25),
    ),
)
