"""What a parameter does in one operation of autograd's graph, and its Jacobian from what the operation saved.

There is one function for each known kind of node, under its name in autograd: `ROLES` for operations that use a
parameter, `VIEWS` for those whose result is a view or a copy of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from torchtangent.jacobians.factors import LayerJacobian, Lookup, Outer, Scale, outer
from torchtangent.jacobians.graph import shape_of, signed
from torchtangent.jacobians.patches import Patches
from torchtangent.jacobians.rules import NoRule


@dataclass(frozen=True, eq=False)
class Role:
    """The part of one parameter in an operation whose output consists of rows, each `width` long.

    Args:
        make: Maps x, row by row, and d, (rows, C, 1, width), to the Jacobian of the rows.
        width: The length of a row.
        read: Maps the operation's node to x, the other argument that the Jacobian depends on, if any.
        axes: How many of the last axes of x belong to a row.
        order: A permutation of the output's axes that puts those of a row last; empty if they are.
        x: The result of `read`.
        factor: A number that the parameter is multiplied by.
        made: If a tensor computed from the parameter takes part instead of the parameter itself: the place of that
            tensor in the graph, and the parameter.
    """

    make: Callable[[Any, Tensor], LayerJacobian]
    width: int
    read: Callable[[Any], Tensor] | None = None
    axes: int = 1
    order: tuple[int, ...] = ()
    x: Tensor | None = None
    factor: float = 1.0
    made: tuple[GradientEdge, Tensor] | None = None

    def by_row(self, rows: int, dtype: torch.dtype) -> Tensor | None:
        """x, row by row; numbers (not indices) in the dtype of the cotangents, and conjugated if complex."""
        if self.x is None:
            return None
        x = self.x.reshape(rows, *self.x.shape[self.x.dim() - self.axes :])
        return x.conj().to(dtype) if self.axes else x


def _mm(node: Any, argument: int, view: Tensor, shape: torch.Size) -> Role:
    """y = x W."""
    if argument != 1:
        raise NoRule("a weight on the left")
    return _matrix(lambda node: node._saved_self, view, shape)


def _bmm(node: Any, argument: int, view: Tensor, shape: torch.Size) -> Role:
    """y = x W as a batch of products, each with a weight of its own; einsum often makes it a batch of one."""
    if argument != 1:
        raise NoRule("a weight on the left")
    if len(view) == 1:
        return _matrix(lambda node: node._saved_self, view[0], shape)
    groups, _, outputs = view.shape
    if view.shape == shape and view.is_contiguous():
        axes = (2, 0, 1)
    elif view.mT.shape == shape and view.mT.is_contiguous():
        axes = (1, 0, 2)
    else:
        raise NoRule("not one weight for each product")

    def make(x: Tensor, d: Tensor) -> Outer:
        d = d.reshape(*d.shape[:3], groups, outputs).permute(0, 3, 1, 2, 4)
        return replace(outer(x, d[:, 0], shape), source=x.unsqueeze(2), d=d, order=axes)

    return Role(make, groups * outputs, lambda node: node._saved_self.transpose(0, 1), axes=2, order=(1, 0, 2))


def _addmm(node: Any, argument: int, view: Tensor, shape: torch.Size) -> Role:
    """y = b + x W."""
    if argument == 1 or node._saved_alpha != 1 or node._saved_beta != 1:
        raise NoRule("a weight on the left, or multiplied")
    if argument == 0:
        return _shift(node, argument, view, shape)
    return _matrix(lambda node: node._saved_mat1, view, shape)


def _matrix(read: Callable[[Any], Tensor], view: Tensor, shape: torch.Size) -> Role:
    """The view, (I, O), is the weight itself, its transpose, or some rows of it, transposed."""
    start, outputs = int(view.storage_offset()), view.shape[1]
    if len(shape) == 2 and _has_strides(view, (1, shape[1])) and view.shape[0] == shape[1] and start % shape[1] == 0:
        rows = start // shape[1]

        def make(x: Tensor, d: Tensor) -> Outer:
            return replace(outer(x.unsqueeze(1), _padded(d, rows, shape[0]), shape), starts=(rows,))

    elif view.is_contiguous() and view.numel() == shape.numel() and shape[-1:] == (outputs,):
        order = (len(shape) - 1, *range(len(shape) - 1))

        def make(x: Tensor, d: Tensor) -> Outer:
            return replace(outer(x.unsqueeze(1), d, shape), order=order)

    else:
        raise NoRule("not a matrix")
    return Role(make, outputs, read)


def _has_strides(view: Tensor, strides: tuple[int, ...]) -> bool:
    """Whether a view has these strides; an axis of one entry may have any."""
    return all(size == 1 or a == b for size, a, b in zip(view.shape, view.stride(), strides, strict=True))


def _add(node: Any, argument: int, view: Tensor, shape: torch.Size) -> Role:
    """y = x + alpha b."""
    return replace(_shift(node, argument, view, shape), factor=_real(node._saved_alpha) if argument == 1 else 1.0)


def _sub(node: Any, argument: int, view: Tensor, shape: torch.Size) -> Role:
    """y = x - alpha b."""
    return replace(_shift(node, argument, view, shape), factor=-_real(node._saved_alpha) if argument == 1 else 1.0)


def _real(factor: int | float | complex) -> float:
    if isinstance(factor, complex):
        raise NoRule("a complex factor")
    return float(factor)


def _shift(node: Any, _: int, view: Tensor, shape: torch.Size) -> Role:
    """y = x + b, with the same b in every row; or b itself, repeated."""
    order, start = _in_row(node, view), int(view.storage_offset())

    def make(x: None, d: Tensor) -> Scale:
        return Scale(None, _padded(d, start, shape.numel()), shape, starts=(start,))

    return Role(make, view.numel(), order=order)


def _mul(node: Any, argument: int, view: Tensor, shape: torch.Size) -> Role:
    """y = x ∘ w, with the same w in every row."""
    return _scale(node, view, shape, lambda node: node._saved_other if argument == 0 else node._saved_self)


def _addcmul(node: Any, argument: int, view: Tensor, shape: torch.Size) -> Role:
    """y = b + value x ∘ w."""
    if argument == 0:
        return _shift(node, argument, view, shape)
    role = _scale(node, view, shape, lambda node: node._saved_tensor2 if argument == 1 else node._saved_tensor1)
    return replace(role, factor=_real(node._saved_value))


def _scale(node: Any, view: Tensor, shape: torch.Size, read: Callable[[Any], Tensor]) -> Role:
    """y = x ∘ w, with x read from the node."""
    order, start, size, width = _in_row(node, view), int(view.storage_offset()), shape.numel(), view.numel()

    def read_rows(node: Any) -> Tensor:
        x = read(node).expand(shape_of(node))
        return (x.permute(order) if order else x).reshape(-1, width)

    def make(x: Tensor, d: Tensor) -> Scale:
        return Scale(_padded(x, start, size).unsqueeze(1), _padded(d, start, size), shape)

    return Role(make, width, read_rows, order=order)


def _layer_norm(node: Any, argument: int, view: Tensor, shape: torch.Size) -> Role:
    """y = w ∘ x̂ + b, normalized over the last axes."""
    return _norm(node, argument, view, shape, lambda node: (node._saved_result1, node._saved_result2))


def _group_norm(node: Any, argument: int, view: Tensor, shape: torch.Size) -> Role:
    """The same with one w and b per channel, normalized over groups of channels."""

    def moments(node: Any) -> tuple[Tensor, Tensor]:
        x, groups = node._saved_input, node._saved_group
        each = (*x.shape[:2], *[1] * (x.dim() - 2))
        mean, scale = (
            t.reshape(len(x), groups, 1).expand(-1, -1, x.shape[1] // groups).reshape(each)
            for t in (node._saved_result1, node._saved_result2)
        )
        return mean, scale

    return _norm(node, argument, _by_channel(node, view), shape, moments)


def _batch_norm(node: Any, argument: int, view: Tensor, shape: torch.Size) -> Role:
    """The same with one w and b per channel, normalized by running statistics."""
    if node._saved_training:
        raise NoRule("normalized over the batch")

    def moments(node: Any) -> tuple[Tensor, Tensor]:
        scale = (node._saved_running_var + node._saved_eps).rsqrt()
        mean, scale = (_by_channel(node, t) for t in (node._saved_running_mean, scale))
        return mean, scale

    return _norm(node, argument, _by_channel(node, view), shape, moments)


def _norm(
    node: Any, argument: int, view: Tensor, shape: torch.Size, moments: Callable[[Any], tuple[Tensor, Tensor]]
) -> Role:
    """y = w ∘ x̂ + b with x̂ = (x - mean) · scale."""
    if argument == 0:
        raise NoRule("what is normalized")
    if argument == 2:
        return _shift(node, argument, view, shape)

    def read(node: Any) -> Tensor:
        mean, scale = moments(node)
        return (node._saved_input - mean) * scale

    return _scale(node, view, shape, read)


def _by_channel(node: Any, t: Tensor) -> Tensor:
    """One entry per channel, with axes of size 1 for all axes after that of the channels."""
    return t.reshape(-1, *[1] * (len(shape_of(node)) - 2))


def _convolution(node: Any, argument: int, view: Tensor, shape: torch.Size) -> Role:
    """y[s] = W patch(x)[s] + b."""
    if argument == 0 or node._saved_transposed:
        raise NoRule("what is convolved, or a transposed convolution")
    if argument == 2:
        return _shift(node, argument, _by_channel(node, view), shape)
    if view.shape != shape or not view.is_contiguous():
        raise NoRule("not a kernel")
    pad = tuple(p for p in reversed(node._saved_padding) for _ in range(2))
    geometry = tuple(shape[2:]), tuple(node._saved_stride), tuple(node._saved_dilation), pad
    patches = Patches(*geometry, "zeros", node._saved_groups)
    outputs = shape_of(node)[1:]

    def make(x: Tensor, d: Tensor) -> Outer:
        d = d.reshape(*d.shape[:2], patches.groups, shape[0] // patches.groups, -1)
        return Outer(x, patches, d.permute(0, 2, 1, 4, 3), shape, tuple(range(len(shape))))

    return Role(make, outputs.numel(), lambda node: node._saved_input, axes=len(outputs))


def _embedding(node: Any, _: int, view: Tensor, shape: torch.Size) -> Role:
    """y = rows of a table."""
    if view.shape != shape or not view.is_contiguous() or node._saved_scale_grad_by_freq:
        raise NoRule("not a table")
    padding = signed(node._saved_padding_idx)

    def make(index: Tensor, d: Tensor) -> Lookup:
        kept = (index != padding)[:, None, None, None]
        return Lookup(index.unsqueeze(1), d * kept, shape, padding if padding >= 0 else None)

    return Role(make, shape[1], lambda node: node._saved_indices, axes=0)


def _cell(node: Any, argument: int, view: Tensor, shape: torch.Size) -> Role:
    """A step of an LSTM or GRU on a GPU: gates x W + b and h V + c, whose products are computed before."""
    if argument < 3:
        raise NoRule("a gate or a state")
    return _shift(node.next_functions[argument - 3][0], argument, view, shape)


ROLES: dict[str, Callable[[Any, int, Tensor, torch.Size], Role]] = {
    "MmBackward0": _mm,
    "BmmBackward0": _bmm,
    "AddmmBackward0": _addmm,
    "AddBackward0": _add,
    "SubBackward0": _sub,
    "ExpandBackward0": _shift,
    "RepeatBackward0": _shift,
    "MulBackward0": _mul,
    "AddcmulBackward0": _addcmul,
    "EmbeddingBackward0": _embedding,
    "NativeLayerNormBackward0": _layer_norm,
    "NativeGroupNormBackward0": _group_norm,
    "NativeBatchNormBackward0": _batch_norm,
    "ConvolutionBackward0": _convolution,
    "ThnnFusedGruCellBackward0": _cell,
    "ThnnFusedLstmCellBackward0": _cell,
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
    "UnbindBackward0": lambda node, t: list(t.unbind(signed(node._saved_dim))),
    "SelectBackward0": lambda node, t: [t.select(signed(node._saved_dim), signed(node._saved_index))],
    "SliceBackward0": lambda node, t: [_sliced(node, t)],
    "SplitBackward0": lambda node, t: list(t.split(node._saved_split_size, signed(node._saved_dim))),
    "SplitWithSizesBackward0": lambda node, t: list(t.split(list(node._saved_split_sizes), signed(node._saved_dim))),
}


def _cast(node: Any, t: Tensor) -> Tensor:
    """A copy in another dtype, as under autocast."""
    here, before = node._input_metadata[0], node.next_functions[0][0]._input_metadata[0]
    if here.device != before.device:
        raise NoRule("copied to another device")
    return t


def _sliced(node: Any, t: Tensor) -> Tensor:
    axis, size = signed(node._saved_dim), t.dim()
    where = slice(signed(node._saved_start), signed(node._saved_end), node._saved_step)
    return t[tuple(where if i == axis % size else slice(None) for i in range(size))]


def _in_row(node: Any, view: Tensor) -> tuple[int, ...]:
    """A permutation that puts the view's own axes last in the output, empty if they are; other axes repeat the view."""
    shape = shape_of(node)
    sizes = (*[1] * (len(shape) - view.dim()), *view.shape)
    if not view.is_contiguous() or len(sizes) > len(shape):
        raise NoRule("not the same in every row")
    if any(a not in (1, b) for a, b in zip(sizes, shape, strict=True)):
        raise NoRule("repeated")
    order = sorted(range(len(shape)), key=lambda axis: sizes[axis] > 1)
    long = [axis for axis in order if shape[axis] > 1]
    return () if long == sorted(long) else tuple(order)


def _padded(t: Tensor, start: int, size: int) -> Tensor:
    """The last axis, padded with zeros to `size`, beginning at `start`."""
    return t if t.shape[-1] == size else nn.functional.pad(t, (start, size - start - t.shape[-1]))
