"""J v and Jᵀu by automatic differentiation, a few samples at a time: J is never formed."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.jacobians.call import run, undisturbed
from torchtangent.jacobians.capture import Capture
from torchtangent.jacobians.inputs import Inputs, batch_size, pick


def push(capture: Capture, x: Inputs, v: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """f(x) and J v, both (N, *out): forward mode, or twice reverse where a layer has no forward mode."""
    n = batch_size(x)
    if not capture.twice_reverse:
        values = {name: p.detach() for name, p in capture.params.items()}

        def f(params: dict[str, Tensor]) -> Tensor:
            return pick(run(capture.model, x, params), capture.output, n)

        try:
            with undisturbed(), torch.no_grad():
                return torch.func.jvp(f, (values,), (v,))
        except (NotImplementedError, RuntimeError) as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            capture.twice_reverse = True
            capture.say_once(
                "forward-mode",
                "J @ v is computed by two reverse passes (exact, but slower): torch has no forward mode for this "
                f"model ({str(error).strip().splitlines()[0][:200]}).",
            )
    with undisturbed():
        f0 = pick(run(capture.model, x), capture.output, n)
        u = torch.zeros_like(f0, requires_grad=True)
        params = list(capture.params.values())
        grads = torch.autograd.grad(f0, params, u, create_graph=True, allow_unused=True)
        pairs = [(g, t) for g, t in zip(grads, v.values(), strict=True) if g is not None]
        found = torch.autograd.grad([g for g, _ in pairs], u, [t for _, t in pairs], allow_unused=True)[0]
    return f0.detach(), torch.zeros_like(f0).detach() if found is None else found.detach()


def pull(capture: Capture, x: Inputs, u: Float[Tensor, "N *out"]) -> dict[str, Tensor]:
    """Jᵀu, parameter by parameter."""
    with undisturbed():
        f = pick(run(capture.model, x), capture.output, batch_size(x))
        params = list(capture.params.values())
        grads = torch.autograd.grad(f, params, u.view_as(f), allow_unused=True) if f.requires_grad else [None] * len(params)
    return {
        name: torch.zeros_like(p, requires_grad=False) if g is None else g.to_dense() if g.is_sparse else g
        for (name, p), g in zip(capture.params.items(), grads, strict=True)
    }
