"""Chapters 3 and 7: gradients of single examples from one backward pass, and what tangents add up to along training."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import torchtangent as tt
from torchtangent.lab.models import convnet_1001, mlp, seeded
from torchtangent.lab.runner import Context


def per_example(context: Context) -> Mapping[str, Any]:
    """TG-Eq-perex: ∂f_c(xᵢ)/∂W = Σ_s d aᵀ for all examples at once, beside one backward pass for each of them."""
    config = context.config
    data = context.data(config["data"])
    x = data.x_train[: config["samples"]].double().to(context.device)
    y = data.y_train[: config["samples"]].to(context.device)
    model = seeded(convnet_1001, config["seed"]).double().to(context.device)
    parameters = dict(model.named_parameters())

    rows: list[list[Tensor]] = []
    for sample in context.track(x.split(1)):
        outputs = model(sample).squeeze(0)
        gradients = [torch.autograd.grad(f, list(parameters.values()), retain_graph=True) for f in outputs]
        rows.append([torch.stack(columns) for columns in zip(*gradients, strict=True)])
    alone = {name: torch.stack(columns) for name, columns in zip(parameters, zip(*rows, strict=True), strict=True)}

    layers = tt.jacobian(model, x).layers
    f = model(x)
    batch = torch.autograd.grad(F.cross_entropy(f, y, reduction="sum"), list(parameters.values()))
    slopes = (f.softmax(1) - F.one_hot(y, f.shape[1])).detach()  # of each example's loss in its outputs
    errors, sum_errors, norms = [], [], torch.zeros(len(x)).to(x)
    for (name, layer), gradient in zip(layers.items(), batch, strict=True):
        J = layer.dense()
        each = torch.einsum("nc,nc...->n...", slopes, J)
        errors.append(float((J - alone[name]).norm() / alone[name].norm()))
        sum_errors.append(float((each.sum(0) - gradient).norm() / gradient.norm()))
        norms += each.flatten(1).square().sum(1)
    return {
        "names": np.array(list(layers)),
        "errors": np.array(errors),
        "sum_errors": np.array(sum_errors),
        "norms": norms.sqrt().cpu().numpy(),
        "mean_norm": float(torch.cat([g.flatten() for g in batch]).norm() / len(x)),
    }


def increments(context: Context) -> Mapping[str, Any]:
    """TG-7: gradient descent for the same time in steps of different length, and the sum of ⟨δw_t, Φ_t⟩ on the way."""
    config = context.config
    data = context.data(config["data"])
    x, x_test = (inputs[: config["samples"]].double().to(context.device) for inputs in (data.x_train, data.x_test))
    y = data.y_train[: config["samples"]].to(context.device)
    widths = [x[0].numel(), *config["widths"], 10]
    summed, frozen = [], []
    for steps in context.track(config["steps"]):
        model = seeded(partial(mlp, widths), config["seed"]).double().to(context.device)
        total, constant, moved = _descend(model, x, y, x_test, config["time"] / steps, steps)
        summed.append(float((total - moved).norm() / moved.norm()))
        frozen.append(float((constant - moved).norm() / moved.norm()))
    return {
        "lr": config["time"] / np.array(config["steps"]),
        "summed_error": np.array(summed),
        "frozen_error": np.array(frozen),
    }


def _descend(
    model: nn.Module, x: Tensor, y: Tensor, x_test: Tensor, lr: float, steps: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Train in place; returns Σ_t J_t δw_t, J_0 (w_T − w_0) and f_T − f_0 at the test points."""
    start, w = copy.deepcopy(model), dict(model.named_parameters())

    def f(w: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(model, w, (x_test,))

    total: Any = 0.0
    for _ in range(steps):
        gradient = torch.autograd.grad(F.cross_entropy(model(x), y), list(w.values()))
        step = {name: -lr * g for name, g in zip(w, gradient, strict=True)}
        with torch.no_grad():
            total += torch.func.jvp(f, (w,), (step,))[1]
            torch._foreach_add_(list(w.values()), list(step.values()))
    with torch.no_grad():
        way = {name: w[name] - before for name, before in start.named_parameters()}
        moved = model(x_test) - start(x_test)
    return total, tt.jacobian(start, x_test) @ way, moved
