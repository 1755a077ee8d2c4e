"""Plots of linear models."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from torchtangent.lab.study import Arrays
from torchtangent.lab.style import INK, SERIES, legend, panel, series


def ridge_errors(arrays: Arrays) -> Figure:
    """TG-Ridge: test error of the primal and the dual solution."""
    figure, axes = panel("Two ways to the same predictions", x="penalty λ", y="mean squared error, test")
    axes.plot(arrays["lambdas"], arrays["error_primal"], **series(0, marker=""), label="weights w*")
    axes.plot(arrays["lambdas"], arrays["error_dual"], **series(1, linestyle=""), label="kernel coefficients c")
    axes.set(xscale="log", ylim=(0, None))
    legend(figure)
    return figure


def smoothness(arrays: Arrays) -> Figure:
    """TG-Ridge: how far predictions are apart, against the bound."""
    figure, axes = panel("Pairs of test samples", x="‖w‖ ‖φ(x) − φ(x′)‖", y="|f(x) − f(x′)|")
    shown = (0, len(arrays["lambdas"]) // 2, -1)
    some = slice(None, None, max(1, arrays["moved"].shape[1] // 300))  # enough to see
    for i, k in enumerate(shown):
        look = series(i, linestyle="", markersize=1.8, alpha=0.5)
        axes.plot(arrays["allowed"][k, some], arrays["moved"][k, some], **look, label=f"λ = {arrays['lambdas'][k]:.0e}")
    ends = [arrays["allowed"][list(shown)].min(), arrays["allowed"][list(shown)].max()]
    axes.plot(ends, ends, color=INK, linewidth=0.8, linestyle=":")
    axes.set(xscale="log", yscale="log", ylim=(1e-4 * ends[0], 3 * ends[1]))
    legend(figure)
    return figure


def noise_variances(arrays: Arrays) -> Figure:
    """TG-MinNorm: the variance of w* along each singular direction."""
    figure, axes = panel("Label noise in w*", x="eigenvalue λⱼ", y="variance along vⱼ")
    lam = arrays["eigenvalues"]
    axes.plot(lam, arrays["sigma"] ** 2 / lam, **series(0, marker=""), label="σ²/λⱼ")
    axes.plot(lam, arrays["variances"], **series(1, linestyle=""), label="regressions on noisy labels")
    axes.set(xscale="log", yscale="log")
    legend(figure)
    return figure


def noise_covariance(arrays: Arrays) -> Figure:
    """TG-MinNorm: the error of the covariance against the number of draws."""
    figure, axes = panel("Covariance from draws", x="draws of the labels", y="relative error")
    draws, errors = arrays["draws"], arrays["errors"]
    axes.fill_between(draws, errors.min(1), errors.max(1), color=SERIES[0], alpha=0.2, linewidth=0)
    axes.plot(draws, errors.mean(1), **series(0), label="mean and range")
    axes.plot(draws, errors[0].mean() * np.sqrt(draws[0] / draws), **series(1, marker=""), label="slope −½")
    axes.set(xscale="log", yscale="log")
    legend(figure)
    return figure
