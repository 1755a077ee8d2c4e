"""Forward mode that leaves out what reverse mode does, such as what a model computes under `no_grad`."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from torchtangent.jacobians.graph import Graph, padding_rows


class Unfaithful(RuntimeError):
    """Forward mode may have differentiated what reverse mode leaves out."""


class Faithful(TorchFunctionMode):
    """Inside, a forward pass in forward mode; raises `Unfaithful` at its end if reverse mode leaves out a part of it.

    What is computed under `no_grad` or by `.data`, or read from the padding row of a table, gets no derivative here
    either. What cannot be undone are writes to tensors that have one. It depends on the data whether the two modes then
    differ, and a model may do so for some data only: each pass is watched. (GroupNorm is helped: see `_packed`.)
    """

    def __init__(self) -> None:
        super().__init__()
        self._left_out = False

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        if func in _NORMS:
            args = tuple(_packed(t) if isinstance(t, Tensor) else t for t in args)
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
            return _without_padding(result, *_read(func, args, kwargs or {}))
        written = _written(result, given)
        self._left_out |= written
        return result if written else tree_map_only(Tensor, Tensor.detach, result)

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if self._left_out and error[0] is None:
            raise Unfaithful("the model writes, under no_grad, to what has a derivative")


_LOOKUPS = (F.embedding, torch.embedding, torch.ops.aten.embedding, torch.ops.aten.embedding.default)
_NORMS = (F.group_norm, torch.group_norm)
_CONVERSIONS = (Tensor.to, Tensor.type_as, Tensor.float, Tensor.double, Tensor.half, Tensor.bfloat16, Tensor.contiguous)


def _written(result: Any, given: list[Tensor]) -> bool:
    """Whether a function may have written to a tensor that it was given."""
    return result is None or any(one is other for one in tree_leaves(result) for other in given)


def _read(lookup: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[Tensor, Tensor, int | None]:
    """The table of a lookup, what is read from it, and its padding row."""
    index = "input" if lookup is F.embedding else "indices"
    names = ("input", "weight") if lookup is F.embedding else ("weight", "indices")
    given = dict(zip((*names, "padding_idx"), args, strict=False)) | kwargs
    table, padding = given["weight"], given.get("padding_idx")
    if padding is not None and padding < 0:
        padding = padding + len(table) if lookup is F.embedding else None
    return table, given[index], padding


def _without_padding(rows: Tensor, table: Tensor, index: Tensor, padding: int | None) -> Tensor:
    """Rows that were read from a table, without the derivative of its padding row."""
    if padding is None or not _carries(table):
        return rows
    return torch.where((index == padding).unsqueeze(-1), rows.detach(), rows)


class _Unpadded(TorchFunctionMode):
    """Inside, lookups that `Faithful` sees have no padding row: what is left are those that it does not see."""

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        if func not in _LOOKUPS:
            return func(*args, **(kwargs or {}))
        table, index, _ = _read(func, args, kwargs or {})
        return torch.embedding(table, index)


def reads_padding(graph: Graph, again: Callable[[], Tensor], chosen: Container[int]) -> bool:
    """Whether outputs are made of padding rows in a way that `Faithful` does not see, as in scripted code.

    Args:
        graph: That of the outputs.
        again: Computes the outputs once more.
        chosen: The ids of the parameters whose derivatives are wanted.
    """
    if not padding_rows(graph, chosen):
        return False
    with _Unpadded():
        return padding_rows(Graph(again()), chosen)


def _carries(t: Tensor) -> bool:
    """Whether forward mode has a derivative of a tensor."""
    return _derivative(t) is not None


def _derivative(t: Tensor) -> Tensor | None:
    """The derivative of a tensor in forward mode, if it has one."""
    return forward_ad.unpack_dual(t).tangent if forward_ad._current_level >= 0 else None


def _packed(t: Tensor) -> Tensor:
    """The same tensor with a derivative without gaps, as torch's formula for GroupNorm has to have it."""
    derivative = _derivative(t)
    return t if derivative is None or derivative.is_contiguous() else t.clone(memory_format=torch.contiguous_format)
