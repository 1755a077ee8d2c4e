"""How far to move along the preconditioned gradients, and the move itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchtangent.optim.replicas import Replicas

Groups = Mapping[str, Mapping[str, Any]]  # the group of each parameter, by name


@dataclass(frozen=True, eq=False)
class Slopes:
    """The quadratic model of a step −η u with u = (F + ε)⁻¹(∇ + ωθ): one number per group of parameters.

    Attributes:
        raw: uᵀ∇.
        full: uᵀ(∇ + ωθ) = uᵀ(F + ε)u; the same object as `raw` without weight decay.
        rates: η.
        momenta: μ.
    """

    raw: list[Tensor]
    full: list[Tensor]
    rates: list[float]
    momenta: list[float]

    @classmethod
    def of(
        cls, found: Mapping[str, Tensor], raw: Mapping[str, Tensor], full: Mapping[str, Tensor], groups: Groups
    ) -> Slopes:
        """The model of a step along the preconditioned gradients `found`."""
        together = _by_group(found, groups)
        first = [_dot(found, raw, names) for names in together]
        second = first if full is raw else [_dot(found, full, names) for names in together]
        rates, momenta = ([float(groups[names[0]][key]) for names in together] for key in ("lr", "momentum"))
        return cls(first, second, rates, momenta)

    def shrink(self, kl_clip: float) -> Tensor | None:
        """min(1, √(κ / Σ η² uᵀ(F + ε)u)), with η / (1 − μ) for η, as far as momentum goes; None without curvature."""
        if not self.full:
            return None
        rates = [rate / (1 - momentum) for rate, momentum in zip(self.rates, self.momenta, strict=True)]
        terms = [slope.double() * rate**2 for slope, rate in zip(self.full, rates, strict=True)]
        return (kl_clip / torch.stack(terms).sum().clamp(min=torch.finfo(torch.float64).tiny)).sqrt().clamp(max=1)

    def promise(self, shrink: Tensor | None) -> float:
        """The decrease of the loss that the model predicts, Σ η uᵀ∇ − η²/2 uᵀ(F + ε)u."""
        if not self.raw:
            return 0.0
        by = 1.0 if shrink is None else float(shrink)
        first, second = (torch.stack(slopes).tolist() for slopes in (self.raw, self.full))
        steps = [by * rate for rate in self.rates]
        return sum(lr * a - lr**2 / 2 * b for lr, a, b in zip(steps, first, second, strict=True))


@dataclass(frozen=True, eq=False)
class Promise:
    """What the last step promised.

    Attributes:
        slopes: Its quadratic model.
        shrink: The factor by which `kl_clip` shortened it.
        unit: The factor on the losses of the ranks whose sum is then the mean over all samples.
    """

    slopes: Slopes
    shrink: Tensor | None
    unit: float

    @property
    def clipped(self) -> bool:
        """Whether `kl_clip` shortened it."""
        return self.shrink is not None and bool(self.shrink < 1)

    def ratio(self, before: float, after: float, replicas: Replicas, like: Tensor) -> float:
        """ρ, the decrease of the loss divided by the decrease that was promised."""
        promised = self.slopes.promise(self.shrink)
        fallen = self.unit * replicas.sum(before - after, like)
        return fallen / promised if promised else 1.0  # nothing promised, nothing broken


def slow_momentum(
    groups: Sequence[Mapping[str, Any]], before: Sequence[float], states: Mapping[Tensor, Mapping[str, Tensor]]
) -> None:
    """Where the learning rate has risen, shrink the momentum: `kl_clip` bounded it at the rate of `before`."""
    for group, rate in zip(groups, before, strict=False):  # a group may be new
        momenta = [states[p]["momentum"] for p in group["params"] if "momentum" in states.get(p, {})]
        if momenta and group["lr"] > rate:
            torch._foreach_mul_(momenta, rate / float(group["lr"]))


def move(
    params: Mapping[str, Tensor],
    found: Mapping[str, Tensor],
    groups: Groups,
    states: Mapping[str, dict[str, Tensor]],
    *,
    decoupled: bool,
) -> None:
    """m ← μ m + u, θ ← (1 − ηω) θ − η m, with ω = 0 if weight decay is already part of u.

    u is overwritten, and kept as m.
    """
    for names in _by_group(found, groups):
        group = groups[names[0]]
        lr, momentum = float(group["lr"]), group["momentum"]
        here, u = [params[name] for name in names], [found[name] for name in names]
        if momentum:
            before = [(found[name], states[name]["momentum"]) for name in names if "momentum" in states[name]]
            if before:
                torch._foreach_add_(*zip(*before, strict=True), alpha=momentum)
            for name in names:
                states[name]["momentum"] = found[name]
        if decoupled and group["weight_decay"]:
            torch._foreach_mul_(here, 1 - lr * group["weight_decay"])
        torch._foreach_add_(here, u, alpha=-lr)


def _by_group(names: Iterable[str], groups: Groups) -> list[list[str]]:
    """The names, group by group."""
    found: dict[int, list[str]] = {}
    for name in names:
        found.setdefault(id(groups[name]), []).append(name)
    return list(found.values())


def _dot(found: Mapping[str, Tensor], grads: Mapping[str, Tensor], names: list[str]) -> Tensor:
    """Σ uᵀ∇ over some parameters: without a copy on a CPU, in three launches on a GPU."""
    u, g = [found[name] for name in names], [grads[name] for name in names]
    if u[0].device.type == "cpu":
        terms = [torch.dot(a.flatten(), b.flatten().to(a.dtype)) for a, b in zip(u, g, strict=True)]
        return torch.stack(terms).sum()
    return torch.cat([product.flatten() for product in torch._foreach_mul(u, g)]).sum()
