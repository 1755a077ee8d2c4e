"""Where the samples are in the tensors of a graph, as far as its operations determine it.

Entry i of a tensor, in row-major order, belongs to sample (i // stride) % n. For the outputs (N, *out) the stride is
the size of one output; for (T, N, features), with tokens first, it is the number of features. Starting from the outputs
and going backward, a rule for each operation says which axis of its argument holds the samples, given that axis of its
result. There are rules only for operations that never move an entry along that axis, whatever the data. Before any
other operation samples may be anywhere, and have to be found by trial (see rows.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from math import prod
from typing import Any

from torch import Tensor

from torchtangent.jacobians.graph import Graph, Node, signed

Shape = Sequence[int]
Rule = Callable[[Any, int, int, Shape, Shape], int | None]

SHARED = -1  # instead of a stride: all samples share the entries, as with positions that are added to each of them


def find_strides(f: Tensor, graph: Graph, shared: Set[tuple[Node, int]] = frozenset()) -> dict[tuple[Node, int], int]:
    """For each result of each node that f (N, ...) depends on: the stride of samples, `SHARED`, or 0 if unknown.

    Entries that no output depends on may be assigned to any sample. What depends on leaves alone is shared.
    """
    n, root = len(f), f.grad_fn
    found = {} if root is None else {(root, f.output_nr): f.numel() // n}
    ready = [] if root is None else [root]
    users = {node: len(graph.users[node]) for node in graph.nodes}
    while ready:
        node = ready.pop()
        rule = _RULES.get(type(node).__name__)
        results = [(m.shape, found[node, i]) for i, m in enumerate(node._input_metadata) if (node, i) in found]
        for argument, (before, result) in enumerate(node.next_functions):
            if before not in users:  # a leaf
                continue
            place, shape = (before, result), before._input_metadata[result].shape
            strides = {_step(rule, node, argument, shape, after, stride, n) for after, stride in results}
            strides.update([found[place]] if place in found else [])
            found[place] = strides.pop() if len(strides) == 1 else 0
            if found[place] == 0 and n > 1 and before in graph.of_leaves:
                found[place] = SHARED
            if place in shared:
                found[place] = SHARED
            users[before] -= 1
            if users[before] == 0:
                ready.append(before)
    return found


def inner_axis(stride: int, size: int, rows: int, n: int) -> bool | None:
    """Whether n samples with a stride are the inner axis of a tensor's rows (True), the outer one (False), or neither.

    >>> inner_axis(5, 60, rows=12, n=3), inner_axis(20, 60, rows=12, n=3), inner_axis(10, 60, rows=12, n=3)
    (True, False, None)
    """
    if n == 1 or stride * n == size:
        return False
    return True if stride * rows == size else None


def _step(rule: Rule | None, node: Node, argument: int, before: Shape, after: Shape, stride: int, n: int) -> int:
    """The stride in an argument, given that in a result. What a shared result depends on is shared as well."""
    if stride == SHARED:
        return SHARED
    if rule is None or stride == 0:
        return 0
    if rule is _view or (rule is _each and before == after):
        return stride
    axis, together = _locate(after, stride, n)
    if axis is None:
        return 0
    try:
        own = rule(node, argument, axis, before, after)
    except AttributeError:  # this version of torch uses another name for what was saved
        return 0
    if own is not None and (own < 0 or (rule is _each and before[own] == 1 != after[axis])):
        return SHARED
    if own is None or own >= len(before) or before[own] != after[axis]:
        return 0
    return together * prod(before[own + 1 :])


def _locate(shape: Shape, stride: int, n: int) -> tuple[int | None, int]:
    """The axis that holds the samples (None if it is not a single one), and how many consecutive entries each has."""
    inner = 1
    for axis in reversed(range(len(shape))):
        outer = inner * shape[axis]
        if stride < outer:
            return (axis if stride % inner == 0 and outer % (stride * n) == 0 else None), stride // inner
        inner = outer
    return None, 0


def reordered(stride: int, shape: Shape, order: Sequence[int], n: int) -> int:
    """The stride of samples after a permutation of the axes; 0 if it is unknown."""
    axis, together = _locate(shape, stride, n) if stride > 0 else (None, 0)
    return 0 if axis is None else together * prod(shape[i] for i in order[order.index(axis) + 1 :])


# A rule returns the axis of an argument that an axis of the result is made from, entry by entry; None if there is none,
# and a negative number if all entries along the result's axis depend on the argument in the same way.


def _view(node: Any, argument: int, axis: int, before: Shape, after: Shape) -> None:
    """The same entries in the same order: the stride stays."""


def _each(node: Any, argument: int, axis: int, before: Shape, after: Shape) -> int:
    """Entry by entry, with broadcasting: leading axes may be missing, and a repeated axis has another size."""
    return axis - (len(after) - len(before))


def _same(node: Any, argument: int, axis: int, before: Shape, after: Shape) -> int:
    """The same axes; one may have fewer or more entries, or a last one be added."""
    return axis


def _first(node: Any, argument: int, axis: int, before: Shape, after: Shape) -> int | None:
    """Each entry of the first axis is treated on its own, with the same weights."""
    return -min(argument, 1) if axis == 0 else None


def _firsts(node: Any, argument: int, axis: int, before: Shape, after: Shape) -> int | None:
    """The same for three arguments (queries, keys, values; or gates and state of a cell); a mask or bias is added."""
    return (0 if argument < 3 else _each(node, argument, axis, before, after)) if axis == 0 else None


def _leading(node: Any, argument: int, axis: int, before: Shape, after: Shape) -> int | None:
    """Normalized over the last axes, with the same weights along all others."""
    if axis >= len(after) - len(node._saved_normalized_shape):
        return None
    return axis if argument == 0 else -1


def _batch_norm(node: Any, argument: int, axis: int, before: Shape, after: Shape) -> int | None:
    """Channels or, with running statistics instead of those of the batch, any axis."""
    if argument > 0:
        return None if axis == 1 else -1
    return axis if axis == 1 or not node._saved_training else None


def _product(node: Any, argument: int, axis: int, before: Shape, after: Shape) -> int | None:
    """Rows of the first matrix, columns of the second, or the batch axis of both."""
    return axis if axis in ((0, len(after) - 2) if argument == 0 else (len(after) - 3, len(after) - 1)) else None


def _added_product(node: Any, argument: int, axis: int, before: Shape, after: Shape) -> int | None:
    """A tensor plus a matrix product."""
    rule = _product if argument else _each
    return rule(node, argument - 1, axis, before, after)


def _vector_product(node: Any, argument: int, axis: int, before: Shape, after: Shape) -> int | None:
    """A matrix times a vector."""
    return axis if argument == 0 else None


def _along(node: Any, argument: int, axis: int, before: Shape, after: Shape) -> int | None:
    """Operations along some axes that keep the others."""
    return None if axis in _axes(node, len(before)) else axis


def _reduced(node: Any, argument: int, axis: int, before: Shape, after: Shape) -> int:
    """Reductions: some axes are gone, or have one entry."""
    if node._saved_keepdim:
        return axis
    gone = _axes(node, len(before))
    return [i for i in range(len(before)) if i not in gone][axis]


def _part(node: Any, argument: int, axis: int, before: Shape, after: Shape) -> int:
    """One place along an axis, which is then gone."""
    (gone,) = _axes(node, len(before))
    return axis + (axis >= gone)


def _stack(node: Any, argument: int, axis: int, before: Shape, after: Shape) -> int | None:
    (new,) = _axes(node, len(after))
    return None if axis == new else axis - (axis > new)


def _moved(node: Any, argument: int, axis: int, before: Shape, after: Shape) -> int:
    return signed(node._saved_dims[axis]) % len(before)


def _swapped(node: Any, argument: int, axis: int, before: Shape, after: Shape) -> int:
    a, b = (signed(axis) % len(before) for axis in (node._saved_dim0, node._saved_dim1))
    return {a: b, b: a}.get(axis, axis)


def _transposed(node: Any, argument: int, axis: int, before: Shape, after: Shape) -> int:
    return len(before) - 1 - axis


def _padded(node: Any, argument: int, axis: int, before: Shape, after: Shape) -> int | None:
    """Padding, given from the last axis to the first, for both ends; only axes that it leaves alone are known."""
    return None if any(node._saved_pad[2 * (len(before) - 1 - axis) :][:2]) else axis


def _axes(node: Any, dims: int) -> set[int]:
    """The axes that a node works along; all of them if it was given none."""
    saved = node._saved_dims if hasattr(node, "_saved_dims") else node._saved_dim
    given = saved if isinstance(saved, tuple) else () if saved is None else (saved,)
    return {signed(axis) % dims for axis in given} or set(range(dims))


def _named(rule: Rule, names: str, numbers: Sequence[int] = (0,)) -> dict[str, Rule]:
    """One rule for several operations; torch numbers the variants of each."""
    return {f"{name}Backward{number}": rule for name in names.split() for number in numbers}


_RULES: dict[str, Rule] = {
    **_named(_view, "Alias ReshapeAlias UnsafeView View"),
    **_named(_view, "Squeeze Unsqueeze", range(6)),
    **_named(
        _each,
        "Abs Acos Acosh Add Addcdiv Addcmul Angle Asin Asinh Atan Atan2 Atanh BinaryCrossEntropy "
        "BinaryCrossEntropyWithLogits Ceil Celu Clamp ClampMax ClampMin Clone Complex Conj Copysign Cos Cosh Div Elu "
        "Erf Erfc Erfinv Exp Exp2 Expand Expm1 Floor Fmax Fmin Fmod Gelu Hardshrink Hardsigmoid Hardswish Hardtanh "
        "HuberLoss Hypot LeakyRelu Lerp Lgamma Log Log10 Log1P Log2 LogSigmoid Logaddexp Logaddexp2 Logit MaskedFill "
        "Maximum Minimum Mish MseLoss Mul NanToNum NativeDropout Neg Pow PreluKernel Reciprocal Relu Remainder Repeat "
        "Round RreluWithNoise Rsqrt Rsub Sgn Sigmoid Sign Silu Sin Sinc Sinh SmoothL1Loss SoftMarginLoss Softplus "
        "Softshrink Sqrt Sub Tan Tanh Threshold ToCopy Tril Triu Trunc Where Xlogy",
        range(4),
    ),
    **_named(_same, "Slice ViewAsComplex ViewAsReal"),
    **_named(
        _first,
        "AdaptiveAvgPool2D AdaptiveAvgPool3D AdaptiveMaxPool2D AdaptiveMaxPool3D AvgPool2D AvgPool3D ChannelShuffle "
        "Col2Im Convolution Im2Col MaxPool2DWithIndices MaxPool3DWithIndices MultiMarginLoss MultilabelMarginLoss "
        "NativeGroupNorm NllLoss NllLoss2D PixelShuffle PixelUnshuffle ReflectionPad1D ReflectionPad2D ReflectionPad3D "
        "ReplicationPad1D ReplicationPad2D ReplicationPad3D UpsampleBicubic2D UpsampleBilinear2D UpsampleLinear1D "
        "UpsampleNearest1D UpsampleNearest2D UpsampleNearest3D UpsampleNearestExact1D UpsampleNearestExact2D "
        "UpsampleNearestExact3D UpsampleTrilinear3D",
    ),
    **_named(
        _firsts,
        "ScaledDotProductCudnnAttention ScaledDotProductEfficientAttention ScaledDotProductFlashAttention "
        "ScaledDotProductFlashAttentionForCpu ThnnFusedGruCell ThnnFusedLstmCell",
    ),
    **_named(_leading, "NativeLayerNorm FusedRmsNorm"),
    **_named(_batch_norm, "NativeBatchNorm CudnnBatchNorm"),
    **_named(_product, "Mm Bmm"),
    **_named(_added_product, "Addmm Baddbmm"),
    **_named(_vector_product, "Mv"),
    **_named(
        _along,
        "Cat Cumprod Cumsum FftC2C FftC2R FftR2C Flip Gather Glu IndexSelect LogSoftmax Logcumsumexp Roll SafeSoftmax "
        "Softmax Sort Split SplitWithSizes Topk UnsafeSplit UnsafeSplitWithSizes",
    ),
    **_named(_reduced, "Amax Amin LinalgVectorNorm Logsumexp Max Min Std StdMean Var VarMean"),
    **_named(_reduced, "Mean Median Norm Prod Sum", (1,)),
    **_named(_part, "Select Unbind"),
    **_named(_stack, "Stack"),
    **_named(_moved, "Permute"),
    **_named(_swapped, "Transpose", range(2)),
    **_named(_transposed, "T", range(2)),
    **_named(_padded, "ConstantPadNd"),
}
