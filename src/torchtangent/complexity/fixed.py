"""What does not change while a network trains: the samples it is measured on, and the layout of its parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.jacobians.inputs import Inputs, map_leaves
from torchtangent.kernel.samples import Samples

_BATCH = 256  # samples in a forward pass


def kept(x: Any) -> Any:
    """A copy of inputs or labels, so that later in-place changes do not matter; a data set is returned as it is."""
    if isinstance(x, np.ndarray):
        return x.copy()
    return map_leaves(lambda t: t.detach().clone(), x) if isinstance(x, Tensor | tuple | Mapping) else x


def kept_inputs(x: Any) -> Any:
    """A copy of inputs; a data set is wrapped in what checks that its items stay the same."""
    return Samples(kept(x), torch.device("cpu")).x


def batches(samples: Samples) -> Iterator[Inputs]:
    """All samples, a batch at a time, on their device."""
    for i in range(0, len(samples), _BATCH):
        yield samples.batch(i, min(i + _BATCH, len(samples)))


def norm(params: Mapping[str, Tensor]) -> Float[Tensor, ""]:
    """‖θ‖ of all parameters together, in float64."""
    return torch.stack([torch.linalg.vector_norm(p, dtype=torch.float64) for p in params.values()]).norm()


def distance(theta: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> Float[Tensor, ""]:
    """‖θ − θ'‖, in float64."""
    return norm({name: p - other[name].to(p) for name, p in theta.items()})


def layout(params: Mapping[str, Tensor]) -> dict[str, str]:
    """The shape and dtype of each parameter, in words."""
    return {name: f"{tuple(p.shape)} of {p.dtype}" for name, p in params.items()}


def check_layout(start: Mapping[str, str], params: Mapping[str, Tensor]) -> None:
    """Refuse a network whose parameters differ in shape or dtype from those at the start."""
    now = layout(params)
    for name, was in start.items():
        if now.get(name) != was:
            raise ValueError(
                f"The network is no longer the one of the start: '{name}' was {was} and is {now.get(name, 'gone')}, so "
                "there is nothing to compare it with. Begin anew with the network as it is."
            )
