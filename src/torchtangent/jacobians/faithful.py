"""Forward mode that leaves out what reverse mode does, such as what a model computes under `no_grad`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only


class Unfaithful(RuntimeError):
    """Forward mode may have differentiated what reverse mode leaves out."""


class Faithful(TorchFunctionMode):
    """Inside, a forward pass in forward mode; raises `Unfaithful` at its end if reverse mode leaves out a part of it.

    What is computed under `no_grad` or by `.data` gets no derivative here either. What cannot be undone are writes to
    tensors that have one, and lookups in tables with a padding row. It depends on the data whether the two modes then
    differ, and a model may do so for some data only: each pass is watched.
    """

    def __init__(self) -> None:
        super().__init__()
        self._left_out = False

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        without = not torch.is_grad_enabled() or func == torch.Tensor.data.__get__  # type: ignore[attr-defined]
        if not without and func not in _LOOKUPS:
            return result
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        if func in _CONVERSIONS and any(result is t for t in given):
            return result  # nothing was converted: reverse mode has its derivative, too
        if not torch.compiler.is_compiling() and torch.is_inference_mode_enabled():  # nothing has a derivative there
            self._left_out |= _written(result, given)
            return result
        if not any(map(_carries, given)):
            return result
        if not without:
            self._left_out |= _has_padding(func, args, kwargs or {})
            return result
        written = _written(result, given)
        self._left_out |= written
        return result if written else tree_map_only(Tensor, Tensor.detach, result)

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if self._left_out and error[0] is None:
            raise Unfaithful("it may differentiate what reverse mode leaves out, under no_grad or in a padding row")


_LOOKUPS = (F.embedding, torch.embedding)
_CONVERSIONS = (Tensor.to, Tensor.type_as, Tensor.float, Tensor.double, Tensor.half, Tensor.bfloat16, Tensor.contiguous)


def _written(result: Any, given: list[Tensor]) -> bool:
    """Whether a function may have written to a tensor that it was given."""
    return result is None or any(one is other for one in tree_leaves(result) for other in given)


def _has_padding(lookup: Any, args: tuple, kwargs: dict[str, Any]) -> bool:
    """Whether a row of the table has no gradient."""
    padding = args[2] if len(args) > 2 else kwargs.get("padding_idx")
    return padding is not None and (lookup is F.embedding or padding >= 0)


def _carries(t: Tensor) -> bool:
    """Whether forward mode has a derivative of a tensor."""
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(t).tangent is not None
