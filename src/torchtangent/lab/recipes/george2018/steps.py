"""Algorithm 4.1 and appendix A.4: steps of the optimizers beside their formulas, computed with full matrices.

The formulas take every sample's gradient from autograd, one sample at a time, and form the eigenbasis U_B ⊗ U_A as one
matrix. All in float64.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

import torchtangent as tt
from torchtangent.lab.recipes.george2018.training import How, make
from torchtangent.lab.runner import Context

VARIANTS = (
    ("EKFAC", "single"),
    ("EKFAC-ra", "single"),
    ("KFAC", "factored"),
    ("EKFAC", "root"),
    ("EKFAC-ra", "root"),
    ("KFAC", "root"),
)
_DECAY = 0.75


def one_step(context: Context) -> Mapping[str, Any]:
    """Steps of every variant; two special cases in which EKFAC is something else."""
    config = context.config
    errors = [_errors(context, *variant) for variant in context.track(VARIANTS)]
    return {
        "variants": np.array([f"{name}, {rule}" for name, rule in VARIANTS]),
        "errors": np.array(errors),
        "one_sample": np.array([_one_sample(seed) for seed in range(config["repeats"])]),
        "same_eigenvalues": np.array([_same_eigenvalues(context, seed) for seed in range(config["repeats"])]),
    }


def _network(seed: int) -> nn.Sequential:
    """A convolution and two linear layers, in float64."""
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(12, 5), nn.Sigmoid(), nn.Linear(5, 4)
    )
    for p in model.parameters():
        nn.init.normal_(p, generator=generator)
    return model.double()


def _batch(count: int, seed: int) -> tuple[Float[Tensor, "N 1 4 4"], Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(count, 1, 4, 4, dtype=torch.float64, generator=generator),
        torch.randint(4, (count,), generator=generator),
    )


def _flat(model: nn.Module) -> Float[Tensor, " P"]:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def _errors(context: Context, name: str, rule: str) -> list[float]:
    """The relative difference of the parameters' steps, for every step."""
    config = context.config
    trial = How(name, config["lr"], config["damping"], 0, 0, basis_every=config["basis_every"], damping_rule=rule)
    model = _network(config["seed"])
    twin = copy.deepcopy(model)
    optimizer, formula = make(model, trial), Formula(twin, trial)
    errors = []
    for step in range(config["steps"]):
        x, y = _batch(config["samples"], config["seed"] + step)
        before = _flat(twin)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        formula.step(x, y)
        errors.append(float((_flat(model) - _flat(twin)).norm() / (_flat(twin) - before).norm()))
        model.load_state_dict(twin.state_dict())
    return errors


