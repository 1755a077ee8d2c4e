"""Calling a model without leaving a trace on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from torchtangent.jacobians.inputs import Inputs, arguments, map_leaves


def run(model: nn.Module, x: Inputs, params: dict[str, Tensor] | None = None) -> Any:
    """Call the model, on copies of its buffers, with some parameters replaced."""
    args, kwargs = arguments(map_leaves(Tensor.detach, x))
    replaced = {name: b.clone() for name, b in model.named_buffers()} | (params or {})
    if not replaced:
        return model(*args, **kwargs)
    return torch.func.functional_call(model, replaced, args, kwargs)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Gradients on, fused attention off (it has no per-sample derivatives), global random state kept."""
    fused = torch.backends.mha.get_fastpath_enabled()
    with torch.enable_grad(), torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fused)
