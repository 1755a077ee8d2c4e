"""The uses of a parameter: in a layer that has a rule, or in an operation of autograd's graph.

Hooks record the layers. Uses outside of them (the projections of attention, class tokens, positions, the steps of an
LSTM, a table that is also used as a matrix) are in the graph: the operation, and the tensor that it saved. Either way a
use says where cotangents are pulled back to, and what the Jacobian is, given these cotangents. What is read off the
graph is checked like everything else (see verify.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from torchtangent.jacobians.factors import LayerJacobian
from torchtangent.jacobians.graph import Graph, Node, shape_of
from torchtangent.jacobians.inputs import wide
from torchtangent.jacobians.layout import inner_axis, reordered
from torchtangent.jacobians.made import Behind
from torchtangent.jacobians.operations import Operation, find_operations
from torchtangent.jacobians.rows import outward
from torchtangent.jacobians.rules import NoRule, factors_of, row_axes


@dataclass(frozen=True, eq=False)
class Use(ABC):
    """One use of parameters: the input that they act on, and the place of the output in the graph and its shape."""

    x: Tensor
    edge: GradientEdge
    shape: torch.Size

    @property
    @abstractmethod
    def params(self) -> tuple[str, ...]:
        """The names of the chosen parameters that are used."""

    @property
    @abstractmethod
    def key(self) -> object:
        """Identifies what is used, to recognize the same use in another batch."""

    @property
    @abstractmethod
    def rows(self) -> int:
        """How many times the parameters are used, for all samples together."""

    @property
    @abstractmethod
    def order(self) -> tuple[int, ...]:
        """The axes of the output in the order in which its rows are read; () as they are."""

    def inner(self, stride: int, n: int) -> bool | None:
        """Whether samples with this stride are the inner axis of the rows (False: the outer one, None: neither)."""
        stride = reordered(stride, self.shape, self.order, n) if self.order else stride
        return inner_axis(stride, self.shape.numel(), self.rows, n)

    @abstractmethod
    def by_row(self, d: Float[Tensor, "y0 C *y"]) -> Float[Tensor, "rows C K"]:
        """Cotangents of the output, row by row."""

    @abstractmethod
    def factors(self, d: Float[Tensor, "y0 C *y"], n: int, *, inner: bool) -> Mapping[str, LayerJacobian | Behind]:
        """The Jacobians of its parameters for cotangents of its output and n samples.

        Of n·k rows, k consecutive ones belong to a sample or, if samples are the `inner` axis, every n-th one.
        """


@dataclass(frozen=True, eq=False)
class LayerUse(Use):
    """One call of a layer that has a rule.

    Attributes:
        names: attribute → parameter name, for the chosen parameters.
        axes: How many leading axes of the output are rows.
    """

    module: nn.Module
    names: dict[str, str]
    axes: int = 1

    @property
    def params(self) -> tuple[str, ...]:
        return tuple(self.names.values())

    @property
    def key(self) -> object:
        return id(self.module)

    @property
    def rows(self) -> int:
        return self.shape[: self.axes].numel()

    @property
    def order(self) -> tuple[int, ...]:
        return ()

    def without(self, names: Set[str]) -> LayerUse:
        """The same use without some parameters."""
        return replace(self, names={a: name for a, name in self.names.items() if name not in names})

    def of_samples(self, n: int) -> LayerUse:
        """The same use in a batch of n samples; if the first axis may not be theirs, all leading axes are rows."""
        first = self.shape[0] == n and self.shape[1:2] != (n,)
        return self if first else replace(self, axes=row_axes(self.module, len(self.shape)))

    def by_row(self, d: Float[Tensor, "y0 C *y"]) -> Float[Tensor, "rows C K"]:
        d = self._rows(d)
        return d.flatten(2) if d.dim() > 2 else d.unsqueeze(2)

    def _rows(self, d: Float[Tensor, "y0 C *y"]) -> Float[Tensor, "rows C *row"]:
        return d.movedim(1, self.axes).flatten(0, self.axes - 1)

    def factors(self, d: Float[Tensor, "y0 C *y"], n: int, *, inner: bool) -> Mapping[str, LayerJacobian | Behind]:
        rows = self.rows
        if self.x.shape[: self.axes].numel() != rows or self.x.dim() < self.axes or rows == 0 or rows % n:
            raise NoRule(f"{rows} rows for {n} samples")
        x, d = self.x.flatten(0, self.axes - 1), self._rows(d)
        if inner:
            x, d = outward(x, n), outward(d, n)
        by_attribute = factors_of(self.module, wide(x), d)
        jacobians = {self.names[a]: jacobian for a, jacobian in by_attribute.items() if a in self.names}
        return jacobians if rows == n else {name: jacobian.regroup(n) for name, jacobian in jacobians.items()}


@dataclass(frozen=True, eq=False)
class GraphUse(Use):
    """One operation of the graph."""

    of: Operation

    @property
    def params(self) -> tuple[str, ...]:
        return tuple(self.of.roles)

    @property
    def key(self) -> object:
        return self.params

    @property
    def rows(self) -> int:
        return self.of.rows

    @property
    def order(self) -> tuple[int, ...]:
        return self.of.order

    def by_row(self, d: Float[Tensor, "y0 C *y"]) -> Float[Tensor, "rows C K"]:
        return self.of.by_row(d)

    def factors(self, d: Float[Tensor, "y0 C *y"], n: int, *, inner: bool) -> Mapping[str, LayerJacobian | Behind]:
        return self.of.factors(d, n, inner=inner)


def read_graph(
    graph: Graph, params: Mapping[str, Tensor], strides: Mapping[tuple[Node, int], int]
) -> tuple[list[GraphUse], set[str]]:
    """All uses of some parameters in a graph, and the parameters with unknown uses."""
    operations, unknown = find_operations(graph, params, strides)
    filled = []
    for node, operation in operations:
        try:
            filled.append((node, operation.filled(node)))
        except (RuntimeError, AttributeError):  # what was saved was overwritten, or torch renamed it
            unknown.update(operation.roles)
    uses = []
    for node, operation in filled:
        known = replace(operation, roles={k: role for k, role in operation.roles.items() if k not in unknown})
        x = next((role.x for role in known.roles.values() if role.x is not None), torch.empty(0, device="cpu"))
        uses.append(GraphUse(x, GradientEdge(node, 0), shape_of(node), known))
    return [use for use in uses if use.params], unknown
