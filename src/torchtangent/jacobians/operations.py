"""Operations of autograd's graph that a parameter takes part in, and how its Jacobian is made of what they saved.

One function for each kind of node that is known, under its name in autograd; views of a parameter, copies of them and
products with a number are followed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.graph import Node

from torchtangent.jacobians.factors import LayerJacobian, Lookup, Outer, Scale, outer
from torchtangent.jacobians.graph import Graph, shape_of, signed
from torchtangent.jacobians.rows import outward
from torchtangent.jacobians.rules import NoRule


@dataclass(frozen=True, eq=False)
class Operation:
    """What an operation does with parameters: its output is `rows` of a `width`. It knows no node of the graph."""

    rows: int
    width: int
    parts: dict[str, Part]

    def filled(self, node: Any) -> Operation:
        """The same with what its node saved. A checkpoint computes that again, so only a backward pass should ask."""
        parts = {k: replace(part, x=part.read(node).detach()) if part.read else part for k, part in self.parts.items()}
        return replace(self, parts=parts)

    def by_row(self, d: Float[Tensor, "y0 C *y"]) -> Float[Tensor, "rows C K"]:
        """Cotangents of the output, row by row."""
        return d.movedim(1, 0).reshape(d.shape[1], -1, self.width).transpose(0, 1)

    def factors(self, d: Float[Tensor, "y0 C *y"], n: int, *, inner: bool) -> dict[str, LayerJacobian]:
        """The Jacobians of its parameters (see `Use.factors`)."""
        if self.rows == 0 or self.rows % n:
            raise NoRule(f"{self.rows} rows for {n} samples")
        rows = self.by_row(d)
        rows = (outward(rows, n) if inner else rows).unsqueeze(2)
        found = {}
        for name, part in self.parts.items():
            x = part.by_row(self.rows, d.dtype)
            jacobian = part.make(outward(x, n) if inner and x is not None else x, rows)
            found[name] = (jacobian if part.factor == 1 else _times(jacobian, part.factor)).regroup(n)
        return found


@dataclass(frozen=True, eq=False)
class Part:
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


def find_operations(graph: Graph, params: Mapping[str, Tensor]) -> tuple[list[tuple[Node, Operation]], set[str]]:
    """All uses of some parameters in a graph, still without what they meet, and those that have others than are known.

    An operation may be there twice, once for each width of what it does.
    """
    found: dict[tuple[Node, int], dict[str, Part]] = defaultdict(dict)
    unknown = set()
    for name, p in params.items():
        stand_in = torch.empty(p.shape, device="meta")  # as good as p itself, to see what a view of it is
        try:
            parts = list(_parts(graph, id(p), [stand_in], p.shape))
            if len({node for node, _ in parts}) < len(parts):
                raise NoRule("twice in one operation")
            if any(not shape_of(node) for node, _ in parts):
                raise NoRule("its result is one number for all samples")
        except (NoRule, RuntimeError, AttributeError, ZeroDivisionError):  # also: what was saved has another name
            unknown.add(name)
            continue
        for node, part in parts:
            found[node, part.width][name] = part
    each = ((node, width, parts) for (node, width), parts in found.items())
    return [(node, Operation(shape_of(node).numel() // width, width, parts)) for node, width, parts in each], unknown


def _parts(
    graph: Graph, key: Node | int, views: list[Tensor], shape: torch.Size, factor: float = 1.0
) -> Iterator[tuple[Node, Part]]:
    """The operations behind a parameter, also behind views of it; `views`, times `factor`, are the results of `key`."""
    for node, argument, result in graph.users[key]:
        kind, view = type(node).__name__, views[result]
        if view.numel() == 0:
            raise NoRule("empty")
        number = _number(node, argument, view)
        if number is not None:
            yield from _parts(graph, node, [view], shape, factor * number)
        elif kind in _VIEWS:
            yield from _parts(graph, node, _VIEWS[kind](node, view), shape, factor)
        elif kind in _OPERATIONS:
            part = replace(_OPERATIONS[kind](node, argument, view, shape), factor=factor)
            yield _product_before(graph, node, argument) or node, part
        else:
            raise NoRule(kind)


def _number(node: Any, argument: int, view: Tensor) -> float | None:
    """What a node multiplies a view of a parameter by, if that is a number and all that it does."""
    kind = type(node).__name__
    if kind == "NegBackward0":
        return -1.0
    linear = kind == "MulBackward0" or (kind == "DivBackward0" and argument == 0)
    if not linear or shape_of(node) != view.shape:
        return None
    other = node._saved_other if argument == 0 else node._saved_self
    if other.dim() or other.is_complex():
        return None
    number = float(other.detach())
    return 1 / number if kind == "DivBackward0" else number


def _times(jacobian: LayerJacobian, factor: float) -> LayerJacobian:
    """The Jacobian times a number. Cotangents stay as they are where a weight shares them with its bias."""
    if isinstance(jacobian, Outer):
        return jacobian.at(jacobian.a * factor, jacobian.d)
    if isinstance(jacobian, Scale):
        x = jacobian.d.new_ones(()) if jacobian.x is None else jacobian.x
        return replace(jacobian, x=(x * factor).expand(len(jacobian.d), *jacobian.d.shape[2:]))
    assert isinstance(jacobian, Lookup)
    return replace(jacobian, d=jacobian.d * factor)


def _product_before(graph: Graph, node: Any, argument: int) -> Node | None:
    """x W whose result nobody uses but the sum with b, and which has the same cotangents: there b meets its weight."""
    if type(node).__name__ != "AddBackward0" or node._saved_alpha != 1:
        return None
    before: Any = node.next_functions[1 - argument][0]
    while _keeps_order(before) and len(graph.users[before]) == 1:
        before = before.next_functions[0][0]
    alone = type(before).__name__ in ("MmBackward0", "BmmBackward0") and len(graph.users[before]) == 1
    return before if alone and shape_of(before).numel() == shape_of(node).numel() else None


def _keeps_order(node: Any) -> bool:
    """Whether a node gives the same entries in the same order; einsum also moves axes that have one."""
    if type(node).__name__ != "PermuteBackward0":
        return type(node).__name__ in ("ViewBackward0", "UnsafeViewBackward0")
    shape = shape_of(node)
    moved = [signed(axis) % len(shape) for axis, size in zip(node._saved_dims, shape, strict=True) if size > 1]
    return moved == sorted(moved)


def _mm(node: Any, argument: int, view: Tensor, shape: torch.Size) -> Part:
    """y = x W."""
    if argument != 1:
        raise NoRule("a weight on the left")
    return _matrix(lambda node: node._saved_self, view, shape)


def _bmm(node: Any, argument: int, view: Tensor, shape: torch.Size) -> Part:
    """y = x W as a batch of one product, which is what einsum makes of it."""
    if argument != 1 or len(view) != 1:
        raise NoRule("a weight on the left, or many")
    return _matrix(lambda node: node._saved_self, view[0], shape)


def _addmm(node: Any, argument: int, view: Tensor, shape: torch.Size) -> Part:
    """y = b + x W."""
    if argument == 1 or node._saved_alpha != 1 or node._saved_beta != 1:
        raise NoRule("a weight on the left, or multiplied")
    if argument == 0:
        return _shift(node, argument, view, shape)
    return _matrix(lambda node: node._saved_mat1, view, shape)


def _matrix(read: Callable[[Any], Tensor], view: Tensor, shape: torch.Size) -> Part:
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
    return Part(make, outputs, read)


def _has_strides(view: Tensor, strides: tuple[int, ...]) -> bool:
    """An axis of one entry may have any."""
    return all(size == 1 or a == b for size, a, b in zip(view.shape, view.stride(), strides, strict=True))


def _add(node: Any, argument: int, view: Tensor, shape: torch.Size) -> Part:
    if argument == 1 and node._saved_alpha != 1:
        raise NoRule("multiplied")
    return _shift(node, argument, view, shape)


def _shift(node: Any, _: int, view: Tensor, shape: torch.Size) -> Part:
    """y = x + b, with b the same in every row; or b repeated."""
    own, start = _tail(node, view), int(view.storage_offset())

    def make(x: None, d: Tensor) -> Scale:
        return Scale(None, _padded(d, start, shape.numel()), shape, starts=(start,))

    return Part(make, own.numel())


def _mul(node: Any, argument: int, view: Tensor, shape: torch.Size) -> Part:
    """y = x ∘ w, with w the same in every row."""
    own, start, size = _tail(node, view), int(view.storage_offset()), shape.numel()

    def read(node: Any) -> Tensor:
        other = node._saved_other if argument == 0 else node._saved_self
        return other.expand(shape_of(node)).reshape(-1, own.numel())

    def make(x: Tensor, d: Tensor) -> Scale:
        return Scale(_padded(x, start, size).unsqueeze(1), _padded(d, start, size), shape)

    return Part(make, own.numel(), read)


def _embedding(node: Any, _: int, view: Tensor, shape: torch.Size) -> Part:
    """Rows of a table."""
    if view.shape != shape or not view.is_contiguous() or node._saved_scale_grad_by_freq:
        raise NoRule("not a table")
    padding = signed(node._saved_padding_idx)

    def make(index: Tensor, d: Tensor) -> Lookup:
        kept = (index != padding)[:, None, None, None]
        return Lookup(index.unsqueeze(1), d * kept, shape, padding if padding >= 0 else None)

    return Part(make, shape[1], lambda node: node._saved_indices, axes=0)


_OPERATIONS: dict[str, Callable[[Any, int, Tensor, torch.Size], Part]] = {
    "MmBackward0": _mm,
    "BmmBackward0": _bmm,
    "AddmmBackward0": _addmm,
    "AddBackward0": _add,
    "ExpandBackward0": _shift,
    "RepeatBackward0": _shift,
    "MulBackward0": _mul,
    "EmbeddingBackward0": _embedding,
}

_VIEWS: dict[str, Callable[[Any, Tensor], list[Tensor]]] = {
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
