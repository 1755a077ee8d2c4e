"""Identities: the linearization itself, norms of its functions, alignments of targets, and of linear predictors."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import torchtangent as tt
from torchtangent import alignment, anisotropy, spectrum
from torchtangent.lab.recipes.ortiz2021.setting import gaussian, image_shape, images, network, unit_vectors
from torchtangent.lab.runner import Context
from torchtangent.linear.linearize import linearize


def linearization(context: Context) -> Mapping[str, Any]:
    """OJ-Eq1: the network and its linearization after steps of growing length, and the latter's gradient."""
    config = context.config
    x, _ = images(context)
    low, high = config["log10_steps"]
    steps = np.logspace(low, high, config["step_count"])
    errors = np.zeros((len(config["networks"]), config["directions"], len(steps)))
    at_start, gradient_moved, gradient_error = [], [], []
    for i, name in enumerate(context.track(config["networks"])):
        model = network(name, x.shape[1:], config).double().to(context.device)
        start = parameters_to_vector(model.parameters()).detach()
        moved, linear = copy.deepcopy(model), linearize(model)
        at_start.append(_rms(model, linear, x) / _rms(model, None, x))
        truth, before = _gradient(model, x), _gradient(linear, x)
        for j, direction in enumerate(unit_vectors(config["directions"], len(start), config["seed"]).to(x)):
            for k, step in enumerate(steps):
                for each in (moved, linear):
                    vector_to_parameters(start + step * start.norm() * direction, each.parameters())
                errors[i, j, k] = _rms(moved, linear, x)
        gradient_error.append(float((before - truth).norm() / truth.norm()))
        gradient_moved.append(float((_gradient(linear, x) - before).norm() / before.norm()))
    return {
        "networks": np.array(config["networks"]),
        "steps": steps,
        "errors": errors,
        "error_at_start": np.array(at_start),
        "gradient_error": np.array(gradient_error),
        "gradient_moved": np.array(gradient_moved),
    }


@torch.no_grad()
def _rms(model: nn.Module, other: nn.Module | None, x: Tensor) -> float:
    """The root mean square over samples of a network's outputs, or of the difference of two networks'."""
    f = model(x) if other is None else model(x) - other(x)
    return float(f.square().mean().sqrt())


def _gradient(model: nn.Module, x: Tensor) -> Float[Tensor, " P"]:
    """∇_θ Σ_n cos(n) f(x_n): all samples with different weights."""
    weights = torch.arange(len(x), dtype=x.dtype, device=x.device).cos()
    gradient = torch.autograd.grad(weights @ model(x).squeeze(1), list(model.parameters()))
    return parameters_to_vector(gradient)


