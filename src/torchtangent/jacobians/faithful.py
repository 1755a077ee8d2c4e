"""Whether forward mode differentiates only what reverse mode does, and not what a model computes under `no_grad`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves


class Unfaithful(RuntimeError):
    """Forward mode may have differentiated what reverse mode leaves out."""


class Faithful(TorchFunctionMode):
    """Inside, a forward pass in forward mode; raises `Unfaithful` at its end if reverse mode leaves out a part of it.

    It depends on the data whether the two then differ, and a model may do so for some data only: each pass is watched.
    """

    def __init__(self) -> None:
        super().__init__()
        self._left_out = False

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        without = not torch.is_grad_enabled() or func == torch.Tensor.data.__get__  # type: ignore[attr-defined]
        if without and isinstance(result, Tensor) and result.is_floating_point():
            self._left_out |= any(isinstance(t, Tensor) and _carries(t) for t in tree_leaves((args, kwargs)))
        return result

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if self._left_out and error[0] is None:
            raise Unfaithful("it may differentiate what the model computes without gradients")


def _carries(t: Tensor) -> bool:
    """Whether forward mode has a derivative of a tensor."""
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(t).tangent is not None
