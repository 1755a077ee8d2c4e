"""How far to go along preconditioned gradients, and going there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def trust(
    found: Mapping[str, Tensor], raw: Mapping[str, Tensor], rates: Mapping[str, float], kl_clip: float | None
) -> tuple[Tensor | None, Tensor | None]:
    """By what factor the step is shortened, and the decrease of the loss that the quadratic model promises.

    The factor is min(1, √(κ / Σ η² uᵀ∇)), None without clipping; the promise Σ (η − η²/2) uᵀ∇ over all parameters that
    have curvature, None if there are none.
    """
    if not found:
        return None, None
    slopes = torch.stack([(u * raw[name]).sum().double() for name, u in found.items()])
    lr = torch.tensor([rates[name] for name in found], dtype=torch.float64, device=slopes.device)
    shrink = None
    if kl_clip is not None:
        size = (lr.square() * slopes).sum().clamp(min=torch.finfo(torch.float64).tiny)
        shrink = (kl_clip / size).sqrt().clamp(max=1)
        lr = lr * shrink
    return shrink, ((lr - lr.square() / 2) * slopes).sum()


def move(p: Tensor, u: Tensor, group: Mapping[str, Any], state: dict[str, Tensor], *, decoupled: bool) -> None:
    """m ← μ m + u, θ ← (1 − ηω) θ − η m, with ω = 0 where weight decay is already in u."""
    lr, momentum = float(group["lr"]), group["momentum"]
    if momentum:
        if "momentum" in state:
            u = state["momentum"].mul_(momentum).add_(u)
        else:
            u = state["momentum"] = u.clone()
    if decoupled and group["weight_decay"]:
        p.mul_(1 - lr * group["weight_decay"])
    p.add_(u, alpha=-lr)
