"""How a step calls its closure: for gradients and the loss, and for the cotangents of labels drawn from the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torchtangent.curvature.cotangents import Cotangents
from torchtangent.optim.options import Settings
from torchtangent.optim.recorder import Recorder

Closure = Callable[[], Any]


def evaluate(
    closure: Closure | None, recorder: Recorder, params: Mapping[str, Tensor], settings: Settings, seed: int
) -> Any:
    """Leave the gradients in place and the cotangents recorded; returns the loss, if there is a closure.

    `seed` is that of the drawn labels.
    """
    with torch.enable_grad():
        if settings.curvature == "sampled":
            return _evaluate_sampled(closure, recorder, params, str(settings.likelihood), seed)
        return None if closure is None else _loss_in(closure())


def evaluate_again(closure: Closure, recorder: Recorder, model: nn.Module, settings: Settings) -> float:
    """The loss after a step. The gradients stay what they were."""
    kept = [(p, p.grad) for p in model.parameters()]  # also those of other optimizers
    for p, _ in kept:
        p.grad = None
    try:
        with torch.set_grad_enabled(settings.curvature == "empirical"):  # only then does the closure call backward
            found = closure()
    finally:
        recorder.clear()
        for p, grad in kept:
            p.grad = grad
    return as_number(_loss_in(found))


def as_number(loss: Any) -> float:
    """A loss as a number."""
    return float(loss.detach() if isinstance(loss, Tensor) else loss)


def _loss_in(found: Any) -> Any:
    """The loss in what a closure returned: that itself, or the first of several things."""
    return found[0] if isinstance(found, tuple) else found


def _evaluate_sampled(
    closure: Closure | None, recorder: Recorder, params: Mapping[str, Tensor], likelihood: str, seed: int
) -> Tensor:
    """The loss; its gradients are in place, while the recorder has seen only the cotangents of drawn labels."""
    loss, outputs = _checked(closure)
    recorder.clear()
    _pull_back(outputs, params, likelihood, seed)
    with recorder.aside():  # the curvature is that of the drawn labels
        loss.backward()
    return loss


def _checked(closure: Closure | None) -> tuple[Tensor, Tensor]:
    """What the closure returns, which must be (loss, outputs)."""
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
    """Backpropagate ∇_f(−log p) of drawn labels to the parameters, and keep the graph."""
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
