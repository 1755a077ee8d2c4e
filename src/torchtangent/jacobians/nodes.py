"""What a parameter does in one operation of autograd's graph, and how its Jacobian is made of what that saved.

One function for each kind of node that is known, under its name in autograd: `ROLES` are uses of a parameter, `VIEWS`
what a view or a copy of it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from torchtangent.jacobians.factors import LayerJacobian, Lookup, Outer, Scale, outer
from torchtangent.jacobians.graph import shape_of, signed
from torchtangent.jacobians.rules import NoRule


@dataclass(frozen=True, eq=False)
class Role:
    """One parameter in an operation whose output is rows of a width.

    Args:
        make: x of each row and d, (rows, C, 1, width), to the Jacobian of the rows.
        width: Of a row.
        read: From the operation's node to what the parameter meets, if it matters.
        axes: How many of its last axes belong to a row.
        x: What was read.
        factor: A number that the parameter was multiplied by before.
    """

    make: Callable[[Any, Tensor], LayerJacobian]
    width: int
    read: Callable[[Any], Tensor] | None = None
    axes: int = 1
    x: Tensor | None = None
    factor: float = 1.0

    def by_row(self, rows: int, dtype: torch.dtype) -> Tensor | None:
        """What each row meets; numbers, but not indices, in the format of the cotangents."""
        if self.x is None:
            return None
        x = self.x.reshape(rows, *self.x.shape[self.x.dim() - self.axes :])
        return x.to(dtype) if self.axes else x


def _mm(node: Any, argument: int, view: Tensor, shape: torch.Size) -> Role:
    """y = x W."""
    if argument != 1:
        raise NoRule("a weight on the left")
    return _matrix(lambda node: node._saved_self, view, shape)


def _bmm(node: Any, argument: int, view: Tensor, shape: torch.Size) -> Role:
    """y = x W as a batch of one product, which is what einsum makes of it."""
    if argument != 1 or len(view) != 1:
        raise NoRule("a weight on the left, or many")
    return _matrix(lambda node: node._saved_self, view[0], shape)


def _addmm(node: Any, argument: int, view: Tensor, shape: torch.Size) -> Role:
    """y = b + x W."""
    if argument == 1 or node._saved_alpha != 1 or node._saved_beta != 1:
        raise NoRule("a weight on the left, or multiplied")
    if argument == 0:
        return _shift(node, argument, view, shape)
    return _matrix(lambda node: node._saved_mat1, view, shape)


def _matrix(read: Callable[[Any], Tensor], view: Tensor, shape: torch.Size) -> Role:
    """The view, (I, O), is the transposed weight, some of its rows, or the weight itself."""
    start, outputs = int(view.storage_offset()), view.shape[1]
    if len(shape) == 2 and _has_strides(view, (1, shape[1])) and view.shape[0] == shape[1] and start % shape[1] == 0:
        rows = start // shape[1]

        def make(x: Tensor, d: Tensor) -> Outer:
            return replace(outer(x.unsqueeze(1), _padded(d, rows, shape[0]), shape), starts=(rows,))

    elif view.shape == shape and view.is_contiguous():

        def make(x: Tensor, d: Tensor) -> Outer:
            return replace(outer(x.unsqueeze(1), d, shape), order=(1, 0))

    else:
        raise NoRule("not a matrix")
    return Role(make, outputs, read)


def _has_strides(view: Tensor, strides: tuple[int, ...]) -> bool:
    """An axis of one entry may have any."""
    return all(size == 1 or a == b for size, a, b in zip(view.shape, view.stride(), strides, strict=True))


def _add(node: Any, argument: int, view: Tensor, shape: torch.Size) -> Role:
    if argument == 1 and node._saved_alpha != 1:
        raise NoRule("multiplied")
    return _shift(node, argument, view, shape)


def _shift(node: Any, _: int, view: Tensor, shape: torch.Size) -> Role:
    """y = x + b, with b the same in every row; or b repeated."""
    own, start = _tail(node, view), int(view.storage_offset())

    def make(x: None, d: Tensor) -> Scale:
        return Scale(None, _padded(d, start, shape.numel()), shape, starts=(start,))

    return Role(make, own.numel())


def _mul(node: Any, argument: int, view: Tensor, shape: torch.Size) -> Role:
    """y = x ∘ w, with w the same in every row."""
    own, start, size = _tail(node, view), int(view.storage_offset()), shape.numel()

    def read(node: Any) -> Tensor:
        other = node._saved_other if argument == 0 else node._saved_self
        return other.expand(shape_of(node)).reshape(-1, own.numel())

    def make(x: Tensor, d: Tensor) -> Scale:
        return Scale(_padded(x, start, size).unsqueeze(1), _padded(d, start, size), shape)

    return Role(make, own.numel(), read)


def _embedding(node: Any, _: int, view: Tensor, shape: torch.Size) -> Role:
    """Rows of a table."""
    if view.shape != shape or not view.is_contiguous() or node._saved_scale_grad_by_freq:
        raise NoRule("not a table")
    padding = signed(node._saved_padding_idx)

    def make(index: Tensor, d: Tensor) -> Lookup:
        kept = (index != padding)[:, None, None, None]
        return Lookup(index.unsqueeze(1), d * kept, shape, padding if padding >= 0 else None)

    return Role(make, shape[1], lambda node: node._saved_indices, axes=0)


ROLES: dict[str, Callable[[Any, int, Tensor, torch.Size], Role]] = {
    "MmBackward0": _mm,
    "BmmBackward0": _bmm,
    "AddmmBackward0": _addmm,
    "AddBackward0": _add,
    "ExpandBackward0": _shift,
    "RepeatBackward0": _shift,
    "MulBackward0": _mul,
    "EmbeddingBackward0": _embedding,
}

VIEWS: dict[str, Callable[[Any, Tensor], list[Tensor]]] = {
    "AliasBackward0": lambda node, t: [t],
    "CloneBackward0": lambda node, t: [t],
    "ToCopyBackward0": lambda node, t: [_cast(node, t)],
    "TBackward0": lambda node, t: [t.t()],
    "TransposeBackward0": lambda node, t: [t.transpose(signed(node._saved_dim0), signed(node._saved_dim1))],
    "PermuteBackward0": lambda node, t: [t.permute([signed(axis) for axis in node._saved_dims])],
    "ViewBackward0": lambda node, t: [t.view(shape_of(node))],
    "ReshapeAliasBackward0": lambda node, t: [t.view(shape_of(node))],
    "UnsafeViewBackward0": lambda node, t: [t.view(shape_of(node))],
    "UnsqueezeBackward0": lambda node, t: [t.view(shape_of(node))],
    "SelectBackward0": lambda node, t: [t.select(signed(node._saved_dim), signed(node._saved_index))],
    "SliceBackward0": lambda node, t: [_sliced(node, t)],
    "SplitBackward0": lambda node, t: list(t.split(node._saved_split_size, signed(node._saved_dim))),
    "SplitWithSizesBackward0": lambda node, t: list(t.split(list(node._saved_split_sizes), signed(node._saved_dim))),
}


def _cast(node: Any, t: Tensor) -> Tensor:
    """In another format, as under autocast."""
    here, before = node._input_metadata[0], node.next_functions[0][0]._input_metadata[0]
    if here.device != before.device:
        raise NoRule("copied to another device")
    return t


def _sliced(node: Any, t: Tensor) -> Tensor:
    axis, size = signed(node._saved_dim), t.dim()
    where = slice(signed(node._saved_start), signed(node._saved_end), node._saved_step)
    return t[tuple(where if i == axis % size else slice(None) for i in range(size))]


def _tail(node: Any, view: Tensor) -> torch.Size:
    """The last axes of an operation's output, which are the view's own; it is the same for all others."""
    own = view.squeeze() if view.numel() == 1 else view
    while own.dim() and own.shape[0] == 1:
        own = own[0]
    shape = shape_of(node)
    if not own.is_contiguous() or own.shape != shape[len(shape) - own.dim() :]:
        raise NoRule("not the same in every row")
    return own.shape


def _padded(t: Tensor, start: int, size: int) -> Tensor:
    """The last axis as a part of a longer one."""
    return t if t.shape[-1] == size else nn.functional.pad(t, (start, size - start - t.shape[-1]))
