"""Chapter 3: Fisher matrices and their approximations on the 1,001-parameter network, where F itself fits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import torchtangent as tt
from torchtangent.lab.models import convnet_1001, seeded
from torchtangent.lab.runner import Context
from torchtangent.lab.train import accuracy, epochs
from torchtangent.operators import BlockOperator, KroneckerOperator, Operator

REPRESENTATIONS = {
    "Diag": tt.Diagonal,
    "QuasiDiag": tt.QuasiDiagonal,
    "KFAC": tt.KFAC,
    "EKFAC": tt.EKFAC,
    "BlockDiag": tt.BlockDiagonal,
}
NAMES = (*REPRESENTATIONS, "KFAC-π")


def checkpoints(context: Context) -> Mapping[str, Any]:
    """Train the network and keep its parameters at some epochs."""
    config = context.config
    data = context.data(config["data"])
    x, y = (tensor.to(context.device) for tensor in (data.x_train, data.y_train))
    model = seeded(convnet_1001, config["seed"]).to(context.device)
    kept = {0: _flat(model)}
    losses = []
    training = epochs(
        model, x, y, count=max(config["epochs"]), lr=config["lr"], batch=config["batch"], seed=config["seed"]
    )
    for epoch, loss in context.track(training, total=max(config["epochs"])):
        losses.append(loss)
        if epoch in config["epochs"]:
            kept[epoch] = _flat(model)
    return {
        "epochs": np.array(list(kept)),
        "parameters": np.stack(list(kept.values())),
        "losses": np.array(losses),
        "test_accuracy": accuracy(model, data.x_test.to(context.device), data.y_test.to(context.device)),
    }


def _flat(model: nn.Module) -> np.ndarray:
    return nn.utils.parameters_to_vector(model.parameters()).detach().cpu().numpy()


def _restore(context: Context, checkpoint: int) -> nn.Module:
    """The network at a checkpoint, in float64."""
    flat = torch.from_numpy(context.arrays("checkpoints")["parameters"][checkpoint])
    model = convnet_1001()
    nn.utils.vector_to_parameters(flat, model.parameters())
    return model.double().to(context.device)


def _batch(context: Context) -> tuple[Tensor, Tensor]:
    """The samples the Fisher matrices are taken over."""
    data = context.data(context.config["data"])
    n = context.config["samples"]
    return data.x_train[:n].double().to(context.device), data.y_train[:n].to(context.device)


def _sphere(context: Context, size: int) -> Tensor:
    """Columns drawn uniformly from the unit sphere."""
    generator = torch.Generator().manual_seed(context.config["seed"])
    v = torch.randn(size, context.config["draws"], generator=generator, dtype=torch.float64)
    return (v / v.norm(dim=0)).to(context.device)


def quadratic_forms(context: Context) -> Mapping[str, Any]:
    """TG-Fig3.1: vᵀFv by the same call on different representations, for v = θ and random v."""
    model, batch = _restore(context, -1), _batch(context)
    theta = nn.utils.parameters_to_vector(model.parameters()).detach()
    v = torch.column_stack([theta, theta.norm() * _sphere(context, len(theta))])
    kinds = {"Dense": tt.Dense, "Implicit": tt.Implicit, **REPRESENTATIONS}
    values = [
        tt.fisher(model, batch, kind, likelihood="categorical", kind="exact").quad(v)
        for kind in context.track(list(kinds.values()))
    ]
    return {"representations": np.array(list(kinds)), "values": torch.stack(values).cpu().numpy()}


def definitions(context: Context) -> Mapping[str, Any]:
    """TG-FIM-def: the Fisher matrix in closed form, from samples, and the spectrum it shares with a kernel."""
    config = context.config
    model, batch = _restore(context, -1), _batch(context)
    exact = tt.fisher(model, batch, tt.Dense, likelihood="categorical", kind="exact").dense()
    J = tt.jacobian(model, batch[0]).dense()
    with torch.no_grad():
        p = model(batch[0]).softmax(1)
    # Rows √p_c ∇log p_c / √N, one per sample and class: the Gram matrix of their columns is F, of their rows a kernel.
    rows = p.sqrt().unsqueeze(2) * (J - torch.einsum("nc,ncp->np", p, J).unsqueeze(1))
    rows = rows.flatten(0, 1) / len(p) ** 0.5
    kernel = torch.linalg.eigvalsh(rows @ rows.T).flip(0)
    fisher = torch.linalg.eigvalsh(exact).flip(0)
    shared = min(len(kernel), len(fisher))
    errors = np.zeros((len(config["mc_samples"]), config["mc_repeats"]))
    for i, count in enumerate(context.track(config["mc_samples"])):
        for repeat in range(config["mc_repeats"]):
            F = tt.fisher(
                model,
                batch,
                tt.Dense,
                likelihood="categorical",
                kind="sampled",
                samples=count,
                seed=config["seed"] + 1000 * repeat + i,
            )
            errors[i, repeat] = float((F.dense() - exact).norm() / exact.norm())
    return {
        "closed_form_error": float((rows.T @ rows - exact).norm() / exact.norm()),
        "eigenvalues_fisher": fisher[:shared].cpu().numpy(),
        "eigenvalues_kernel": kernel[:shared].cpu().numpy(),
        "mc_samples": np.array(config["mc_samples"]),
        "mc_errors": errors,
    }


def quality(context: Context) -> Mapping[str, Any]:
    """TG-Fig3.3 to 3.6: solves, products, quadratic forms and traces of every approximation beside the true F.

    Twice: with the exact expectation over labels for F and its approximations alike, and with
    approximations from a few sampled labels (each from its own), as the paper has them.
    """
    config = context.config
    batch = _batch(context)
    steps = len(context.arrays("checkpoints")["epochs"])
    low, high = config["log10_dampings"]
    dampings = np.logspace(low, high, config["damping_count"])
    results: dict[str, list[Any]] = {}
    for step in context.track(range(steps)):
        model = _restore(context, step)
        F = tt.fisher(model, batch, tt.Dense, likelihood="categorical", kind="exact")
        v = _sphere(context, F.size)
        for sampled in (False, True):
            for name, value in _compare(F, _approximations(context, model, batch, sampled), v, dampings).items():
                results.setdefault(name, []).append(value)
    stacked = {name: np.array(value) for name, value in results.items()}
    shaped = {name: value.reshape(steps, 2, *value.shape[1:]) for name, value in stacked.items()}
    return {"names": np.array(NAMES), "dampings": dampings, "kinds": np.array(["exact", "sampled"]), **shaped}


def _approximations(
    context: Context, model: nn.Module, batch: tuple[Tensor, Tensor], sampled: bool
) -> dict[str, Operator]:
    config = context.config
    found = {}
    for i, (name, representation) in enumerate(REPRESENTATIONS.items()):
        options: dict[str, Any] = {"kind": "exact"}
        if sampled:
            options = {"kind": "sampled", "samples": config["mc_samples"], "seed": config["seed"] + i}
        found[name] = tt.fisher(model, batch, representation, likelihood="categorical", **options)
    return found


def _compare(
    F: Operator, approximations: dict[str, Operator], v: Tensor, dampings: np.ndarray
) -> dict[str, np.ndarray]:
    """Every measure for every approximation: (names,), (names, draws) or (names, dampings, draws)."""
    Fv, quad, trace = F @ v, F.quad(v), F.trace()
    product_residual, product_cosine, quad_error, trace_error = [], [], [], []
    solve_residual, solve_cosine = [], []
    for name in NAMES:
        M = approximations[name.removesuffix("-π")]
        Mv = M @ v
        product_residual.append((Mv - Fv).norm(dim=0) / Fv.norm(dim=0))
        product_cosine.append(torch.cosine_similarity(Mv, Fv, dim=0))
        quad_error.append((M.quad(v) - quad).abs() / quad)
        trace_error.append((M.trace() - trace).abs() / trace)
        solved = []
        for damping in dampings.tolist():
            right = Fv + damping * v
            factored = name.endswith("-π")
            solved.append(factored_damping(M, damping).solve(right) if factored else M.solve(right, damping=damping))
        solve_residual.append(torch.stack([(v - w).norm(dim=0) / w.norm(dim=0) for w in solved]))
        solve_cosine.append(torch.stack([torch.cosine_similarity(v, w, dim=0) for w in solved]))
    measures = {
        "product_residual": product_residual,
        "product_cosine": product_cosine,
        "quad_error": quad_error,
        "trace_error": trace_error,
        "solve_residual": solve_residual,
        "solve_cosine": solve_cosine,
    }
    return {name: torch.stack(value).cpu().numpy() for name, value in measures.items()}


def factored_damping(kfac: Operator, damping: float) -> Operator:
    """KFAC damped as in the thesis' code: (B + √λ/π I) ⊗ (A + π√λ I), π² = (tr A/dim A) / (tr B/dim B)."""
    if not isinstance(kfac, BlockOperator):
        raise TypeError(f"expected a block diagonal of Kronecker products, got {kfac!r}")
    blocks = []
    for place, block in kfac.blocks:
        if not isinstance(block, KroneckerOperator):
            raise TypeError(f"expected a Kronecker product, got {block!r}")
        B, A = block.left, block.right
        pi = float(((A.trace() / A.size) / (B.trace() / B.size)).sqrt())
        root = damping**0.5
        blocks.append((place, KroneckerOperator(B.damped(root / pi), A.damped(root * pi))))
    return BlockOperator(blocks, size=kfac.size)


def real_layers(context: Context) -> Mapping[str, Any]:
    """TG-ThmA.1–3 on the layers of the network: errors of KFAC and EKFAC block by block, at every checkpoint."""
    batch = _batch(context)
    rows: dict[str, list[list[float]]] = {"kfac": [], "ekfac": []}
    for step in context.track(range(len(context.arrays("checkpoints")["epochs"]))):
        model = _restore(context, step)
        true, kfac, ekfac = (
            tt.fisher(model, batch, kind, likelihood="categorical", kind="exact").dense()
            for kind in (tt.BlockDiagonal, tt.KFAC, tt.EKFAC)
        )
        for name, approximation in (("kfac", kfac), ("ekfac", ekfac)):
            rows[name].append(
                [float((approximation - true)[at, at].norm() / true[at, at].norm()) for at in _layers(model)]
            )
    return {name: np.array(value) for name, value in rows.items()}


def _layers(model: nn.Module) -> list[slice]:
    """Where each layer's parameters are in the flat vector."""
    sizes = [sum(p.numel() for p in module.parameters()) for module in model.children()]
    ends = np.cumsum(sizes)
    return [slice(int(end - size), int(end)) for size, end in zip(sizes, ends, strict=True) if size]
