"""What the numbers of a kernel depend on, and whether a stored kernel belongs to the same network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from torchtangent.jacobians.call import float32_products
from torchtangent.jacobians.capture import Capture
from torchtangent.jacobians.compare import noise
from torchtangent.jacobians.inputs import wide
from torchtangent.jacobians.products import pull
from torchtangent.kernel.hashing import content_hash
from torchtangent.kernel.samples import Samples

_LOOKED_AT = 64  # samples of each side whose outputs are compared
_GRADIENTS = 1e-2  # relative tolerance of gradient norms: on another device rounding may flip a ReLU

Probe = dict[str, list[float]]


def identity(capture: Capture, x1: Samples, x2: Samples, precision: str, reduce: str) -> dict[str, Any]:
    """Everything that the numbers of a kernel depend on, as JSON."""
    return {
        "architecture": str(capture.model),
        "parameters": content_hash(capture.model.named_parameters()),
        "buffers": content_hash(capture.model.named_buffers()),
        "chosen": list(capture.params),
        "x1": x1.fingerprint(),
        "x2": "x1" if x2 is x1 else x2.fingerprint(),
        "precision": precision,
        "reduce": reduce,
    }


@float32_products()
def probe(capture: Capture, sides: Sequence[Samples]) -> Probe:
    """What tells networks with the same parameters apart: outputs of some samples, gradient norms of the first."""
    generator = torch.Generator().manual_seed(0)
    x = sides[0].batch(0, 1)
    u = noise(capture.outputs(x), generator)
    outputs = [
        float((wide(u) * capture.outputs(samples.batch(i, i + 1))).sum())
        for samples in sides
        for i in np.unique(np.linspace(0, len(samples) - 1, _LOOKED_AT).astype(int)).tolist()
    ]
    norms = [float(torch.linalg.vector_norm(g, dtype=torch.float64)) for g in pull(capture, x, u).values()]
    return {"outputs": [float(u.numel()), *outputs], "gradients": norms}


def check_same(stored: Any, now: Probe, rounding: float) -> None:
    """Refuse a stored kernel whose probe differs: it belongs to another network."""
    stored = stored if isinstance(stored, Mapping) else {}
    for what, small in (("outputs", rounding / 10), ("gradients", _GRADIENTS)):
        a, b = np.array(stored.get(what, [])), np.array(now[what])
        if len(a) != len(b) or not np.abs(a - b).max(initial=0) <= small * np.abs(a).max(initial=0):
            raise ValueError(
                f"The kernel that is stored there belongs to a network with the same parameters but other {what}: "
                f"{_apart(a, b)}. Use another path."
            )


def _apart(a: np.ndarray, b: np.ndarray) -> str:
    """The entry in which they differ most, or how many they have."""
    if len(a) != len(b):
        return f"{len(a)} numbers then, {len(b)} now"
    i = int(np.abs(a - b).argmax())
    return f"{a[i]:.12g} then, {b[i]:.12g} now"
