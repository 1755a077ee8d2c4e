"""The operations of autograd's graph in which a parameter takes part.

The known kinds of nodes are in nodes.py. Views of a parameter, copies and products with a number are followed. So are
tensors that the graph computes from a parameter without the samples, such as a normalized weight or rows of a table of
positions: their uses have Jacobians like any other, which are then pulled back to the parameter itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.graph import GradientEdge

from torchtangent.jacobians.factors import LayerJacobian, Lookup, Outer, Scale
from torchtangent.jacobians.graph import Graph, Node, dtype_at, shape_at, shape_of, signed
from torchtangent.jacobians.layout import SHARED
from torchtangent.jacobians.made import Behind
from torchtangent.jacobians.nodes import ROLES, VIEWS, Role
from torchtangent.jacobians.rows import outward
from torchtangent.jacobians.rules import NoRule


@dataclass(frozen=True, eq=False)
class Operation:
    """An operation with parameters: its output, with its axes permuted by `order`, has the shape (rows, width).

    It holds no node of the graph, except those that compute something from a parameter.
    """

    rows: int
    width: int
    roles: dict[str, Role]
    order: tuple[int, ...] = ()

    def filled(self, node: Any) -> Operation:
        """The same with each role's x, as its node saved it. A checkpoint recomputes it, so ask only if needed."""
        roles = {k: replace(role, x=role.read(node).detach()) if role.read else role for k, role in self.roles.items()}
        return replace(self, roles=roles)

    def by_row(self, d: Float[Tensor, "y0 C *y"]) -> Float[Tensor, "rows C K"]:
        """Cotangents of the output, row by row."""
        d = d.movedim(1, 0)
        d = d.permute(0, *(1 + axis for axis in self.order)) if self.order else d
        return d.reshape(len(d), -1, self.width).transpose(0, 1)

    @property
    def made(self) -> int:
        """The size of all tensors computed from parameters that it uses."""
        return sum(shape_at(role.made[0]).numel() for role in self.roles.values() if role.made)

    def factors(self, d: Float[Tensor, "y0 C *y"], n: int, *, inner: bool) -> dict[str, LayerJacobian | Behind]:
        """The Jacobians of its parameters (see `Use.factors`); a tensor computed from several has one for all."""
        if self.rows == 0 or self.rows % n:
            raise NoRule(f"{self.rows} rows for {n} samples")
        rows = self.by_row(d)
        rows = (outward(rows, n) if inner else rows).unsqueeze(2)
        found: dict[str, LayerJacobian | Behind] = {}
        made: dict[GradientEdge, LayerJacobian] = {}
        for name, role in self.roles.items():
            if role.made and role.made[0] in made:
                found[name] = Behind(made[role.made[0]], *role.made)
                continue
            x = role.by_row(self.rows, d.dtype)
            jacobian = role.make(outward(x, n) if inner and x is not None else x, rows)
            jacobian = (jacobian if role.factor == 1 else _times(jacobian, role.factor)).regroup(n)
            found[name] = jacobian
            if role.made:
                found[name] = Behind(made.setdefault(role.made[0], jacobian), *role.made)
        return found


