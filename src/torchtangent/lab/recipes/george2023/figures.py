"""The plots, from arrays alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from matplotlib.figure import Figure

from torchtangent.lab.recipes.george2023.measures import bounds, cosine_energy
from torchtangent.lab.study import Arrays
from torchtangent.lab.style import INK, MAP, SERIES, SOFT, legend, panel, series

ORDER = {"Diag": 3, "QuasiDiag": 2, "KFAC": 1, "EKFAC": 0, "BlockDiag": 6, "KFAC-π": 4}
"""The series of each representation, the same in every plot."""


def gaussian_pair(pair: int) -> Callable[[Arrays], Figure]:
    """TG-Fig2.1: the densities of a pair, with their central 95 %."""

    def draw(arrays: Arrays) -> Figure:
        names = "ABCD"[2 * pair : 2 * pair + 2]
        kl = arrays["kl"][pair]
        figure, axes = panel(f"{names[0]} and {names[1]}: KL = {kl:.3g}", x="x", y="density")
        for i, name in enumerate(names):
            k = 2 * pair + i
            look = series(i, marker="")
            axes.plot(arrays["x"], arrays["density"][k], **look, label=name)
            half = 1.96 * np.sqrt(arrays["variance"][k])
            low = -0.06 - 0.06 * i
            axes.plot(arrays["mean"][k] + np.array([-half, half]), [low, low], **look, solid_capstyle="butt")
        axes.set(xlim=(-4, 4), ylim=(-0.2, 1.2))
        legend(figure)
        return figure

    return draw


def second_order_ratio(arrays: Arrays) -> Figure:
    """TG-Eq2.4: true distances over quadratic forms against step length."""
    figure, axes = panel("Distance over quadratic form", x="step length ‖δw‖", y="ratio")
    curves = [("‖δf‖² / δwᵀGδw", "l2", "quadratic_l2"), ("KL / δwᵀFδw", "kl", "quadratic_fisher")]
    for i, (label, over, under) in enumerate(curves):
        ratio = arrays[over] / arrays[under]
        axes.fill_between(arrays["steps"], ratio.min(0), ratio.max(0), color=SERIES[i], alpha=0.2, linewidth=0)
        axes.plot(arrays["steps"], np.median(ratio, 0), **series(i), label=label)
    axes.axhline(0.5, color=INK, linewidth=0.8, linestyle=":")
    axes.text(arrays["steps"][-1], 0.52, "½", ha="right", va="bottom", color=INK)
    axes.set(xscale="log", ylim=(0, 1.6))
    legend(figure)
    return figure


def rademacher_gap(arrays: Arrays) -> Figure:
    """TG-Eq2.4: generalization gaps beside their bounds."""
    figure, axes = panel("Worst gap in the class, and bounds", x="gap or bound", y="samples")
    bins = np.linspace(-0.05, 1.25, 66).tolist()
    shown = {"gap": arrays["gap"], **bounds(arrays)}
    for i, (label, values) in enumerate(shown.items()):
        look = series(i, marker="")
        axes.hist(values, bins=bins, histtype="step", linewidth=1.5, color=look["color"], linestyle=look["linestyle"])
        axes.plot([], [], **look, label=label)
    legend(figure)
    return figure


def quadratic_forms(arrays: Arrays) -> Figure:
    """TG-Fig3.1: vᵀMv relative to the dense one."""
    names = arrays["representations"].tolist()
    figure, axes = panel("vᵀMv / vᵀFv", y="ratio to dense")
    axes.axhline(1, color=INK, linewidth=0.8, linestyle=":")
    for i, values in enumerate(arrays["values"]):
        ratio = values / arrays["values"][names.index("Dense")]
        spread = np.linspace(-0.22, 0.22, ratio.size - 1)
        axes.plot(i + spread, ratio[1:], linestyle="", marker="o", markersize=3, color=SERIES[0], alpha=0.7)
        axes.plot(i, ratio[0], linestyle="", marker="X", markersize=7, color=SERIES[1])
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
    axes.set(yscale="log")
    axes.grid(visible=False, axis="x")
    return figure


def monte_carlo(arrays: Arrays) -> Figure:
    """TG-FIM-def: error of the sampled Fisher."""
    figure, axes = panel("Sampled Fisher", x="labels drawn per input, S", y="relative error")
    s, error = arrays["mc_samples"], arrays["mc_errors"]
    axes.fill_between(s, error.min(1), error.max(1), color=SERIES[0], alpha=0.2, linewidth=0)
    axes.plot(s, error.mean(1), **series(0), label="sampled")
    axes.plot(s, error[0].mean() / np.sqrt(s), **series(1, marker=""), label="slope −½")
    axes.set(xscale="log", yscale="log")
    legend(figure)
    return figure


def shared_spectrum(arrays: Arrays) -> Figure:
    """TG-FIM-def: the spectra of F and of the kernel."""
    figure, axes = panel("One spectrum, two matrices", x="index", y="eigenvalue")
    a, b = arrays["eigenvalues_fisher"], arrays["eigenvalues_kernel"]
    shown = np.unique(np.logspace(0, np.log10(a.size), 60).astype(int)) - 1
    index = np.arange(1, a.size + 1)
    axes.plot(index, a.clip(1e-18), **series(0, marker=""), label="Fisher matrix")
    axes.plot(index[shown], b[shown].clip(1e-18), **series(1, linestyle=""), label="kernel")
    axes.set(xscale="log", yscale="log", ylim=(a[0] * 1e-13, a[0] * 3))
    legend(figure)
    return figure


def _by_damping(measure: str, title: str, scale: str) -> Callable[[Arrays], Figure]:
    def draw(arrays: Arrays) -> Figure:
        figure, axes = panel(title, x="damping λ", y=measure.replace("solve_", ""))
        for i, name in enumerate(arrays["names"].tolist()):
            curve = np.median(arrays[measure][-1, 1, i], axis=-1)
            axes.plot(arrays["dampings"], curve, **series(ORDER[name], markevery=1), label=name)
        axes.set(xscale="log", yscale=scale)
        legend(figure)
        return figure

    return draw


def _along_training(measure: str, title: str, y: str, scale: str = "log", kind: int = 1) -> Callable[[Arrays], Figure]:
    def draw(arrays: Arrays) -> Figure:
        figure, axes = panel(title, x="epoch", y=y)
        for i, name in enumerate(arrays["names"].tolist()):
            if name == "KFAC-π":
                continue  # the same matrix as KFAC: only its damping differs
            values = arrays[measure][:, kind, i]
            curve = np.median(values, axis=-1) if values.ndim > 1 else values
            axes.plot(range(len(curve)), curve.clip(1e-17), **series(ORDER[name]), label=name)
        axes.set_xticks(range(len(arrays["epochs"])), arrays["epochs"].tolist())
        axes.set(yscale=scale)
        legend(figure)
        return figure

    return draw


solve_residual = _by_damping("solve_residual", "Solves: residual", "log")
solve_cosine = _by_damping("solve_cosine", "Solves: cosine", "linear")
product_residual = _along_training("product_residual", "Products: residual", "residual", "linear")
product_cosine = _along_training("product_cosine", "Products: cosine", "cosine", "linear")
quad_error = _along_training("quad_error", "Quadratic forms", "relative error")


def trace_error(kind: str) -> Callable[[Arrays], Figure]:
    """TG-Fig3.6: the relative error of the trace, from sampled labels or exact."""
    return _along_training("trace_error", f"Traces, {kind}", "relative error", kind=("exact", "sampled").index(kind))


def independence(arrays: Arrays) -> Figure:
    """TG-Prop4.2.1: error of the factorization against dependence."""
    figure, axes = panel("Error of A ⊗ B", x="strength of dependence ρ", y="relative error")
    rhos, errors = arrays["rhos"], arrays["errors"]
    axes.fill_between(rhos, errors.min(0), errors.max(0), color=SERIES[0], alpha=0.2, linewidth=0)
    axes.plot(rhos, np.median(errors, 0), **series(0))
    axes.set_xscale("symlog", linthresh=rhos[1])
    axes.set_xticks([0, 1e-4, 1e-3, 1e-2, 1e-1, 1])
    axes.set(yscale="log")
    return figure


def errors_scatter(part: str) -> Callable[[Arrays], Figure]:
    """TG-ThmA.2: EKFAC's error against KFAC's."""

    def draw(arrays: Arrays) -> Figure:
        kind = part.replace("-", " ").capitalize()
        figure, axes = panel(kind, x="error of KFAC", y="error of EKFAC")
        kfac, ekfac = arrays[f"{part}/kfac"], arrays[f"{part}/ekfac"]
        if kfac.ndim > 1:
            for i in range(kfac.shape[1]):
                look = series(i, linestyle="")
                axes.plot(kfac[:, i], ekfac[:, i], **look, label=f"layer {i + 1}")
            legend(figure)
        else:
            axes.plot(kfac, ekfac, linestyle="", marker="o", markersize=2.5, color=SERIES[0], alpha=0.5)
        top = 1.08 * max(kfac.max(), ekfac.max())
        axes.plot([0, top], [0, top], color=INK, linewidth=0.8, linestyle=":")
        axes.set(xlim=(0, top), ylim=(0, top))
        return figure

    return draw


def damping(arrays: Arrays) -> Figure:
    """TG-A.4: what damping both factors adds to each eigenvalue."""
    figure, axes = panel("Damping of each eigenvalue", x="eigenvalue of A ⊗ B", y="added")
    for i, (epsilon, added) in enumerate(zip(arrays["epsilons"], arrays["added"], strict=True)):
        look = series(i, linestyle="", markersize=2.5, alpha=0.6)
        axes.plot(arrays["eigenvalues"], added, **look, label=f"ε = {epsilon:g}")
        axes.axhline(epsilon, color=SERIES[i], linewidth=1)
    axes.set(xscale="log", yscale="log", xlim=(1e-6, None))
    legend(figure)
    return figure


def perturbations(arrays: Arrays) -> Figure:
    """TG-FigB.1: displacement of the outputs along singular and random directions."""
    figure, axes = panel("Same step, different directions", x="index of direction", y="change of the outputs, RMS")
    index = np.arange(1, len(arrays["moved_singular"]) + 1)
    first_order = arrays["step"] * arrays["singular_values"] / np.sqrt(arrays["samples"])
    axes.plot(index, first_order, **series(2, marker=""), label="singular, to first order")
    axes.plot(index, arrays["moved_singular"], **series(0), label="singular")
    axes.plot(index, arrays["moved_random"], **series(1, linestyle=""), label="random")
    axes.set(ylim=(0, None))
    legend(figure)
    return figure


def line_eigenvectors(arrays: Arrays) -> Figure:
    """TG-FigB.2: three eigenvectors."""
    figure, axes = panel("Eigenvectors", x="x", y="")
    vectors = arrays["eigenvectors"][0, 0]
    for i, j in enumerate((0, 5, 20)):
        v = vectors[:, j] / np.abs(vectors[:, j]).max()
        axes.plot(arrays["x"], 2.3 * -i + np.sign(v[0]) * v, **series(i, markersize=2.5, linestyle="-"))
    axes.set_yticks([0, -2.3, -4.6], ["j = 0", "5", "20"])
    return figure


def line_fourier(arrays: Arrays) -> Figure:
    """TG-FigB.2: energy of eigenvectors at each cosine frequency."""
    figure, axes = panel("Energy by frequency", x="eigenvector index j", y="cosine frequency")
    image = axes.imshow(np.sqrt(cosine_energy(arrays).mean(0)), origin="lower", cmap=MAP, vmin=0, vmax=1)
    bar = figure.colorbar(image, ax=axes, shrink=0.8)
    bar.set_label("amplitude")
    bar.outline.set_edgecolor(SOFT)
    axes.grid(visible=False)
    return figure


def line_spectrum(arrays: Arrays) -> Figure:
    """TG-FigB.2: the spectrum relative to its first value."""
    figure, axes = panel("Spectrum", x="index", y="relative to the first")
    ratio = arrays["eigenvalues"][0] / arrays["eigenvalues"][0][:, :1]
    index = np.arange(1, ratio.shape[1] + 1)
    for i, (label, values) in enumerate({"eigenvalues": ratio, "singular values": np.sqrt(ratio.clip(0))}.items()):
        axes.fill_between(index, values.min(0), values.max(0), color=SERIES[i], alpha=0.2, linewidth=0)
        axes.plot(index, np.median(values, 0), **series(i, markersize=2.5), label=label)
    axes.plot([10], [0.04], marker="*", markersize=11, linestyle="", color=INK, label="published, 4 %")
    axes.set(yscale="log", ylim=(1e-10, 2))
    legend(figure)
    return figure
