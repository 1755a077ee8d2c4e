"""How far to go along preconditioned gradients, and going there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Groups = Mapping[str, Mapping[str, Any]]  # a parameter's group, by its name


@dataclass(frozen=True, eq=False)
class Slopes:
    """The quadratic model of a step −η u with u = (F + ε)⁻¹(∇ + ωθ), one number for each parameter.

    Attributes:
        raw: uᵀ∇.
        full: uᵀ(∇ + ωθ) = uᵀ(F + ε)u; the same mapping without weight decay.
        rates: η.
    """

    raw: Mapping[str, Tensor]
    full: Mapping[str, Tensor]
    rates: Mapping[str, float]

    @classmethod
    def of(
        cls, found: Mapping[str, Tensor], raw: Mapping[str, Tensor], full: Mapping[str, Tensor], groups: Groups
    ) -> Slopes:
        """Those of preconditioned gradients."""
        first = {name: _dot(u, raw[name]) for name, u in found.items()}
        second = first if full is raw else {name: _dot(u, full[name]) for name, u in found.items()}
        return cls(first, second, {name: float(groups[name]["lr"]) for name in found})

    def shrink(self, kl_clip: float) -> Tensor | None:
        """min(1, √(κ / Σ η² uᵀ(F + ε)u)); None if nothing has curvature."""
        if not self.full:
            return None
        size = torch.stack([slope.double() * self.rates[name] ** 2 for name, slope in self.full.items()]).sum()
        return (kl_clip / size.clamp(min=torch.finfo(torch.float64).tiny)).sqrt().clamp(max=1)

    def promise(self, shrink: Tensor | None) -> float:
        """The decrease of the loss that the model promises, Σ η uᵀ∇ − η²/2 uᵀ(F + ε)u."""
        if not self.raw:
            return 0.0
        by = 1.0 if shrink is None else float(shrink)
        first, second = (torch.stack(list(slopes.values())).tolist() for slopes in (self.raw, self.full))
        steps = [by * rate for rate in self.rates.values()]
        return sum(lr * a - lr**2 / 2 * b for lr, a, b in zip(steps, first, second, strict=True))


def move(
    params: Mapping[str, Tensor],
    found: Mapping[str, Tensor],
    groups: Groups,
    states: Mapping[str, dict[str, Tensor]],
    *,
    decoupled: bool,
) -> None:
    """m ← μ m + u, θ ← (1 − ηω) θ − η m, with ω = 0 where weight decay is already in u.

    All memory is taken before anything is written, and groups move as a whole.
    """
    by_group: dict[int, list[str]] = {}
    for name in found:
        by_group.setdefault(id(groups[name]), []).append(name)
        if groups[name]["momentum"] and "momentum" not in states[name]:
            states[name]["momentum"] = torch.zeros_like(params[name])
    for names in by_group.values():
        group = groups[names[0]]
        lr, momentum = float(group["lr"]), group["momentum"]
        here, u = [params[name] for name in names], [found[name] for name in names]
        if momentum:
            buffers = [states[name]["momentum"] for name in names]
            torch._foreach_mul_(buffers, momentum)
            torch._foreach_add_(buffers, u)
            u = buffers
        if decoupled and group["weight_decay"]:
            torch._foreach_mul_(here, 1 - lr * group["weight_decay"])
        torch._foreach_add_(here, u, alpha=-lr)


def square(g: Tensor) -> Tensor:
    """gᵀg."""
    return _dot(g, g)


def _dot(u: Tensor, g: Tensor) -> Tensor:
    return torch.dot(u.flatten(), g.flatten().to(u.dtype))
