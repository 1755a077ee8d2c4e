"""Every capture checks itself on its first batch: against autograd's own gradient, and for mixed samples.

Factors are captured with a random cotangent r[n,c] on a few samples; a random u[n] is then applied to them sample by
sample, and the result must be autograd's gradient of Σ u r f. One of the two would not do: without u a wrong sample
axis cannot be seen, and without r not one that matters only for cotangents that differ between samples. Parameters
that fail go to the fallback, which is held to the same test.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchtangent.jacobians.call import float32_products, undisturbed
from torchtangent.jacobians.factors import LayerJacobian
from torchtangent.jacobians.graph import saved_bytes
from torchtangent.jacobians.inputs import Inputs, check_finite, take

if TYPE_CHECKING:
    from torchtangent.jacobians.capture import Capture, Trace


@float32_products()
def verify(capture: Capture, x: Inputs, samples: int) -> None:
    """Check the rules on the first samples of `x` and note which parameters need the fallback.

    A mismatch in vectorized fallback leads to the loop over samples, which is the definition itself.
    """
    few = take(x, slice(0, samples))
    trace = capture.record(few)
    if samples > 1:
        _check_samples_apart(capture, few, trace.outputs)
    r, u = _random_probe(trace.outputs)
    capture.unproven = set()
    layers = trace.pull(r)
    wrong = _mismatches(trace, layers, r, u)
    capture.uncovered |= trace.uncovered | wrong
    if wrong and not capture.loop:
        trace.uncovered |= wrong
        capture.loop = bool(_mismatches(trace, trace.pull(r), r, u))
    enough = min(2, samples)
    capture.unproven = {name for name, layer in layers.items() if _alive(layer) < enough} - set(trace.unused)
    capture.verified = samples
    capture.signatures.add(trace.signature)
    capture.output_shape = trace.outputs.shape[1:]
    capture.bytes_per_sample = _measure(capture, trace, samples)


def prove(trace: Trace, layers: dict[str, LayerJacobian], cotangents: Tensor) -> bool:
    """Check the parameters that could not be checked before, now that more of their derivatives are not zero.

    A layer behind dead ReLUs has none on the first samples, and then every rule is right.

    Returns:
        Whether all are right; the others are noted as uncovered, and the fallback is held to the same test.
    """
    capture = trace.capture
    alive = {name: _alive(layers[name]) for name in capture.unproven}
    if not any(alive.values()):
        return True
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(len(trace.outputs), len(cotangents), generator=generator, dtype=torch.float64).to(cotangents)
    wrong = _mismatches(trace, layers, cotangents, u) & capture.unproven
    if capture.loop:
        wrong -= capture.uncovered  # the loop over samples is the definition itself
    capture.unproven -= {name for name, samples in alive.items() if samples > 1} - wrong
    capture.loop = capture.loop or bool(wrong & capture.uncovered)
    capture.uncovered |= wrong
    trace.uncovered |= wrong
    return not wrong


def _alive(layer: LayerJacobian) -> int:
    """How many samples have a cotangent that is not zero. It takes two to see a wrong sample axis."""
    return int(layer.d.flatten(1).any(1).sum())


def _check_samples_apart(capture: Capture, few: Inputs, together: Tensor) -> None:
    """The first and the last sample must have the same output alone, with other random numbers, as together."""
    for i in (0, len(together) - 1):
        with torch.no_grad(), undisturbed():
            _seed(i + 1)
            alone = capture.network(take(few, slice(i, i + 1))).detach()
        check_finite(alone)
        gap = (alone[0] - together[i]).abs().max()
        if gap > torch.finfo(alone.dtype).eps ** 0.5 * together.abs().max().clamp(min=1e-3):
            raise ValueError(
                f"The model mixes samples or is random: its output for sample {i} changes by {gap:.1e} when the "
                "sample is alone instead of inside a batch. Per-sample Jacobians are not defined. "
                "Call model.eval(), or remove what depends on the whole batch or on chance."
            )


def _seed(seed: int) -> None:
    """`torch.manual_seed`, which without a GPU notes the stack of every call for the day that there is one."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


def _random_probe(f: Tensor) -> tuple[Tensor, Tensor]:
    """A random cotangent r, (1, N, *out), and a random u (N, 1) to weigh the samples."""
    generator = torch.Generator().manual_seed(0)
    r = torch.randn(1, *f.shape, generator=generator, dtype=torch.float64)
    u = torch.randn(len(f), 1, generator=generator, dtype=torch.float64)
    return r.to(f), u.to(f)


def _mismatches(trace: Trace, layers: dict[str, LayerJacobian], r: Tensor, u: Tensor) -> set[str]:
    """Parameters whose factors do not reproduce autograd's gradient of Σ u r f, beyond rounding."""
    combined = torch.einsum("cn...,nc->n...", r, u)
    wrong = set()
    for name, expected in trace.gradient(combined).items():
        layer = layers[name]
        v = u.to(layer.d.dtype)
        gap, size = (layer.pullback(v) - expected).norm(), expected.norm()
        tolerance = torch.finfo(expected.dtype).eps ** 0.5
        if not gap <= tolerance * size:  # terms that cancel leave their rounding: the bound on their size decides
            size = torch.maximum(size, layer.magnitude().pullback(v.abs()).norm())
        if not gap <= tolerance * size:
            wrong.add(name)
    return wrong


def _measure(capture: Capture, trace: Trace, n: int) -> tuple[int, int]:
    """Bytes that a trace holds for a sample: activations, and factors for each cotangent.

    Where only some layers are recorded, autograd may keep far more than what they saw.
    """
    item = trace.outputs.element_size()
    inputs = sum(u.x.numel() for u in trace.uses)
    outputs = sum(u.shape.numel() for u in trace.uses)
    rest = sum(capture.params[name].numel() for name in capture.uncovered)
    saved = saved_bytes(trace.graph_outputs, without=chain(capture.model.parameters(), capture.model.buffers()))
    fixed = max(item * (inputs + 2 * outputs), saved)
    return fixed // n, item * (outputs // n + rest)
