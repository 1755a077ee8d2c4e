"""From what the hooks recorded to verified per-sample gradients, or an error."""

from __future__ import annotations

from collections.abc import Container, Mapping, Set

import torch
from torch import Tensor

from torchtangent.notice import listed, warn
from torchtangent.optim.layer import PerSample
from torchtangent.optim.notices import Notices
from torchtangent.optim.partition import Partition
from torchtangent.optim.recorder import Recorder
from torchtangent.optim.replicas import Replicas
from torchtangent.optim.witness import tolerance


def gather(
    partition: Partition,
    recorder: Recorder,
    grads: Mapping[str, Tensor],
    known: Container[str],
    notices: Notices,
    replicas: Replicas,
) -> PerSample:
    """The factored per-sample gradients by parameter, for each batch, up to one common factor.

    A parameter with a use that no rule describes counts as unseen from now on, with a warning, and so does one that has
    a gradient although its layer was not called; an error if it was in an earlier step (these are `known`). If a
    gradient has a part that was not recorded, the block is that of the recorded part, with a warning.
    """
    _require_inputs(recorder)
    before, homes = set(partition.unseen), list(partition.homes)
    per_sample = [partition.jacobians(batch, recorder.welcome) for batch in recorder.batches]
    _verify(partition, recorder, per_sample)
    if replicas.size > 1:
        _agree(partition, per_sample, homes, replicas, like=next(iter(grads.values())))
    _demote_unseen(partition, recorder, grads, per_sample, known, replicas)
    _tell_of_parameters(partition, before, notices)
    _tell_of_samples(recorder, notices)
    return [{name: jacobian for name, jacobian in seen.items() if name not in partition.unseen} for seen in per_sample]


def _tell_of_parameters(partition: Partition, before: Set[str], notices: Notices) -> None:
    """Warn of parameters that were demoted (those not in `before`), or whose gradients were recorded in part."""
    new = notices.new(sorted(partition.unseen.keys() - before), "unseen")
    for why in dict.fromkeys(partition.unseen[name] for name in new):
        names = [name for name in new if partition.unseen[name] == why]
        verb = "gets" if len(names) == 1 else "get"
        warn(f"{listed(names)} {verb} the {partition.fallback} from now on: {why}.")
    if more := notices.new(sorted(partition.more), "more"):
        warn(
            f"The gradients of {listed(more)} ({len(partition.more)} of {len(partition.shapes)} parameters) have a "
            "part that no layer recorded: a penalty in the loss, a weight that is also used without calling its layer, "
            "or a hook that changes them. The whole gradient is preconditioned, with the curvature of the recorded "
            "part alone. Instead of a penalty λ‖θ‖² in the loss give weight_decay=2λ; leave what is used elsewhere to "
            "another optimizer with params=.",
        )


def _tell_of_samples(recorder: Recorder, notices: Notices) -> None:
    """Warn where calls of the model, or of its parts, had to be taken for views of the same samples, or for others."""
    twice = next((batch for batch in recorder.batches if len(batch.calls) > 1), None)
    if twice is not None and notices.first("views"):
        warn(
            f"{len(twice.calls)} calls of the model with {twice.samples} samples each, before one backward, are taken "
            f"as views of the same {twice.samples} samples. If the samples are different ones, call backward after "
            "each call.",
        )
    sizes = _beside(recorder)
    if sizes and notices.first("parts"):
        warn(
            f"Parts of the model, with {' and '.join(map(str, sizes))} rows, were called before one backward: these "
            "are taken as different samples. If they are not, call the model, whose input tells its samples.",
        )


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


def _agree(partition: Partition, per_sample: PerSample, names: list[str], replicas: Replicas, like: Tensor) -> None:
    """Demote what any rank demoted, and refuse layers that only some ranks used: the others would wait forever."""
    demoted = [name in partition.unseen for name in names]
    seen = [any(name in each for each in per_sample) for name in names]
    demotions, sights = replicas.total(torch.tensor([demoted, seen], dtype=torch.int32, device=like.device)).tolist()
    for name, count in zip(names, demotions, strict=True):
        if count and name not in partition.unseen:
            partition.demote(name, "another rank has no rule for what it saw of it")
    counted = zip(names, sights, strict=True)
    some = [name for name, n in counted if 0 < n < replicas.size and name not in partition.unseen]
    if some:
        raise RuntimeError(
            f"Samples went through {listed(some)} on some ranks only. All ranks must use the same layers in a step: "
            "leave those that may go unused to another optimizer with params=."
        )


def _demote_unseen(
    partition: Partition,
    recorder: Recorder,
    grads: Mapping[str, Tensor],
    per_sample: PerSample,
    known: Container[str],
    replicas: Replicas,
) -> None:
    """Demote the parameters that have a gradient although their layers were not called."""
    wanted = [name for name, home in partition.homes.items() if any(path in recorder.wanted for path, _ in home)]
    unseen = [name for name in wanted if name in grads and not any(name in seen for seen in per_sample)]
    if not unseen:
        return
    moving = torch.stack([grads[name].nan_to_num(0.0).any() for name in unseen])
    for name, moves in zip(unseen, replicas.total(moving.int()).tolist(), strict=True):
        if moves and name in known:
            raise RuntimeError(
                f"{name} has a gradient, but its layer '{partition.homes[name][0][0]}' was not called in this step, "
                "unlike before: only a penalty in the loss made it, or an earlier backward pass. Use weight_decay= for "
                "the penalty, zero_grad() after each step, or leave the parameter to another optimizer with params=."
            )
        if moves:
            partition.demote(
                name,
                "its layer was not called: the weight is used otherwise, or only by a penalty in the loss (for which "
                "there is weight_decay=)",
            )


def _verify(partition: Partition, recorder: Recorder, per_sample: PerSample) -> None:
    """Note in the partition which of the watched parameters have gradients that their factors do not add up to."""
    total = recorder.witness.total
    found = {name: [seen[name] for seen in per_sample if name in seen] for name in partition.homes if name in total}
    found = {name: jacobians for name, jacobians in found.items() if jacobians}
    if not found:
        return
    uses = [use for batch in recorder.batches for each in batch.uses.values() for use in each]
    allowed = tolerance({use.d.dtype for use in uses} | {grad.dtype for grad in total.values()})
    denied = recorder.witness.denied(found, allowed)
    if any(batch.again for batch in recorder.batches):  # then what was recorded is not even a part of the gradient
        for name in denied:
            partition.demote(name, "the loss is made of gradients, of which its layer saw the first derivatives only")
        denied = []
    partition.more = partition.more - found.keys() | set(denied)
