"""Whether a model treats its samples one by one: alone, one has the outputs and gradients that it has in a batch."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from torchtangent.jacobians.call import Network, float32_products, undisturbed
from torchtangent.jacobians.compare import norms
from torchtangent.jacobians.inputs import Inputs, check_finite, map_leaves, take
from torchtangent.notice import dtype_name

if TYPE_CHECKING:
    from torchtangent.jacobians.capture import Capture
    from torchtangent.jacobians.trace import Trace


_SEED = 8_675_309  # of the random state in which models are looked at, unlikely to be the user's
_ROUGHLY = 0.05  # relative to the largest output: what is left to kernels that compute in 16 bits
_FINE = 1e-7  # models whose rounding, √ε, is below this have no such kernels: those in float64
_USUAL = 32  # units of rounding by which outputs of most networks change between batches
_NOT_APART = (
    "Per-sample Jacobians are not defined. Call model.eval(), remove what depends on the whole batch or on chance, and "
    "see to it that samples are the first axis of inputs and outputs (for attention: batch_first=True, or transpose)."
)


@float32_products()
def first_trace(capture: Capture, x: Inputs) -> Trace:
    """Record some samples, and see that the model treats them one by one."""
    with undisturbed():
        trace = capture.record(x)
        doubtful = _check_samples_apart(capture, x, trace.outputs)
        if bool(doubtful.any()):
            _check_gradients_apart(capture, x, trace, doubtful)
        capture.output_shape = trace.outputs.shape[1:]
        capture.bytes_per_sample = trace.bytes_per_sample
    return trace


def _check_samples_apart(capture: Capture, x: Inputs, together: Float[Tensor, "N *out"]) -> Bool[Tensor, "*out"]:
    """Raise if the first or last sample has another output alone, with another random seed, than in the batch.

    Returns:
        The outputs that say too little, for a look at their gradients: those that are zero, and those that changed by
        more than their usual rounding, which may be much where a large constant is added to them, or others are larger.
    """
    size, eps = together.abs().amax(0), torch.finfo(together.dtype).eps
    doubtful = size == 0
    if len(together) > 1:  # outputs that hardly differ between samples would hardly change
        doubtful |= together.amax(0) - together.amin(0) <= _USUAL * eps**0.5 * size
    for i in sorted({0, len(together) - 1}):
        change = (_alone(capture.network, x, i) - together[i]).abs()
        gap, small = _relative(change, together), capture.rounding(together)
        doubtful |= change > _USUAL * eps * size
        if gap <= small:
            continue
        if not _is_rounding(capture.network, x, i):
            raise ValueError(
                f"The model mixes samples or is random: its output for sample {i} changes by {gap:.1e} of the largest "
                f"when the sample is alone, with another random state. {_NOT_APART}"
            )
        said = (
            f"In {dtype_name(together.dtype)} rounding alone changes the outputs of this network by "
            f"{gap:.0e} of the largest, as in deep networks that are chaotic. Pass model.double()."
        )
        if gap > _ROUGHLY:
            raise ValueError(said)
        capture.say_once("rounding", said)
        return size == 0
    return doubtful


def _check_gradients_apart(capture: Capture, x: Inputs, together: Trace, chosen: Bool[Tensor, "*out"]) -> None:
    """Raise if the gradient of some outputs of the first or last sample is another one alone, as for the outputs."""
    f = together.outputs
    size = f.abs().amax(0)
    zero = not bool((size[chosen] > 0).any())
    tolerance = capture.rounding(f) ** (1.0 if zero else 0.5)  # others may be mostly rounding themselves
    for i in sorted({0, len(f) - 1}):
        u = torch.zeros_like(f)
        u[i] = torch.where(chosen, torch.where(size > 0, 1 / size, 1.0), 0.0)
        _seed(_SEED + i)
        alone = capture.record(take(x, slice(i, i + 1))).gradient(u[i : i + 1])
        gradients = together.gradient(u)
        gaps, sizes = norms([g - alone[name] for name, g in gradients.items()]), norms(list(gradients.values()))
        total = math.hypot(*sizes)
        if math.hypot(*gaps) <= tolerance * total or not math.isfinite(total):  # infinite: an error where it is wanted
            continue
        exact = f.dtype == torch.float64
        if not exact and bool((size[chosen] > 0).all()) and _is_rounding(capture.network, x, i):
            continue
        name = list(gradients)[gaps.index(max(gaps))]
        raise ValueError(
            f"The model mixes samples or is random: the gradient of a sample's output by {name!r} changes when the "
            f"sample is alone, with another random state. {_NOT_APART}"
        )


def _alone(network: Network, x: Inputs, i: int) -> Float[Tensor, "*out"]:
    """The output of a sample alone, with another random state."""
    with network.undisturbed():
        _seed(_SEED + i)
        alone = network.value(take(x, slice(i, i + 1)))
    check_finite(alone)
    return alone[0]


def _relative(change: Float[Tensor, "*out"], outputs: Float[Tensor, "N *out"]) -> float:
    """The largest change, relative to the largest output."""
    return float(change.max() / outputs.abs().max().clamp(min=1e-3))


def _is_rounding(network: Network, x: Inputs, i: int) -> bool:
    """Whether the difference is only rounding: it vanishes in float64."""
    try:
        double = network.of(copy.deepcopy(network.model).double())
        x = map_leaves(lambda t: t.double() if t.is_floating_point() else t, x)
        with double.undisturbed():
            together = double.value(x)
        gap = _relative((_alone(double, x, i) - together[i]).abs(), together)
        return together.dtype == torch.float64 and gap <= torch.finfo(torch.float64).eps ** 0.5
    except Exception:  # the model cannot be copied, or works in one dtype only
        return False


def check_in_batch(few: Tensor, outputs: Tensor, n: int, rounding: float) -> None:
    """Raise if a sample has another output in a batch of n than in a batch of one or two, beyond rounding."""
    if few.shape != outputs.shape:
        raise ValueError(
            f"The model's output for a sample is {tuple(outputs.shape[1:])} in a batch of {n}, and "
            f"{tuple(few.shape[1:])} in a smaller one. It should not depend on the batch: pad all samples alike."
        )
    gap = (outputs - few).abs().max()
    tolerance = rounding if rounding < _FINE else max(_ROUGHLY, rounding)
    if gap > tolerance * few.abs().max().clamp(min=1e-3):
        raise ValueError(
            f"The model mixes samples or is random: its output for a sample changes by {gap:.1e} in a batch of {n}, as "
            f"where experts have a capacity. {_NOT_APART}"
        )


def _seed(seed: int) -> None:
    """`torch.manual_seed`, except that without a GPU that one records the stack of every call, for a later GPU."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
