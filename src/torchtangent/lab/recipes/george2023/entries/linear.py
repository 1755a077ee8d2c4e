"""Section 2.2 and appendix B.2: linear models."""

from __future__ import annotations

from torchtangent.lab.recipes.george2023.figures import linear as draw
from torchtangent.lab.study import Entry, Panel

_FEATURES = (
    "The features φ are the gradients of the 1,001-parameter network with one output (929 parameters) at "
    "initialization; labels ±1 for the classes 0–4 and 5–9 of {ridge[data]}; float64. "
)

ENTRIES = (
    Entry(
        id="TG-Ridge",
        title="Ridge regression, in weights and through the kernel",
        paper=(
            "1/n Σ(f − y)² + λ‖w‖² is smallest at w* = (ΦᵀΦ + λnI)⁻¹Φᵀy (eq. 2.2.1); c = (K + λnI)⁻¹y with the kernel "
            "gives the same predictions (eq. 2.2.10). Short weights make smooth functions: |f(x) − f(x′)| ≤ "
            "‖w‖ ‖φ(x) − φ(x′)‖ (eq. 2.2.9)."
        ),
        setup=_FEATURES + "{ridge[samples]} training and {ridge[test_samples]} test samples, {ridge[lambda_count]} λ.",
        parts=("ridge",),
        panels=(
            Panel(draw.ridge_errors, "Test error against penalty: the two solutions lie on each other."),
            Panel(draw.smoothness, "Differences of predictions for pairs of samples, all below the bound."),
        ),
        caption=(
            "Left: test error of both solutions. Right: for every pair of test samples, how far the predictions are "
            "apart against what the norm of w allows; no point may lie above the line."
        ),
        notes="The ridge of the library's regression is the thesis' λn.",
    ),
    Entry(
        id="TG-MinNorm",
        title="The shortest interpolator, and what label noise does to it",
        paper=(
            "With Φ = Σ √λⱼ uⱼvⱼᵀ the interpolator of least norm is w* = Σ (uⱼᵀy/√λⱼ) vⱼ (eq. B.2.30); label noise of "
            "variance σ² gives it the covariance Σ (σ²/λⱼ) vⱼvⱼᵀ: most along the directions of small eigenvalues."
        ),
        setup=_FEATURES
        + (
            "{min-norm[samples]} samples, σ = {min-norm[sigma]}, {min-norm[repeats]} times {min-norm[draws]} draws of "
            "the labels, {min-norm[detours]} other interpolators."
        ),
        parts=("min-norm",),
        panels=(
            Panel(draw.noise_variances, "Variance along singular directions falls as one over the eigenvalue."),
            Panel(draw.noise_covariance, "Error of the covariance falls as one over the root of the draws."),
        ),
        caption=(
            "Left: variance of the regressions on noisy labels along each vⱼ (dots) and the formula (line). Right: "
            "relative error of the whole covariance against the number of draws."
        ),
    ),
)