class Formula:
    """The update of a variant, as it is written down, for a network of convolutions and linear layers."""

    def __init__(self, model: nn.Sequential, how: How) -> None:
        self.model, self.how, self.steps = model, how, 0
        self.layers = [layer for layer in model if isinstance(layer, nn.Conv2d | nn.Linear)]
        self.kept: dict[nn.Module, tuple[Tensor, ...]] = {}

    def step(self, x: Tensor, y: Tensor) -> None:
        """Move the parameters."""
        moments = self._moments(x, y)
        for layer, (g, A, B) in zip(self.layers, moments, strict=True):
            if self.steps % self.how.basis_every == 0:
                self.kept[layer] = self._decompose(A, B)
            update = self.how.lr * self._update(layer, g).view(len(B), len(A))
            with torch.no_grad():
                layer.weight -= update[:, :-1].view_as(layer.weight)
                layer.bias -= update[:, -1]  # type: ignore[operator]
        self.steps += 1

    def _moments(self, x: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Of each layer: every sample's gradient of [W b], A = E[hhᵀ] over samples and locations, B = E[Σ δδᵀ]."""
        seen = [self._factors(*sample) for sample in zip(x.split(1), y.split(1), strict=True)]
        found = []
        for samples in zip(*seen, strict=True):
            g, h, delta = (list(tensors) for tensors in zip(*samples, strict=True))
            A, B = torch.cat(h, 1), torch.cat(delta, 1)
            found.append((torch.stack(g), A @ A.T / A.shape[1], B @ B.T / len(x)))
        return found

    def _factors(self, x: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Of each layer, for one sample: its gradient, its inputs h (with a 1) and δ, a column for each location."""
        inputs, wanted = [], []
        f = x
        for module in self.model:
            h, f = f, module(f)
            if module in self.layers:
                h = F.unfold(h, module.kernel_size)[0] if isinstance(module, nn.Conv2d) else h.T
                inputs.append(torch.cat([h, torch.ones_like(h[:1])]).detach())
                wanted += [module.weight, module.bias, f]
        grads = torch.autograd.grad(F.cross_entropy(f, y), wanted)
        return [
            (torch.cat([W.flatten(1), b.unsqueeze(1)], 1).flatten(), h, z[0].flatten(1) if z.dim() > 2 else z.T)
            for W, b, z, h in zip(grads[::3], grads[1::3], grads[2::3], inputs, strict=True)
        ]

    def _decompose(self, A: Tensor, B: Tensor) -> tuple[Tensor, ...]:
        """What is kept until the next time: KFAC's damped inverse, or the basis, what is added to s, and s."""
        epsilon = self.how.other
        one_A, one_B = torch.eye(len(A)).to(A), torch.eye(len(B)).to(B)
        pi = 1.0 if self.how.damping_rule == "root" else float((A.trace() / len(A) / (B.trace() / len(B))).sqrt())
        alpha, beta = epsilon**0.5 * pi, epsilon**0.5 / pi
        if self.how.optimizer == "KFAC":
            return (torch.linalg.inv(torch.kron(B + beta * one_B, A + alpha * one_A)),)
        S_A, U_A = torch.linalg.eigh(A)
        S_B, U_B = torch.linalg.eigh(B)
        added = epsilon * torch.ones(len(A) * len(B)).to(A)
        if self.how.damping_rule == "root":  # ε′ of appendix A.4
            added = added + epsilon**0.5 * (
                torch.kron(S_B, torch.ones_like(S_A)) + torch.kron(torch.ones_like(S_B), S_A)
            )
        return torch.kron(U_B, U_A), added, torch.kron(S_B, S_A)

    def _update(self, layer: nn.Module, g: Float[Tensor, "N P"]) -> Float[Tensor, " P"]:
        mean = g.mean(0)
        if self.how.optimizer == "KFAC":
            return self.kept[layer][0] @ mean
        U, added, s = self.kept[layer]
        if self.how.optimizer == "EKFAC":
            s = (g @ U).square().mean(0)
        else:
            s = _DECAY * s + (1 - _DECAY) * len(g) * (mean @ U).square()
        self.kept[layer] = (U, added, s)
        return U @ ((mean @ U) / (s + added))


def _one_sample(seed: int) -> float:
    """One linear layer, one sample: the relative difference of EKFAC's step and −η (∇∇ᵀ + ε)⁻¹ ∇."""
    generator = torch.Generator().manual_seed(seed)
    model = nn.Linear(5, 3).double()
    for p in model.parameters():
        nn.init.normal_(p, generator=generator)
    x = torch.randn(1, 5, dtype=torch.float64, generator=generator)
    optimizer = tt.optim.EKFAC(model, lr=0.1, damping=0.01, basis_every=1, kl_clip=None)
    before = _flat(model)
    F.cross_entropy(model(x), torch.tensor([0])).backward()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    G = torch.outer(gradient, gradient) + 0.01 * torch.eye(len(gradient)).double()
    expected = -0.1 * torch.linalg.solve(G, gradient)
    optimizer.step()
    return float((_flat(model) - before - expected).norm() / expected.norm())


def _same_eigenvalues(context: Context, seed: int) -> float:
    """EKFAC-ra that keeps KFAC's eigenvalues, and KFAC, both with √ε on both factors: the relative difference."""
    config = context.config
    x, y = _batch(config["samples"], seed)
    rule: dict[str, Any] = {"damping_rule": "root", "basis_every": 1, "kl_clip": None}
    moved = []
    for kind in ("EKFAC", "KFAC"):
        model = _network(seed)
        if kind == "EKFAC":
            keep = 1 - torch.finfo(torch.float64).eps
            optimizer: torch.optim.Optimizer = tt.optim.EKFAC(model, 0.1, 0.01, scalings="average", decay=keep, **rule)
        else:
            optimizer = tt.optim.KFAC(model, 0.1, 0.01, **rule)
        before = _flat(model)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        moved.append(_flat(model) - before)
    return float((moved[0] - moved[1]).norm() / moved[1].norm())
