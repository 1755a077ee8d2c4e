"""Sampled curvature: an extra backward pass from labels that the model itself draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchtangent.curvature.cotangents import Cotangents


def checked(closure: Callable[[], Any] | None) -> tuple[Tensor, Tensor]:
    """What the closure gives, if it is (loss, outputs)."""
    if closure is None:
        raise ValueError(
            "curvature='sampled' draws labels from the model's outputs: call step(closure) with a closure that "
            "returns (loss, outputs) without calling backward."
        )
    found = closure()
    if not (isinstance(found, tuple) and len(found) == 2 and all(isinstance(t, Tensor) for t in found)):
        raise ValueError(
            f"curvature='sampled': the closure should return (loss, outputs), two tensors, got {found!r:.80}."
        )
    if not found[1].requires_grad:
        raise ValueError("The closure's outputs have no graph: return them as the model gave them, not detached.")
    return found


def sampled_pass(outputs: Tensor, params: Sequence[Tensor], likelihood: str, seed: int) -> Sequence[Tensor | None]:
    """Pull back ∇_f(−log p) at drawn labels through the graph, which stays; the gradients that it gives."""
    f = outputs if outputs.dim() > 1 else outputs.unsqueeze(1)
    u = Cotangents(likelihood, "sampled", seed=seed).start()(f.detach(), None)[0]
    try:
        return torch.autograd.grad(f, list(params), u, retain_graph=True, allow_unused=True)
    except RuntimeError as error:
        raise RuntimeError(
            "The outputs cannot be differentiated again. With curvature='sampled' the closure must not call backward: "
            "step() does."
        ) from error
