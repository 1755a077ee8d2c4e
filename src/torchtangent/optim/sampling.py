"""Sampled curvature: an extra backward pass from labels that the model itself draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from torchtangent.curvature.cotangents import Cotangents
from torchtangent.optim.recorder import Recorder


def evaluate_sampled(
    closure: Callable[[], Any] | None, recorder: Recorder, params: Mapping[str, Tensor], likelihood: str, seed: int
) -> Tensor:
    """The loss; its gradients are in place, and the recorder has the cotangents of drawn labels alone."""
    loss, outputs = _checked(closure)
    recorder.clear()
    _pull_back(outputs, params, likelihood, seed)
    with recorder.aside():  # what the loss sends back is not what the curvature is of
        loss.backward()
    return loss


def _checked(closure: Callable[[], Any] | None) -> tuple[Tensor, Tensor]:
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


def _pull_back(outputs: Tensor, params: Mapping[str, Tensor], likelihood: str, seed: int) -> None:
    """Send ∇_f(−log p) at drawn labels back to the parameters; the graph stays."""
    f = outputs if outputs.dim() > 1 else outputs.unsqueeze(1)
    if likelihood == "categorical" and f.dim() > 3:
        raise ValueError(
            f"The closure's outputs have shape {tuple(f.shape)}: classes come last here, (N, C) or (N, T, C). Return "
            "outputs.movedim(1, -1).flatten(1, -2) where torch has them second."
        )
    u = Cotangents(likelihood, "sampled", seed=seed).start()(f.detach(), None)[0]
    try:
        torch.autograd.grad(f, list(params.values()), u, retain_graph=True, allow_unused=True)
    except RuntimeError as error:
        raise RuntimeError(
            "The outputs cannot be differentiated again. With curvature='sampled' the closure must not call backward: "
            "step() does."
        ) from error
