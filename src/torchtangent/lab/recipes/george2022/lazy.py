"""The knob α between lazy and rich training: what a step does, and where training goes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

import torchtangent as tt
from torchtangent.lab.recipes.george2022.setting import MOMENTUM, network, released, samples, test_samples
from torchtangent.lab.runner import Context
from torchtangent.lab.train import epochs

CASES = {"ReLU": ("ReLU", True), "ReLU, without f₀": ("ReLU", False), "tanh": ("tanh", True)}
"""Trajectories that are compared with the linearized network's: activation, and whether f₀ is added."""


def first_step(context: Context) -> Mapping[str, Any]:
    """TG-5-lin: how far one step at the learning rate η/α² moves the parameters and the outputs."""
    config = context.config
    x, y = samples(context)
    distances, linear, moved = [], [], []
    for alpha in context.track(config["alphas"]):
        scaled = tt.lazy(network(context), alpha)
        w = dict(scaled.named_parameters())
        f = scaled(x)
        gradient = torch.autograd.grad(F.cross_entropy(f, y), list(w.values()))
        step = {name: -scaled.learning_rate(config["lr"]) * g for name, g in zip(w, gradient, strict=True)}
        distances.append(float(torch.cat([s.flatten() for s in step.values()]).norm()))
        linear.append(tt.jacobian(scaled, x) @ step)
        with torch.no_grad():
            torch._foreach_add_(list(w.values()), list(step.values()))
            moved.append(scaled(x) - f)
    expected = linear[0]
    return {
        "alphas": np.array(config["alphas"]),
        "parameter_steps": np.array(distances),
        "linear_steps": np.array([float(step.norm()) for step in linear]),
        "linear_change": np.array([float((step - expected).norm() / expected.norm()) for step in linear]),
        "function_steps": np.array([float(step.norm()) for step in moved]),
        "step_errors": np.array([float((step - expected).norm() / expected.norm()) for step in moved]),
    }


def trajectories(context: Context) -> Mapping[str, Any]:
    """TG-5-lin: training with momentum for several α beside the linearized network, on the same batches.

    Errors are distances of the outputs on test samples from the linearized network's, relative to how far these moved.
    """
    config = context.config
    errors = np.zeros((len(CASES), len(config["alphas"]), config["epochs"]))
    for case, (activation, bias) in enumerate(context.track(list(CASES.values()))):
        target = _outputs(context, tt.linearize(network(context, activation), bias=bias), config["lr"])
        way = (target[1:] - target[0]).flatten(1).norm(dim=1)
        for k, alpha in enumerate(config["alphas"]):
            scaled = tt.lazy(network(context, activation), alpha, bias=bias)
            found = _outputs(context, scaled, scaled.learning_rate(config["lr"]))
            errors[case, k] = ((found - target)[1:].flatten(1).norm(dim=1) / way).cpu().numpy()
    return {
        "alphas": np.array(config["alphas"]),
        "cases": np.array(list(CASES)),
        "errors": errors,
        "released_errors": np.array(
            [_released_error(context, alpha) for alpha in (min(config["alphas"]), max(config["alphas"]))]
        ),
    }


def _outputs(context: Context, model: nn.Module, lr: float) -> Float[Tensor, "T M C"]:
    """Outputs on test samples at the start and after every epoch of training."""
    config = context.config
    x_test, _ = test_samples(context)
    seen = [model(x_test).detach()]
    training = epochs(
        model, *samples(context), count=config["epochs"], lr=lr, batch=config["batch"], momentum=MOMENTUM, seed=0
    )
    seen += [model(x_test).detach() for _ in training]
    return torch.stack(seen)


def _released_error(context: Context, alpha: float) -> float:
    """How far training in the released code's way ends from training at η/α²."""
    config = context.config
    x_test, _ = test_samples(context)
    scaled = tt.lazy(network(context), alpha, bias=False)
    expected = _outputs(context, scaled, scaled.learning_rate(config["lr"]))[-1]
    model = network(context)
    start = model(x_test).detach()
    steps = config["epochs"] * -(-config["samples"] // config["batch"])
    for _ in islice(released(context, model, alpha), steps + 1):  # a step is made when the next loss is asked for
        pass
    found = alpha * (model(x_test).detach() - start)
    return float((found - expected).norm() / expected.norm())
