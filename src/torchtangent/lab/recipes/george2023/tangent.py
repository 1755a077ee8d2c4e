"""Appendix B: directions that move the function, and the kernel of a random network on a line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import torchtangent as tt
from torchtangent.lab.models import init_kaiming, mlp, seeded, vgg11
from torchtangent.lab.runner import Context
from torchtangent.lab.train import accuracy, epochs


def perturbations(context: Context) -> Mapping[str, Any]:
    """TG-FigB.1: how far the outputs move along right singular vectors of J and along random directions."""
    config = context.config
    data = context.data(config["data"])

    def prepared(x: Tensor) -> Tensor:
        missing = 32 - x.shape[-1]
        return F.pad(x, [missing // 2] * 4).to(context.device)

    x_train, x_test = prepared(data.x_train[: config["train_samples"]]), prepared(data.x_test)
    y_train = data.y_train[: config["train_samples"]].to(context.device)
    generator = torch.Generator().manual_seed(config["seed"])
    model = vgg11(channels=x_train.shape[1], base=config["base"])
    init_kaiming(model, generator)
    model.to(context.device)
    training = epochs(
        model, x_train, y_train, count=config["epochs"], lr=config["lr"], batch=config["batch"], seed=config["seed"]
    )
    losses = [loss for _, loss in context.track(training, total=config["epochs"])]
    x = x_test[: config["samples"]]
    sigma, V = _top_right_singular(tt.jacobian(model, x), config["directions"])
    random = torch.randn(V.shape, generator=generator).to(V)
    random /= random.norm(dim=0)
    step = config["relative_step"] * nn.utils.parameters_to_vector(model.parameters()).detach().norm()
    moved = [_displacements(model, x, step * directions) for directions in (V, random)]
    return {
        "singular_values": sigma.cpu().numpy(),
        "step": float(step),
        "moved_singular": moved[0],
        "moved_random": moved[1],
        "losses": np.array(losses),
        "test_accuracy": accuracy(model, x_test, data.y_test.to(context.device)),
        "parameters": V.shape[0],
        "samples": len(x),
    }


def _top_right_singular(J: tt.Jacobian, k: int) -> tuple[Tensor, Tensor]:
    """The k largest singular values of J (as an N·C × P matrix) and the right singular vectors (P, k).

    From the eigenvectors u of the kernel J Jᵀ, summed layer by layer so that J is never whole: v = Jᵀu / σ.
    """
    outputs = J.shape[:-1]
    kernel: Tensor | None = None
    for layer in J.layers.values():
        rows = layer.dense().flatten(2).flatten(0, 1)
        kernel = rows @ rows.T if kernel is None else kernel + rows @ rows.T
    assert kernel is not None
    values, U = torch.linalg.eigh(kernel.double())
    values, U = values.flip(0)[:k], U.flip(1)[:, :k]
    columns = [J.T @ u.to(kernel.dtype).view(outputs) for u in U.T]
    V = torch.stack(columns, dim=1)
    return values.sqrt(), V / V.norm(dim=0)


@torch.no_grad()
def _displacements(model: nn.Module, x: Tensor, directions: Tensor) -> np.ndarray:
    """‖f(w + δ) − f(w)‖, the root mean square over samples of the outputs' change, for every column δ."""
    names = [name for name, _ in model.named_parameters()]
    shapes = [p.shape for p in model.parameters()]
    flat = nn.utils.parameters_to_vector(model.parameters())
    f = model(x)
    moved = []
    for delta in directions.T:
        pieces = (flat + delta).split([shape.numel() for shape in shapes])
        state = {name: piece.view(shape) for name, piece, shape in zip(names, pieces, shapes, strict=True)}
        change = torch.func.functional_call(model, state, (x,)) - f
        moved.append(float(change.square().sum(1).mean().sqrt()))
    return np.array(moved)


def line_kernels(context: Context) -> Mapping[str, Any]:
    """TG-FigB.2: the tangent kernel of random networks on equally spaced points of [0, 1]."""
    config = context.config
    x = torch.linspace(0, 1, config["points"], dtype=torch.float64).unsqueeze(1).to(context.device)
    widths = [1] + [config["width"]] * (config["layers"] - 1) + [1]

    def default(seed: int) -> nn.Module:
        return seeded(lambda: mlp(widths), seed)

    def kaiming(seed: int, biases: bool = True) -> nn.Module:
        return init_kaiming(mlp(widths), torch.Generator().manual_seed(seed), biases=biases)

    inits: dict[str, Callable[[int], nn.Module]] = {
        "kaiming": kaiming,
        "default": default,
        "kaiming, zero biases": partial(kaiming, biases=False),
    }
    jobs = [(name, seed) for name in inits for seed in config["seeds"]]
    kernels = []
    for name, seed in context.track(jobs):
        J = tt.jacobian(inits[name](seed).double().to(context.device), x).dense().flatten(1)
        kernels.append((J @ J.T).cpu().numpy())
    K = np.array(kernels).reshape(len(inits), len(config["seeds"]), *kernels[0].shape)
    centre = np.eye(len(x)) - 1 / len(x)
    values, vectors = np.linalg.eigh(K)
    return {
        "inits": np.array(list(inits)),
        "x": x.squeeze(1).cpu().numpy(),
        "eigenvalues": values[..., ::-1],
        "eigenvectors": vectors[..., ::-1],
        "eigenvalues_centred": np.linalg.eigvalsh(centre @ K @ centre)[..., ::-1],
    }
