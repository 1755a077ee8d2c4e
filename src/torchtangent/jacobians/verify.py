"""Every capture checks itself on some samples: for mixing, and its rules against autograd's own gradient.

Factors are captured on a few samples, with random cotangents r[n,c]; two of them, because torch's derivatives of some
operations are wrong for several cotangents at once. Then each sample's factors are weighted by a number u[n], and their
sum must be autograd's gradient of Σ u r f. Both r and u are needed: without u a wrong sample axis could not be seen,
and without r one that matters only if cotangents differ between samples. Parameters that fail go to the fallback, which
has to pass the same test.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from itertools import chain
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from torchtangent.jacobians.call import Network, float32_products, undisturbed
from torchtangent.jacobians.factors import LayerJacobian
from torchtangent.jacobians.inputs import Inputs, check_finite, map_leaves, norms, take, wide
from torchtangent.jacobians.uses import GraphUse
from torchtangent.notice import listed

if TYPE_CHECKING:
    from torchtangent.jacobians.capture import Capture
    from torchtangent.jacobians.trace import Trace


_SEED = 8_675_309  # of the random state in which models are looked at, unlikely to be the user's
_PERIODS = (8191, 8179, 8171)  # primes
_ROUGHLY = 0.05  # tolerance relative to the largest output: kernels may be computed in 16 bits,
_FLOAT64 = 1e-7  # but not those of models whose rounding, its square root, is below this
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
        capture.bytes_per_sample = _measure(capture, trace)
    return trace


@float32_products()
def verify(capture: Capture, trace: Trace) -> None:
    """Check the rules on some samples and note which parameters need the fallback.

    If the vectorized fallback is wrong, too, the loop over samples is used, which is the definition itself.
    """
    with undisturbed():
        _verify(capture, trace)


def _verify(capture: Capture, trace: Trace) -> None:
    f = trace.outputs
    r, u = _random_probe(f)
    capture.batched = capture.batched and len(r) > 1  # one cotangent would not check the batched pass
    before, capture.unproven = capture.unproven, set()
    layers = trace.pull(r)
    wrong = _mismatches(trace, layers, r, u)
    if wrong and capture.batched:
        capture.batched = False
        layers, wrong_batched = trace.pull(r), wrong
        wrong = _mismatches(trace, layers, r, u)
        capture.batched = wrong == wrong_batched  # if not, torch's pass for several cotangents was wrong
    trace.uncovered |= wrong
    capture.uncovered |= trace.uncovered
    if wrong and not capture.loop:
        _loop_for(capture, _mismatches(trace, trace.pull(r), r, u))
    samples = len(trace.outputs)
    enough = min(2, samples)
    alive = _alive(layers)
    capture.unproven = {
        name for name in layers if alive[name] < enough and (name in before or name not in trace.unused)
    }
    capture.signatures[trace.signature] = samples
    if capture.uncovered:
        capture.bytes_per_sample = _measure(capture, trace)


def prove(trace: Trace, layers: dict[str, LayerJacobian], cotangents: Tensor) -> bool:
    """Check the parameters that could not be checked before, if some of their derivatives are no longer zero.

    If all derivatives are zero on the first samples, as before dead ReLUs, any rule passes the check there.

    Returns:
        Whether all are right; wrong ones are noted as uncovered, and the fallback has to pass the same test.
    """
    capture = trace.capture
    alive = _alive({name: layers[name] for name in capture.unproven})
    if not any(alive.values()):
        return True
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(len(trace.outputs), len(cotangents), generator=generator, dtype=torch.float64, device="cpu").to(
        cotangents
    )
    wrong = _mismatches(trace, layers, cotangents, u) & capture.unproven
    if capture.loop:
        wrong -= capture.uncovered  # the loop over samples is the definition itself
    capture.unproven -= {name for name, samples in alive.items() if samples > 1} - wrong
    _loop_for(capture, wrong & capture.uncovered)
    capture.uncovered |= wrong
    trace.uncovered |= wrong
    return not wrong


def _loop_for(capture: Capture, wrong: set[str]) -> None:
    """If the vectorized fallback is wrong, loop over samples from now on, with a warning."""
    if wrong:
        capture.loop = True
        capture.say_once(
            "loop",
            f"The Jacobian of {listed(sorted(wrong))} is computed sample by sample (exact, but slow): what torch "
            "computes for several samples or cotangents at once is wrong, or a hook of yours changes gradients.",
        )


def _alive(layers: Mapping[str, LayerJacobian]) -> dict[str, int]:
    """For each parameter, the number of samples whose Jacobian is not zero. A wrong sample axis shows from two on."""
    counts = torch.stack([(layer.mass() > 0).sum() for layer in layers.values()])
    return dict(zip(layers, counts.tolist(), strict=True))


def _check_samples_apart(capture: Capture, x: Inputs, together: Float[Tensor, "N *out"]) -> Bool[Tensor, "*out"]:
    """Raise if the first or last sample has another output alone, with another random seed, than in the batch.

    Returns:
        The outputs that say too little, for a look at their gradients: those that are zero, and those that changed by
        more than their usual rounding, which may be much where a large constant is added to them, or others are larger.
    """
    size, eps = together.abs().amax(0), torch.finfo(together.dtype).eps
    doubtful = size == 0
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
            f"In {str(together.dtype).removeprefix('torch.')} rounding alone changes the outputs of this network by "
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
        if bool((size[chosen] > 0).all()) and _is_rounding(capture.network, x, i):
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
    tolerance = rounding if rounding < _FLOAT64 else max(_ROUGHLY, rounding)
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


def noise(like: Tensor, generator: torch.Generator) -> Tensor:
    """Normal random numbers, the same on every device; they repeat after a while, since to draw all would take long."""
    size = like.numel()
    period = next((p for p in _PERIODS if all(n % p for n in like.shape)), size)  # so that rows get different numbers
    few = torch.randn(min(size, period), generator=generator, dtype=torch.float64, device="cpu").to(like)
    return few.repeat(math.ceil(size / period))[:size].view(like.shape) if size else few.view(like.shape)


def _random_probe(f: Float[Tensor, "N *out"]) -> tuple[Float[Tensor, "C N *out"], Float[Tensor, "N C"]]:
    """Random cotangents r, for C ≤ 2, and weights of samples u that differ clearly."""
    n, c = len(f), min(2, f[0].numel())
    number = torch.arange(n, dtype=torch.float64, device="cpu")
    u = (1 + number / n) * (-1) ** number
    r = noise(f.expand(c, *f.shape), torch.Generator().manual_seed(0))
    return r, torch.stack([u, 0.6 * u.flip(0)][:c], 1).to(f)


def _mismatches(trace: Trace, layers: dict[str, LayerJacobian], r: Tensor, u: Tensor) -> set[str]:
    """Parameters whose factors do not reproduce autograd's gradient of Σ u r f, beyond rounding."""
    expected = trace.gradient(torch.einsum("cn...,nc->n...", r, u))
    gradients = [wide(g) for g in expected.values()]
    gaps = torch._foreach_sub([layers[name].pullback(u.to(layers[name].d.dtype)) for name in expected], gradients)
    sizes = norms([*gaps, *gradients])
    wrong = set()
    for (name, g), gap, size in zip(expected.items(), sizes[: len(gaps)], sizes[len(gaps) :], strict=True):
        tolerance = max(torch.finfo(kind).eps for kind in {g.dtype, *trace.capture.kinds}) ** 0.5
        if not gap <= tolerance * size:  # if terms cancel, their rounding remains: compare with the terms' own size
            v = u.to(layers[name].d.dtype).abs()
            size = max(size, float(layers[name].magnitude().pullback(v).double().norm()))
        if not gap <= tolerance * size:
            wrong.add(name)
    return wrong


def _measure(capture: Capture, trace: Trace) -> tuple[int, int]:
    """Bytes per sample that a trace holds: activations, and the factors of one cotangent.

    Activations are measured on the graph, too: if few layers are recorded, autograd saves far more than their inputs.
    """
    n, item = len(trace.outputs), trace.outputs.element_size()
    inputs = sum(u.x.numel() for u in trace.uses)
    outputs = sum(u.shape.numel() for u in trace.uses)
    rest = sum(capture.params[name].numel() for name in capture.uncovered)
    rest += sum(u.of.made for u in trace.uses if isinstance(u, GraphUse))
    saved = trace.graph.saved_bytes(without=chain(capture.model.parameters(), capture.model.buffers()))
    fixed = max(item * (inputs + 2 * outputs), saved)
    marked = 2 * outputs if trace.doubtful else 0  # one or two further cotangents, to tell samples apart
    return (fixed + item * marked) // n, item * (outputs // n + rest)
