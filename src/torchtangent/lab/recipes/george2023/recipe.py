"""What is run: background (ch. 2), NNGeometry (ch. 3), EKFAC's theory (ch. 4, app. A), parts of app. B and ch. 7."""

from __future__ import annotations

from typing import Any

from torchtangent.lab.recipes.george2023 import (
    approximations,
    geometry,
    gradients,
    kronecker,
    linear,
    margins,
    tangent,
)
from torchtangent.lab.recipes.george2023.claims import CLAIMS
from torchtangent.lab.recipes.george2023.entries import ENTRIES
from torchtangent.lab.study import Part, Scale, Study, picker

PARTS = (
    Part("gaussians", geometry.gaussians),
    Part("second-order", geometry.second_order),
    Part("rademacher", geometry.rademacher),
    Part("ridge", linear.ridge),
    Part("min-norm", linear.min_norm),
    Part("per-example", gradients.per_example),
    Part("increments", gradients.increments),
    Part("checkpoints", approximations.checkpoints),
    Part("quadratic-forms", approximations.quadratic_forms, needs=("checkpoints",)),
    Part("definitions", approximations.definitions, needs=("checkpoints",)),
    Part("quality", approximations.quality, needs=("checkpoints",)),
    Part("independence", kronecker.independence),
    Part("random-layers", kronecker.random_layers),
    Part("real-layers", approximations.real_layers, needs=("checkpoints",)),
    Part("damping", kronecker.damping),
    Part("perturbations", tangent.perturbations, long=True),
    Part("line-kernels", tangent.line_kernels),
    Part("contraction", margins.contraction),
    Part("generalization", margins.generalization),
)


def configuration(scale: Scale) -> dict[str, dict[str, Any]]:
    """Everything that is fixed before the run, by part. `smoke` uses digits, `paper` MNIST and CIFAR-10."""
    pick = picker(scale)
    data = pick("digits", "mnist", "digits")
    samples = pick(128, 2000, 24)
    variance = 1 - 0.75**0.5
    return {
        "gaussians": {
            "gaussians": {"A": [0, 1], "B": [0, 2], "C": [-0.5, variance], "D": [0.5, variance]},
            "pairs": ["AB", "CD"],
            "grid": [-10, 10, 20001],
        },
        "second-order": {
            "data": data,
            "samples": samples,
            "seed": 0,
            "directions": pick(8, 32, 2),
            "log10_steps": [-4, 0],
            "step_count": 13,
        },
        "rademacher": {
            "seed": 0,
            "samples": 50,
            "noise": 0.1,
            "thresholds": 201,
            "signs": pick(200, 1000, 50),
            "draws": pick(1000, 10000, 50),
            "confidence": 0.05,
        },
        "ridge": {
            "data": data,
            "samples": pick(200, 1000, 20),
            "test_samples": pick(60, 60, 10),
            "seed": 0,
            "log10_lambdas": [-6, 1],
            "lambda_count": pick(8, 15, 3),
        },
        "min-norm": {
            "data": data,
            "samples": pick(60, 200, 12),
            "seed": 0,
            "sigma": 0.1,
            "draws": pick([30, 100, 300, 1000], [100, 300, 1000, 3000, 10000], [10, 100]),
            "repeats": pick(5, 10, 3),
            "detours": pick(20, 100, 3),
        },
        "per-example": {"data": data, "samples": pick(32, 128, 4), "seed": 0},
        "increments": {
            "data": data,
            "samples": pick(64, 500, 16),
            "seed": 0,
            "widths": pick([64], [256, 256], [16]),
            "time": pick(4.0, 10.0, 1.0),
            "steps": pick([32, 64, 128], [100, 200, 400, 800, 1600], [8, 16]),
        },
        "checkpoints": {
            "data": data,
            "seed": 0,
            "epochs": pick([1, 3, 10], [1, 3, 10], [1]),
            "lr": 0.05,
            "batch": pick(32, 128, 128),
        },
        "quadratic-forms": {"data": data, "samples": samples, "seed": 1, "draws": pick(20, 100, 3)},
        "definitions": {
            "data": data,
            "samples": pick(64, 500, 24),
            "seed": 2,
            "mc_samples": pick([1, 3, 10, 30], [1, 3, 10, 30, 100], [1, 8]),
            "mc_repeats": pick(3, 3, 2),
        },
        "quality": {
            "data": data,
            "samples": pick(128, 2000, 24),
            "seed": 3,
            "draws": pick(50, 100, 3),
            "mc_samples": 5,
            "log10_dampings": [-6, 2],
            "damping_count": pick(5, 17, 3),
        },
        "independence": {
            "seed": 4,
            "trials": pick(50, 200, 3),
            "inputs": 5,
            "outputs": 4,
            "inputs_drawn": 40,
            "outputs_drawn": 30,
            "rhos": [0, 1e-4, 1e-3, 1e-2, 0.03, 0.1, 0.3, 1.0],
        },
        "random-layers": {"seed": 5, "trials": pick(500, 5000, 10), "perturbations": 20},
        "real-layers": {"data": data, "samples": samples},
        "damping": {"seed": 6, "inputs": 16, "outputs": 12, "epsilons": [1e-4, 1e-2, 1.0]},
        "perturbations": {
            "data": pick("digits", "cifar10", "digits"),
            "seed": 0,
            "base": pick(6, 64, 2),
            "train_samples": pick(1000, 50000, 100),
            "epochs": pick(5, 10, 1),
            "lr": pick(0.02, 0.01, 0.02),
            "batch": pick(50, 125, 50),
            "samples": pick(20, 50, 8),
            "directions": pick(50, 50, 6),
            "relative_step": 0.001,
        },
        "line-kernels": {
            "points": 50,
            "width": pick(256, 256, 16),
            "layers": 6,
            "seeds": list(range(pick(5, 10, 2))),
        },
        "contraction": {
            "seed": 7,
            "trials": pick(20, 200, 3),
            "samples": pick(10, 12, 6),
            "classes": 3,
            "angles": 32,
            "radii": [0.5, 1.0, 2.0],
            "matrices": pick(100, 500, 10),
            "gammas": [0.1, 0.3, 1.0, 3.0],
        },
        "generalization": {
            "seed": 8,
            "draws": pick(500, 10000, 20),
            "samples": 100,
            "signs": pick(50, 200, 20),
            "angles": 32,
            "radii": [0.5, 1.0, 2.0],
            "mean": 1.0,
            "gammas": [0.3, 1.0],
            "confidence": 0.05,
        },
    }


STUDY = Study(
    key="george2023",
    title="Deep networks training and generalization: insights from linearization",
    reference=(
        "Thomas George, PhD thesis, Université de Montréal, 2023. Background (ch. 2), NNGeometry (ch. 3), the theory "
        "of EKFAC (ch. 4, app. A), parts of appendix B and of chapter 7. Chapters 5 and 6 are studies of their own. "
        "Entries have the numbers of the thesis: TG-Fig3.6 is its figure 3.6."
    ),
    configuration=configuration,
    parts=PARTS,
    entries=ENTRIES,
    claims=CLAIMS,
)
