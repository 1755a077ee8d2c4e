"""Operations of autograd's graph that a parameter takes part in.

The kinds of nodes that are known are in nodes.py; views of a parameter, copies of them and products with a number are
followed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.jacobians.factors import LayerJacobian, Lookup, Outer, Scale
from torchtangent.jacobians.graph import Graph, Node, shape_of, signed
from torchtangent.jacobians.nodes import ROLES, VIEWS, Role
from torchtangent.jacobians.rows import outward
from torchtangent.jacobians.rules import NoRule


@dataclass(frozen=True, eq=False)
class Operation:
    """What an operation does with parameters: its output is `rows` of a `width`. It knows no node of the graph."""

    rows: int
    width: int
    roles: dict[str, Role]

    def filled(self, node: Any) -> Operation:
        """The same with what its node saved. A checkpoint computes that again, so only a backward pass should ask."""
        roles = {k: replace(role, x=role.read(node).detach()) if role.read else role for k, role in self.roles.items()}
        return replace(self, roles=roles)

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
        for name, role in self.roles.items():
            x = role.by_row(self.rows, d.dtype)
            jacobian = role.make(outward(x, n) if inner and x is not None else x, rows)
            found[name] = (jacobian if role.factor == 1 else _times(jacobian, role.factor)).regroup(n)
        return found


def find_operations(graph: Graph, params: Mapping[str, Tensor]) -> tuple[list[tuple[Node, Operation]], set[str]]:
    """All uses of some parameters in a graph, still without what they meet, and those that have others than are known.

    An operation may be there twice, once for each width of what it does.
    """
    found: dict[tuple[Node, int], dict[str, Role]] = defaultdict(dict)
    unknown = set()
    for name, p in params.items():
        stand_in = torch.empty(p.shape, device="meta")  # as good as p itself, to see what a view of it is
        try:
            roles = list(_roles(graph, id(p), [stand_in], p.shape))
            if len({node for node, _ in roles}) < len(roles):
                raise NoRule("twice in one operation")
            if any(not shape_of(node) for node, _ in roles):
                raise NoRule("its result is one number for all samples")
        except (NoRule, RuntimeError, AttributeError, ZeroDivisionError):  # also: what was saved has another name
            unknown.add(name)
            continue
        for node, role in roles:
            found[node, role.width][name] = role
    each = ((node, width, roles) for (node, width), roles in found.items())
    return [(node, Operation(shape_of(node).numel() // width, width, roles)) for node, width, roles in each], unknown


def _roles(
    graph: Graph, key: Node | int, views: list[Tensor], shape: torch.Size, factor: float = 1.0
) -> Iterator[tuple[Node, Role]]:
    """The operations behind a parameter, also behind views of it; `views`, times `factor`, are the results of `key`."""
    for node, argument, result in graph.users[key]:
        kind, view = type(node).__name__, views[result]
        if view.numel() == 0:
            raise NoRule("empty")
        number = _number(node, argument, view)
        if number is not None:
            yield from _roles(graph, node, [view], shape, factor * number)
        elif kind in VIEWS:
            yield from _roles(graph, node, VIEWS[kind](node, view), shape, factor)
        elif kind in ROLES:
            role = replace(ROLES[kind](node, argument, view, shape), factor=factor)
            yield _product_before(graph, node, argument) or node, role
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
