"""What the parts share: a network small enough for every matrix, samples, and the singular basis of the tangents."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

import torchtangent as tt
from torchtangent.lab.models import convnet_1001, seeded
from torchtangent.lab.runner import Context


def network(context: Context, outputs: int = 10) -> nn.Module:
    """The 1,001-parameter convolutional network (fewer with fewer outputs) at the configured seed, in float64."""
    return seeded(partial(convnet_1001, outputs), context.config["seed"]).double().to(context.device)


def samples(context: Context) -> tuple[Float[Tensor, "N 1 h w"], Int[Tensor, " N"]]:
    """The first training images, in float64, and their classes."""
    data = context.data(context.config["data"])
    count = context.config["samples"]
    return data.x_train[:count].double().to(context.device), data.y_train[:count].to(context.device)


def signs(y: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
    """1 for the classes 0–4 and −1 for 5–9."""
    return torch.where(y < 5, 1.0, -1.0).double()


@dataclass(frozen=True)
class Tangents:
    """Features Φ = Σ √λ_j u_j v_jᵀ of a network with one output, and its outputs f."""

    features: Float[Tensor, "N P"]
    outputs: Float[Tensor, " N"]
    u: Float[Tensor, "N R"]
    eigenvalues: Float[Tensor, " R"]
    v: Float[Tensor, "P R"]


def tangents(model: nn.Module, x: Tensor) -> Tangents:
    """The tangent features of a model at some inputs, decomposed."""
    Phi = tt.jacobian(model, x).dense().squeeze(1)
    U, s, Vt = torch.linalg.svd(Phi, full_matrices=False)
    with torch.no_grad():
        return Tangents(Phi, model(x).squeeze(1), U, s.square(), Vt.T)


def relative(found: Tensor, expected: Tensor) -> float:
    """‖found − expected‖ / ‖expected‖."""
    return float(torch.linalg.norm(found - expected) / torch.linalg.norm(expected))