def find_operations(
    graph: Graph, params: Mapping[str, Tensor], strides: Mapping[tuple[Node, int], int] | None = None
) -> tuple[list[tuple[Node, Operation]], set[str]]:
    """All operations in a graph that use some parameters, not yet `filled`; and the parameters with unknown uses.

    An operation may appear twice, if its parameters differ in width or order. Tensors that are computed from a
    parameter without the samples are only recognized if the strides of samples (see layout.py) are given.
    """
    found: dict[tuple[Node, int, tuple[int, ...]], dict[str, Role]] = defaultdict(dict)
    unknown = set()
    for name, p in params.items():
        try:
            roles = list(_Search(graph, p, strides).roles(id(p), [_Made(p.shape)]))
            if _twice(roles) and strides is not None:
                roles = list(_Search(graph, p, strides, views=False).roles(id(p), [_Made(p.shape)]))
            if _twice(roles):
                raise NoRule("twice in one operation")
            if any(not shape_of(node) for node, _ in roles):
                raise NoRule("its result is one number for all samples")
        except _UNKNOWN:
            unknown.add(name)
            continue
        for node, role in roles:
            found[node, role.width, role.order][name] = role
    each = ((node, width, order, roles) for (node, width, order), roles in found.items())
    operations = [
        (node, Operation(shape_of(node).numel() // width, width, roles, order)) for node, width, order, roles in each
    ]
    return operations, unknown


_UNKNOWN = (NoRule, RuntimeError, AttributeError, ZeroDivisionError)  # AttributeError: torch renamed what it saved


class _Made:
    """A view, times a factor, of a parameter or of a tensor computed from it (at `place` in the graph)."""

    def __init__(
        self, shape: torch.Size, view: Tensor | None = None, factor: float = 1.0, place: GradientEdge | None = None
    ) -> None:
        self.shape, self.factor, self.place = shape, factor, place
        # A meta tensor shows the shape, strides and offset of a view as well as the tensor itself would.
        self.view = torch.empty(shape, device="meta") if view is None else view

    def seen(self, views: list[Tensor], factor: float = 1.0) -> list[_Made]:
        """Views of this view, times a further factor."""
        return [_Made(self.shape, view, self.factor * factor, self.place) for view in views]


def _twice(roles: list[tuple[Node, Role]]) -> bool:
    """Whether a node appears more than once."""
    return len({node for node, _ in roles}) < len(roles)


class _Search:
    """The search for all operations in which a parameter takes part.

    Args:
        graph: The graph to search.
        p: The parameter.
        strides: The strides of samples, if they are known.
        views: Whether views are followed as such, or treated as new tensors, like all that is computed from p.
    """

    def __init__(
        self, graph: Graph, p: Tensor, strides: Mapping[tuple[Node, int], int] | None, *, views: bool = True
    ) -> None:
        self.graph, self.p, self.strides, self.views = graph, p, strides, views
        self.begun: set[Node] = set()

    def roles(self, key: Node | int, results: list[_Made]) -> Iterator[tuple[Node, Role]]:
        """The roles in all users of a leaf, or of a node with these results."""
        if not self.graph.users[key]:
            raise NoRule("the output itself")
        for node, argument, result in self.graph.users[key]:
            made = results[result]
            if made.view.numel() == 0:
                raise NoRule("empty")
            try:
                step = self._step(node, argument, made, None if isinstance(key, int) else GradientEdge(key, result))
            except _UNKNOWN:
                if not self._without_samples(node):
                    raise
                if node not in self.begun:  # once is enough: a backward pass from here follows all paths to p
                    self.begun.add(node)
                    yield from self.roles(node, self._results(node))
                continue
            if isinstance(step, Role):
                yield (None if step.order else _product_before(self.graph, node, argument)) or node, step
            else:
                yield from self.roles(node, step)

    def _step(self, node: Node, argument: int, made: _Made, place: GradientEdge | None) -> Role | list[_Made]:
        """What a node does with one of its arguments: the argument's role, or views of it if the result is one."""
        kind, number = type(node).__name__, _number(node, argument, made.view)
        if self.views and number is not None:
            return made.seen([made.view], number)
        if self.views and kind in VIEWS:
            return made.seen(VIEWS[kind](node, made.view))
        if kind not in ROLES or SHARED in self._strides_of(node):
            raise NoRule(kind)
        try:
            return self._role(node, argument, made)
        except _UNKNOWN:
            if place is None or self.strides is None:
                raise
            return self._role(node, argument, _Made(shape_at(place), place=place))  # take the view as a new tensor

    def _role(self, node: Node, argument: int, made: _Made) -> Role:
        kind = self.p.dtype if made.place is None else dtype_at(made.place)
        if dtype_at(GradientEdge(node, 0)).is_complex and not kind.is_complex:
            raise NoRule("a real part is no product")
        role = ROLES[type(node).__name__](node, argument, made.view, made.shape)
        if self._without_samples(node) and shape_of(node).numel() // role.width % self.graph.samples:
            raise NoRule("rows that are no samples'")
        origin = None if made.place is None else (made.place, self.p)
        return replace(role, factor=role.factor * made.factor, made=origin)

    def _strides_of(self, node: Node) -> set[int]:
        """The strides of samples in a node's results; empty if strides are not known."""
        strides = self.strides
        return set() if strides is None else {strides.get((node, i), 0) for i, _ in enumerate(node._input_metadata)}

    def _without_samples(self, node: Node) -> bool:
        """Whether a node's results may be independent of the samples: no stride is known for them."""
        return self.strides is not None and max(self._strides_of(node)) <= 0

    def _results(self, node: Node) -> list[_Made]:
        places = [GradientEdge(node, i) for i, _ in enumerate(node._input_metadata)]
        return [_Made(shape_at(place), place=place) for place in places]


def _number(node: Any, argument: int, view: Tensor) -> float | None:
    """The number by which a node multiplies a view of a parameter, if that is all it does; else None."""
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
    """The Jacobian times a number. Where a weight may share its cotangents with a bias, they stay as they are."""
    if isinstance(jacobian, Outer):
        return jacobian.at(jacobian.a * factor, jacobian.d)
    if isinstance(jacobian, Scale):
        x = jacobian.d.new_ones(()) if jacobian.x is None else jacobian.x
        return replace(jacobian, x=(x * factor).expand(len(jacobian.d), *jacobian.d.shape[2:]))
    assert isinstance(jacobian, Lookup)
    return replace(jacobian, d=jacobian.d * factor)


def _product_before(graph: Graph, node: Any, argument: int) -> Node | None:
    """For a sum x W + b, the node of x W if nothing else uses it: both have the same cotangents, so b joins W there.

    The sum may be inside of a recurrent cell, which has no cotangents of its own for it.
    """
    if type(node).__name__.startswith("ThnnFused"):
        before = node.next_functions[argument - 3][0]
        if type(before).__name__ != "MmBackward0" or len(graph.users[before]) > 1:
            raise NoRule("a gate that is not a product")
        return before
    if type(node).__name__ != "AddBackward0" or node._saved_alpha != 1:
        return None
    before = node.next_functions[1 - argument][0]
    while _keeps_order(before) and len(graph.users[before]) == 1:
        before = before.next_functions[0][0]
    alone = type(before).__name__ in ("MmBackward0", "BmmBackward0") and len(graph.users[before]) == 1
    return before if alone and shape_of(before).numel() == shape_of(node).numel() else None


def _keeps_order(node: Any) -> bool:
    """Whether a node keeps all entries in order: a view, or a permutation that moves only axes of size 1 (einsum's)."""
    if type(node).__name__ != "PermuteBackward0":
        return type(node).__name__ in ("ViewBackward0", "UnsafeViewBackward0")
    shape = shape_of(node)
    moved = [signed(axis) % len(shape) for axis, size in zip(node._saved_dims, shape, strict=True) if size > 1]
    return moved == sorted(moved)
