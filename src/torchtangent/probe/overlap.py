"""Checks that held-out samples are not in the probe set."""

from __future__ import annotations

from typing import Any

import torch

from torchtangent.jacobians.inputs import leaves
from torchtangent.kernel.hashing import bytes_of
from torchtangent.kernel.samples import Samples
from torchtangent.notice import warn


def check_apart(x: Any, x_test: Any) -> None:
    """Refuse held-out samples if all are in the probe set; warn if some are."""
    own = set(_contents(x))
    held_out = _contents(x_test)
    shared = sum(sample in own for sample in held_out)
    if shared == len(held_out):
        raise ValueError(
            "Every sample of x_test is in x, too: measures on it would repeat those on the probe set. "
            "Pass samples that were held out."
        )
    if shared:
        warn(
            f"{shared} of the {len(held_out)} samples of x_test are in x, too: they are not held out.",
        )


def _contents(x: Any) -> list[tuple[bytes, ...]]:
    """The bytes of each sample."""
    samples = Samples(x, torch.device("cpu"))
    tensors = [bytes_of(t.detach()).view(len(t), -1) for t in leaves(samples.batch(0, len(samples)))]
    return [tuple(row.numpy().tobytes() for row in rows) for rows in zip(*tensors, strict=True)]
