"""From what the hooks recorded to verified per-sample gradients, or an error."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from torchtangent.notice import listed, warn
from torchtangent.optim.layer import Passes
from torchtangent.optim.notices import Notices
from torchtangent.optim.plan import Plan
from torchtangent.optim.recorder import Recorder
from torchtangent.optim.replicas import Replicas
from torchtangent.optim.witness import tolerance


def gather(plan: Plan, recorder: Recorder, grads: Mapping[str, Tensor], notices: Notices, replicas: Replicas) -> Passes:
    """The factored per-sample gradients by parameter, for each batch, up to one common factor.

    A parameter with a use that no rule describes counts as unseen from now on, with a warning. One that has a gradient
    although its layer was never called is an error. If a gradient has a part that was not recorded, the block is that
    of the recorded part, with a warning.
    """
    _require_inputs(recorder)
    before, homes = set(plan.unseen), list(plan.homes)
    passes = [plan.jacobians(batch, recorder.welcome) for batch in recorder.batches]
    _verify(plan, recorder, passes)
    if replicas.size > 1:
        _agree(plan, passes, homes, replicas, like=next(iter(grads.values())))
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
    """The sizes of batches that met in one backward pass, if one of them comes from calling parts of the model."""
    for batch in recorder.batches:
        met = [other for other in recorder.batches if other.passes.keys() & batch.passes.keys()]
        if batch.parts and len(met) > 1:
            return [other.samples for other in met]
    return []


def _require_inputs(recorder: Recorder) -> None:
    """Refuse a backward pass through the graph of an earlier step."""
    lost = {path for batch in recorder.batches for each in batch.passes.values() for path in each.lost}
    if lost:
        raise RuntimeError(
            f"A backward pass went again through a call of {listed(sorted(lost))} that belonged to an earlier step, "
            "which has let go of its inputs. Call the model again before backward."
        )


def _agree(plan: Plan, passes: Passes, names: list[str], replicas: Replicas, like: Tensor) -> None:
    """Demote what any rank demoted, and refuse layers that only some ranks used: the others would wait forever."""
    demoted = [name in plan.unseen for name in names]
    seen = [any(name in each for each in passes) for name in names]
    demotions, sights = replicas.total(torch.tensor([demoted, seen], dtype=torch.int32, device=like.device)).tolist()
    for name, count in zip(names, demotions, strict=True):
        if count and name not in plan.unseen:
            plan.demote(name, "another rank has no rule for what it saw of it")
    some = [name for name, n in zip(names, sights, strict=True) if 0 < n < replicas.size and name not in plan.unseen]
    if some:
        raise RuntimeError(
            f"Samples went through {listed(some)} on some ranks only. All ranks must use the same layers in a step: "
            "leave those that may go unused to another optimizer with params=."
        )


def _require_seen(plan: Plan, recorder: Recorder, grads: Mapping[str, Tensor], passes: Passes) -> None:
    """Refuse a parameter that has a gradient and should have been recorded, but was not."""
    for name, home in plan.homes.items():
        wanted = any(path in recorder.wanted for path, _ in home)
        if wanted and name in grads and not any(name in seen for seen in passes) and bool(grads[name].any()):
            raise RuntimeError(
                f"{name} has a gradient, but the input of its layer '{home[0][0]}' was never seen: the model uses the "
                "weight without calling the layer, or only a penalty in the loss does. Call the layer, use "
                "weight_decay= for the penalty, or leave the parameter to another optimizer with params=."
            )


def _verify(plan: Plan, recorder: Recorder, passes: Passes) -> None:
    """Note in the plan which of the watched parameters have gradients that their factors do not add up to."""
    total = recorder.witness.total
    found = {name: [seen[name] for seen in passes if name in seen] for name in plan.homes if name in total}
    found = {name: jacobians for name, jacobians in found.items() if jacobians}
    if not found:
        return
    uses = [use for batch in recorder.batches for each in batch.uses.values() for use in each]
    allowed = tolerance({use.d.dtype for use in uses} | {grad.dtype for grad in total.values()})
    denied = recorder.witness.denied(found, allowed)
    if any(batch.again for batch in recorder.batches):  # then what was recorded is not even a part of the gradient
        for name in denied:
            plan.demote(name, "the loss is made of gradients, of which its layer saw the first derivatives only")
        denied = []
    plan.more = plan.more - found.keys() | set(denied)