def _targets(pairs: spectrum.Eigenpairs, x: Tensor, y: Tensor, config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Functions on the samples, (N, K) each and of unit mean square: eigenfunctions, the labels, linear, random."""
    u = unit_vectors(config["draws"], x[0].numel(), config["seed"]).to(x)
    groups = {
        "eigenfunctions": pairs.vectors[:, config["eigenfunctions"]],
        "labels": y.unsqueeze(1),
        "linear predictors": x.flatten(1) @ u.T,
        "random": unit_vectors(config["draws"], len(x), config["seed"] + 1).to(x).T,
    }
    return {name: len(x) ** 0.5 * g / g.norm(dim=0) for name, g in groups.items()}


def _kernel(context: Context) -> tuple[nn.Module, Tensor, Tensor, spectrum.Eigenpairs, dict[str, Tensor]]:
    """LeNet, the images, its kernel on them, all eigenpairs of it, and the targets."""
    x, y = images(context)
    model = network("LeNet", x.shape[1:], context.config).double().to(context.device)
    K = tt.ntk(model, x, reduce="trace")
    pairs = spectrum.top(K, k=len(K))
    return model, x, K, pairs, _targets(pairs, x, y, context.config)


def _groups(targets: Mapping[str, Tensor]) -> np.ndarray:
    """To which group each column belongs when all targets stand side by side."""
    return np.repeat(list(targets), [g.shape[1] for g in targets.values()])


def norms(context: Context) -> Mapping[str, Any]:
    """OJ-Eq3: norms of functions by Mercer's sum, and how far the parameters that give these functions are."""
    config = context.config
    model, x, K, (values, vectors), targets = _kernel(context)
    n, g = len(x), torch.cat(list(targets.values()), 1)
    coefficients = n**0.5 * vectors.T @ g / n  # E[φ_j g], with φ_j of unit mean square and eigenvalue λ_j / n
    mercer = (coefficients.square() / (values / n).unsqueeze(1)).sum(0)
    c = torch.linalg.solve(K, g)
    J, linear = tt.jacobian(model, x), linearize(model, bias=False)
    start = parameters_to_vector(model.parameters()).detach()
    # Without its part in the span of the gradients, a step leaves the function alone.
    [z] = unit_vectors(1, len(start), config["seed"]).to(x)
    z -= J.T @ torch.linalg.solve(K, J @ z)
    z /= z.norm()
    distances, misses = [], []
    for target, column in context.track(list(zip(g.T, c.T, strict=True))):
        nearest = J.T @ column.unsqueeze(1)
        for length in [0, *config["detours"]]:
            step = nearest + length * nearest.norm() * z
            vector_to_parameters(start + step, linear.parameters())
            with torch.no_grad():
                misses.append(float((linear(x).squeeze(1) - target).norm() / target.norm()))
            distances.append(float(step.norm()))
    return {
        "groups": _groups(targets),
        "mercer": mercer.sqrt().cpu().numpy(),
        "solved": (g * c).sum(0).sqrt().cpu().numpy(),
        "distances": np.reshape(distances, (g.shape[1], -1)),
        "misses": np.reshape(misses, (g.shape[1], -1)),
    }


def alignments(context: Context) -> Mapping[str, Any]:
    """OJ-Lem1: α of targets three ways, and the bound on their norm that it gives."""
    model, x, K, pairs, targets = _kernel(context)
    g = torch.cat(list(targets.values()), 1)
    found = {
        "kernel": alignment.of_kernel(K, g),
        "spectrum": alignment.of_spectrum(pairs, g),
        "backward": alignment.target(model, x, g),
        "norm_squared": alignment.norm(K, g),
        "bound": alignment.bound(K, g),
        "eigenvalues": pairs.values[context.config["eigenfunctions"]] / len(x),
    }
    return {"groups": _groups(targets), **{name: value.cpu().numpy() for name, value in found.items()}}


def stein(context: Context) -> Mapping[str, Any]:
    """OJ-Thm1: α of linear predictors as Lemma 1 has it, from more and more inputs, beside ‖E[∂²f/∂θ∂x] u‖².

    Inputs come in pairs x, −x, which cancels what is even in ∇f. An average over N inputs makes ‖·‖² too large
    by a term in 1/N; that of two halves and of both together, 2 α(N) − (α₁ + α₂)/2, is without it.
    """
    config, shape = context.config, image_shape(context.config)
    model = network("LeNet", shape, config).to(context.device)

    def draw(count: int, stream: int) -> Tensor:
        return gaussian(shape, count, config["seed"] + stream, next(model.parameters()))

    s, v = anisotropy.directions(model, shape, x=draw(config["averaged"], 1))
    u = v[config["indices"]].flatten(1)
    plain, extrapolated = [], []
    for size in context.track(config["sizes"]):
        halves = [torch.cat([half, -half]) for half in draw(size // 2, 2).split(size // 4)]
        both, *each = (alignment.target(model, z, z.flatten(1) @ u.T) for z in (torch.cat(halves), *halves))
        plain.append(both)
        extrapolated.append(2 * both - (each[0] + each[1]) / 2)
    mixed = anisotropy.MixedDerivative(model, shape, draw(config["hessians"], 3))
    return {
        "indices": np.array(config["indices"]),
        "sizes": np.array(config["sizes"]),
        "plain": torch.stack(plain).cpu().numpy(),
        "extrapolated": torch.stack(extrapolated).cpu().numpy(),
        "hessian": mixed.norms(u.T).square().cpu().numpy(),
        "singular": s[config["indices"]].square().cpu().numpy(),
    }
