"""Every capture checks its rules against autograd's own gradient, on some samples.

Factors are captured on a few samples, with random cotangents r[n,c]; two of them, because torch's derivatives of some
operations are wrong for several cotangents at once. Then each sample's factors are weighted by a number u[n], and their
sum must be autograd's gradient of Σ u r f. Both r and u are needed: without u a wrong sample axis could not be seen,
and without r one that matters only if cotangents differ between samples. Parameters that fail go to the fallback, which
has to pass the same test.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.jacobians.call import float32_products, undisturbed
from torchtangent.jacobians.compare import noise, norms
from torchtangent.jacobians.factors import LayerJacobian
from torchtangent.jacobians.inputs import wide
from torchtangent.notice import listed

if TYPE_CHECKING:
    from torchtangent.jacobians.capture import Capture
    from torchtangent.jacobians.trace import Trace


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
        capture.bytes_per_sample = trace.bytes_per_sample


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
