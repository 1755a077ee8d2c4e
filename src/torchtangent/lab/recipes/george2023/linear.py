"""Section 2.2 and appendix B.2: linear models on tangent features, in parameters and through their kernel."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

import torchtangent as tt
from torchtangent.lab.models import convnet_1001, seeded
from torchtangent.lab.runner import Context


def _network(context: Context) -> nn.Module:
    """The small network with one output, whose gradients are the features."""
    return seeded(partial(convnet_1001, outputs=1), context.config["seed"]).double().to(context.device)


def _samples(context: Context, train: bool = True) -> tuple[Float[Tensor, "N 1 h w"], Float[Tensor, " N"]]:
    """The first images, in float64, with labels 1 for the classes 0–4 and −1 for 5–9."""
    data = context.data(context.config["data"])
    count = context.config["samples" if train else "test_samples"]
    x, y = (data.x_train, data.y_train) if train else (data.x_test, data.y_test)
    labels = torch.where(y[:count] < 5, 1.0, -1.0).double()
    return x[:count].double().to(context.device), labels.to(context.device)


def _relative(found: Tensor, expected: Tensor) -> float:
    return float(torch.linalg.norm(found - expected) / torch.linalg.norm(expected))


def ridge(context: Context) -> Mapping[str, Any]:
    """TG-Ridge: regression with weights w, and with one coefficient for each training point."""
    config = context.config
    model = _network(context)
    (x, y), (x_test, y_test) = _samples(context), _samples(context, train=False)
    K, K_test = tt.ntk(model, x, reduce="trace"), tt.ntk(model, x_test, x, reduce="trace")
    Phi, Phi_test = (tt.jacobian(model, inputs).dense().squeeze(1) for inputs in (x, x_test))
    i, j = torch.triu_indices(len(x_test), len(x_test), 1)
    apart = torch.linalg.norm(Phi_test[i] - Phi_test[j], dim=1)
    low, high = config["log10_lambdas"]
    lambdas = np.logspace(low, high, config["lambda_count"])
    rows = []
    for lam in context.track(lambdas.tolist()):
        w = torch.linalg.solve(Phi.T @ Phi + lam * len(x) * torch.eye(Phi.shape[1]).to(Phi), Phi.T @ y)
        f = Phi_test @ w
        dual = tt.predict.ridge(K, y, K_test, ridge=lam * len(x))
        gradient = Phi.T @ (Phi @ w - y) / len(x) + lam * w
        rows.append(
            {
                "dual_error": _relative(dual, f),
                "gradient": float(gradient.norm() / (Phi.T @ y / len(x)).norm()),
                "error_primal": float((f - y_test).square().mean()),
                "error_dual": float((dual - y_test).square().mean()),
                "moved": (f[i] - f[j]).abs().cpu().numpy(),
                "allowed": (w.norm() * apart).cpu().numpy(),
            }
        )
    return {"lambdas": lambdas, **{name: np.array([row[name] for row in rows]) for name in rows[0]}}


def min_norm(context: Context) -> Mapping[str, Any]:
    """TG-MinNorm: the shortest interpolator, and how label noise moves it.

    Monte-Carlo covariances are taken in the basis v_j and divided by σ²/√(λ_i λ_j): they should be the identity.
    """
    config = context.config
    model = _network(context)
    x, y = _samples(context)
    K = tt.ntk(model, x, reduce="trace")
    Phi = tt.jacobian(model, x).dense().squeeze(1)
    U, s, Vt = torch.linalg.svd(Phi, full_matrices=False)
    w = Vt.T @ (U.T @ y / s)

    generator = torch.Generator().manual_seed(config["seed"])
    detours = torch.randn(Phi.shape[1], config["detours"], generator=generator, dtype=torch.float64).to(w)
    others = w[:, None] + detours - Vt.T @ (Vt @ detours)

    variance = config["sigma"] ** 2
    inverse = torch.linalg.pinv(Phi)
    formula = Vt.T @ torch.diag(variance / s**2) @ Vt

    draws = config["draws"]
    noise = torch.randn(len(y), max(draws) * config["repeats"], generator=generator, dtype=torch.float64).to(w)
    found = Phi.T @ tt.predict.coefficients(K, y[:, None] + config["sigma"] * noise)
    white = (s[:, None] / config["sigma"]) * (Vt @ (found - w[:, None]))
    errors = np.zeros((len(draws), config["repeats"]))
    for repeat, block in enumerate(white.split(max(draws), dim=1)):
        for k, count in enumerate(draws):
            covariance = block[:, :count] @ block[:, :count].T / count
            errors[k, repeat] = _relative(covariance, torch.eye(len(s)).to(covariance))
    return {
        "eigenvalues": (s**2).cpu().numpy(),
        "interpolation_error": _relative(Phi @ w, y),
        "dual_error": _relative(Phi.T @ tt.predict.coefficients(K, y), w),
        "others_error": _relative(Phi @ others, y[:, None].expand(-1, others.shape[1])),
        "others_norm": (others.norm(dim=0) / w.norm()).cpu().numpy(),
        "covariance_error": _relative(variance * inverse @ inverse.T, formula),
        "variances": (Vt @ (found - w[:, None])).square().mean(1).cpu().numpy(),
        "sigma": config["sigma"],
        "draws": np.array(draws),
        "errors": errors,
    }
