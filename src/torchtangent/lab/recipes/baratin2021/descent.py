"""Gradient descent in function space: one step in the eigenbasis of the kernel, and many of them in closed form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

import torchtangent as tt
from torchtangent.lab.recipes.baratin2021.setting import network, relative, samples, signs, tangents
from torchtangent.lab.runner import Context


def one_step(context: Context) -> Mapping[str, Any]:
    """TG-Lem6.2.1: how far a step moves the outputs along every eigenvector of the kernel; the metric's spectrum."""
    config = context.config
    model, (x, y) = network(context), samples(context)
    w = dict(model.named_parameters())
    f = model(x)
    loss = F.cross_entropy(f, y)
    (slope,) = torch.autograd.grad(loss, f, retain_graph=True)
    gradient = dict(zip(w, torch.autograd.grad(loss, list(w.values())), strict=True))

    K = tt.flatten(tt.ntk(model, x))
    values, U = torch.linalg.eigh(K)
    values, U = values.flip(0), U.flip(1)
    predicted = -values * (U.T @ slope.flatten())  # of δf, for a learning rate of 1
    J = tt.jacobian(model, x).dense().flatten(0, 1)
    linear = -(U.T @ (J @ torch.cat([g.flatten() for g in gradient.values()])))

    low, high = config["log10_lrs"]
    lrs = np.logspace(low, high, config["lr_count"])
    moved = []
    for lr in context.track(lrs.tolist()):
        with torch.no_grad():
            after = torch.func.functional_call(model, {name: w[name] - lr * g for name, g in gradient.items()}, (x,))
        moved.append(U.T @ (after - f).detach().flatten() / lr)

    metric = tt.fisher(model, (x, y), tt.Dense, likelihood="gaussian", kind="exact").dense()
    squares, V = torch.linalg.eigh(metric)
    shared = min(len(values), len(squares))
    singular = torch.linalg.svdvals(J)[:shared]
    squares, V = len(x) * squares.flip(0), V.flip(1)[:, : config["leading"]]
    functions = J @ V / squares[: config["leading"]].sqrt()
    return {
        "eigenvalues": values[:shared].cpu().numpy(),
        "metric_eigenvalues": squares[:shared].cpu().numpy(),
        "singular_error": relative(singular.square(), values[:shared]),
        "singular_printed_error": relative(singular, values[:shared]),
        "function_error": relative(K @ functions, squares[: config["leading"]] * functions),
        "slopes": (U.T @ slope.flatten())[:shared].cpu().numpy(),
        "predicted": predicted[:shared].cpu().numpy(),
        "basis_error": relative(linear, predicted),
        "lrs": lrs,
        "moved": torch.stack(moved)[:, :shared].cpu().numpy(),
        "step_errors": np.array([relative(m, predicted) for m in moved]),
    }


def regression(context: Context) -> Mapping[str, Any]:
    """TG-PropB.1.4/6: gradient descent on ½Σ(f − y)² with fixed tangent features, explicitly and in closed form."""
    config = context.config
    model, (x, classes) = network(context, outputs=1), samples(context)
    y, t = signs(classes).to(x), tangents(model, x)
    lr = 1 / float(t.eigenvalues[0])
    times = np.unique(np.logspace(0, np.log10(config["steps"]), config["time_count"]).astype(int))
    times = np.concatenate([[0], times])

    w = torch.zeros(t.features.shape[1]).to(t.features)
    explicit, reached = [], 0
    for time in context.track(times.tolist()):
        for _ in range(time - reached):
            w -= lr * (t.features.T @ (t.outputs + t.features @ w - y))
        explicit.append(t.outputs + t.features @ w)
        reached = time
    f = torch.stack(explicit)

    decay = (1 - lr * t.eigenvalues) ** torch.from_numpy(times).to(x)[:, None]
    closed = y + (decay * (t.u.T @ (t.outputs - y))) @ t.u.T
    K = tt.ntk(model, x, reduce="trace")
    # The library's loss is a mean and without the ½: its gradient is 2/n times that of ½Σ(f − y)².
    library = tt.predict.descent(K, y, times.tolist(), lr * len(y) / 2, f0=t.outputs)
    modes = ((f - y) @ t.u).abs().cpu().numpy()
    return {
        "times": times,
        "eigenvalues": t.eigenvalues.cpu().numpy(),
        "modes": modes,
        "closed_modes": ((closed - y) @ t.u).abs().cpu().numpy(),
        "closed_error": relative(closed, f),
        "library_error": relative(library, f),
        **_time_constants(times, modes, t.eigenvalues.cpu().numpy()),
    }


def _time_constants(times: np.ndarray, modes: np.ndarray, eigenvalues: np.ndarray) -> dict[str, np.ndarray]:
    """τ of every mode but the first: measured until it fell to 10⁻⁶ (or the end), by the formula, and as printed."""
    last = np.array([np.flatnonzero(mode > 1e-6 * mode[0])[-1] for mode in modes.T])
    end = modes[last, np.arange(modes.shape[1])]
    use = (last > 0) & (np.arange(modes.shape[1]) > 0)
    rate = -np.log1p(-eigenvalues[use] / eigenvalues[0])
    measured = times[last[use]] / np.log(modes[0, use] / end[use])
    return {"tau_eigenvalues": eigenvalues[use], "tau": measured, "tau_formula": 1 / rate, "tau_printed": rate}
