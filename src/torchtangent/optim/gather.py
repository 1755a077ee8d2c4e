"""From what the hooks recorded to per-sample gradients that are known to be right, or an error."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from torchtangent.notice import listed, warn
from torchtangent.optim.layer import Passes
from torchtangent.optim.notices import Notices
from torchtangent.optim.plan import Plan
from torchtangent.optim.ranks import Ranks
from torchtangent.optim.recorder import Recorder
from torchtangent.optim.witness import rounding


def gather(plan: Plan, recorder: Recorder, grads: Mapping[str, Tensor], notices: Notices, ranks: Ranks) -> Passes:
    """Factored per-sample gradients by parameter for each backward pass, up to one common factor.

    A parameter whose uses no rule describes counts as not seen from now on, with a warning; one that has a gradient,
    and a layer that was never called, is an error. Where a gradient has more parts than those recorded, the block stays
    that of the recorded ones, with a warning.
    """
    _require_inputs(recorder)
    before, homes = set(plan.unseen), list(plan.homes)
    passes = [plan.jacobians(batch, recorder.welcome) for batch in recorder.batches]
    _verify(plan, recorder, passes)
    if ranks.size > 1:
        _agree(plan, passes, homes, ranks, like=next(iter(grads.values())))
    _require_seen(plan, recorder, grads, passes)
    new = notices.new(sorted(plan.unseen.keys() - before), "unseen")
    for why in dict.fromkeys(plan.unseen[name] for name in new):
        names = [name for name in new if plan.unseen[name] == why]
        verb = "gets" if len(names) == 1 else "get"
        warn(f"{listed(names)} {verb} the {plan.fallback} from now on: {why}.")
    if more := notices.new(sorted(plan.more), "more"):
        warn(
            f"The gradients of {listed(more)} ({len(plan.more)} of {len(plan.shapes)} parameters) have a part that no "
            "layer recorded: a penalty in the loss, a weight that is also used without calling its layer, or a hook "
            "that changes them. The whole gradient is preconditioned, with the curvature of the recorded part alone. "
            "Instead of a penalty λ‖θ‖² in the loss give weight_decay=2λ; leave what is used elsewhere to another "
            "optimizer with params=.",
        )
    twice = next((batch for batch in recorder.batches if len(batch.calls) > 1), None)
    if twice is not None and notices.new([""], "views"):
        warn(
            f"{len(twice.calls)} calls of the model with {twice.samples} samples each, before one backward, are taken "
            f"as views of the same {twice.samples} samples. If the samples are different ones, call backward after "
            "each call.",
        )
    sizes = _beside(recorder)
    if sizes and notices.new([""], "parts"):
        warn(
            f"Parts of the model, with {' and '.join(map(str, sizes))} rows, were called before one backward: these "
            "are taken as different samples. If they are not, call the model, whose input tells its samples.",
        )
    return [{name: jacobian for name, jacobian in seen.items() if name not in plan.unseen} for seen in passes]


def _beside(recorder: Recorder) -> list[int]:
    """The samples of batches that met in a backward pass, if parts of the model were called for one of them."""
    for batch in recorder.batches:
        met = [other for other in recorder.batches if other.passes.keys() & batch.passes.keys()]
        if batch.parts and len(met) > 1:
            return [other.samples for other in met]
    return []


def _require_inputs(recorder: Recorder) -> None:
    """Nothing went through a graph that an earlier step was done with."""
    lost = {path for batch in recorder.batches for each in batch.passes.values() for path in each.lost}
    if lost:
        raise RuntimeError(
            f"A backward pass went again through a call of {listed(sorted(lost))} that belonged to an earlier step, "
            "which has let go of its inputs. Call the model again before backward."
        )


def _agree(plan: Plan, passes: Passes, names: list[str], ranks: Ranks, like: Tensor) -> None:
    """What one rank has no rule for, none has; what one saw, all must have seen: else some would wait for ever."""
    demoted = [name in plan.unseen for name in names]
    seen = [any(name in each for each in passes) for name in names]
    demotions, sights = ranks.total(torch.tensor([demoted, seen], dtype=torch.int32, device=like.device)).tolist()
    for name, count in zip(names, demotions, strict=True):
        if count and name not in plan.unseen:
            plan.demote(name, "another rank has no rule for what it saw of it")
    some = [name for name, n in zip(names, sights, strict=True) if 0 < n < ranks.size and name not in plan.unseen]
    if some:
        raise RuntimeError(
            f"Samples went through {listed(some)} on some ranks only. All ranks must use the same layers in a step: "
            "leave those that may go unused to another optimizer with params=."
        )


def _require_seen(plan: Plan, recorder: Recorder, grads: Mapping[str, Tensor], passes: Passes) -> None:
    """Whatever has a gradient and is to be recorded was."""
    for name, home in plan.homes.items():
        wanted = any(path in recorder.wanted for path, _ in home)
        if wanted and name in grads and not any(name in seen for seen in passes) and bool(grads[name].any()):
            raise RuntimeError(
                f"{name} has a gradient, but the input of its layer '{home[0][0]}' was never seen: the model uses the "
                "weight without calling the layer, or only a penalty in the loss does. Call the layer, use "
                "weight_decay= for the penalty, or leave the parameter to another optimizer with params=."
            )


def _verify(plan: Plan, recorder: Recorder, passes: Passes) -> None:
    """Where parameters are watched: do their factors add up to their gradients?"""
    total = recorder.witness.total
    found = {name: [seen[name] for seen in passes if name in seen] for name in plan.homes if name in total}
    found = {name: jacobians for name, jacobians in found.items() if jacobians}
    if not found:
        return
    uses = [use for batch in recorder.batches for each in batch.uses.values() for use in each]
    allowed = rounding({use.d.dtype for use in uses} | {grad.dtype for grad in total.values()})
    denied = recorder.witness.denied(found, allowed)
    if any(batch.again for batch in recorder.batches):  # what was recorded is no part of the gradient
        for name in denied:
            plan.demote(name, "the loss is made of gradients, of which its layer saw the first derivatives only")
        denied = []
    plan.more = plan.more - found.keys() | set(denied)
