"""From what the hooks recorded to per-sample gradients that are known to be right, or an error."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from torch import Tensor

from torchtangent.jacobians.inputs import TangentWarning
from torchtangent.optim.layer import Passes
from torchtangent.optim.plan import Plan
from torchtangent.optim.recorder import Recorder
from torchtangent.optim.witness import rounding


def gather(plan: Plan, recorder: Recorder, grads: Mapping[str, Tensor]) -> Passes:
    """Factored per-sample gradients by parameter for each backward pass, up to one common factor.

    A parameter whose factors do not describe its gradient keeps its plain gradient from now on, with a warning; one
    that has a gradient, and a layer that was never called, is an error.
    """
    before = set(plan.plain)
    passes = [plan.jacobians(batch) for batch in recorder.batches]
    _require_seen(plan, recorder, grads, passes)
    _verify(plan, recorder, passes)
    for name in plan.plain.keys() - before:
        warnings.warn(f"{name} keeps its plain gradient: {plan.plain[name]}.", TangentWarning, stacklevel=5)
    return [{name: jacobian for name, jacobian in seen.items() if name not in plan.plain} for seen in passes]


def _require_seen(plan: Plan, recorder: Recorder, grads: Mapping[str, Tensor], passes: Passes) -> None:
    """Whatever has a gradient and is to be recorded was."""
    for name, home in plan.homes.items():
        wanted = any(path in recorder.wanted for path, _ in home)
        if wanted and name in grads and not any(name in seen for seen in passes) and bool(grads[name].any()):
            raise RuntimeError(
                f"{name} has a gradient, but the input of its layer '{home[0][0]}' was never seen: the model uses the "
                "weight without calling the layer. Call the layer, or leave the parameter to another optimizer with "
                "params=."
            )


def _verify(plan: Plan, recorder: Recorder, passes: Passes) -> None:
    """The first time that a parameter is seen: do its factors add up to its gradient?"""
    witness = recorder.witness
    new = {name for seen in passes for name in seen if name in witness}
    if not new:
        return
    uses = [use for batch in recorder.batches for each in batch.uses.values() for use in each]
    allowed = rounding({use.d.dtype for use in uses} | {grad.dtype for grad in witness.total.values()})
    for name in sorted(new):
        jacobians = [seen[name] for seen in passes if name in seen]
        if name in plan.homes and witness.denies(name, jacobians, allowed):
            plan.demote(name, "what its layer recorded is not its whole gradient")
        witness.release(name)
