"""The graph that autograd keeps behind a result."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator
from functools import cache, cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

if TYPE_CHECKING:
    from torch.autograd.graph import Node
else:
    Node = object  # the nodes of scripted models are not instances of torch's Node


_WITH_INDEX = {f"{name}Backward0" for name in ("Embedding", "Gather", "Index", "IndexAdd", "IndexSelect", "ScatterAdd")}
_TABLES = ("EmbeddingBackward0", "EmbeddingBagBackward0")


class User(NamedTuple):
    """A node that uses a result of another: `result` is its number there, `argument` its position here."""

    node: Node
    argument: int
    result: int


class Graph:
    """All nodes that f was computed by.

    Args:
        f: The result.
        inputs: Tensors at which the search stops.

    Attributes:
        nodes: All nodes except leaves.
        leaves: The tensors that gradients accumulate in.
        samples: The size of f's first axis.
        users: The users of each node, or of each leaf (by its id).
    """

    def __init__(self, f: Tensor, inputs: Iterable[Tensor] = ()) -> None:
        ends = {t.grad_fn for t in inputs}
        self.samples = f.shape[:1].numel()
        self.nodes: set[Node] = set()
        self.leaves: list[Tensor] = []
        self.users: dict[Node | int, list[User]] = defaultdict(list)
        stack = [] if f.grad_fn is None else [f.grad_fn]
        self.nodes.update(stack)
        while stack:
            user = stack.pop()
            for argument, (node, result) in enumerate(user.next_functions):
                if node is None:
                    continue
                leaf = getattr(node, "variable", None) if type(node).__name__ == "AccumulateGrad" else None
                if leaf is not None and id(leaf) not in self.users:
                    self.leaves.append(leaf)
                self.users[node if leaf is None else id(leaf)].append(User(user, argument, result))
                if leaf is None and node not in self.nodes and node not in ends:
                    self.nodes.add(node)
                    stack.append(node)

    @cached_property
    def of_leaves(self) -> set[Node]:
        """Nodes whose result depends on leaves alone: no other tensor, no index, and no repetition for each sample."""
        others = [node for node in self.nodes if not all(before for before, _ in node.next_functions)]
        others += [node for node in self.nodes if type(node).__name__ in _WITH_INDEX]
        repeats = [node for node in self.nodes if type(node).__name__ in ("ExpandBackward0", "RepeatBackward0")]
        others += [node for node in repeats if shape_of(node)[:1] == (self.samples,)]
        alone = self.nodes - set(others)
        while others:
            after = {user.node for user in self.users.get(others.pop(), ())} & alone
            alone -= after
            others.extend(after)
        return alone

    def saved_bytes(self, without: Iterable[Tensor]) -> int:
        """Bytes saved for the backward pass, not counting some tensors such as parameters."""
        known = {t.data_ptr() for t in _plain(without)}
        saved = {t.data_ptr(): t.nbytes for node in self.nodes for t in _plain(_saved_by(node))}
        return sum(size for address, size in saved.items() if address not in known)


def kinds_in(graph: Graph) -> set[torch.dtype]:
    """The floating-point dtypes of all results in a graph."""
    return {m.dtype for node in graph.nodes for m in node._input_metadata if m.dtype.is_floating_point}


def padding_rows(graph: Graph, chosen: Container[int]) -> bool:
    """Whether a table has a padding row and is a chosen parameter (by its id), or computed from some."""
    for node in graph.nodes:
        if type(node).__name__ in _TABLES and signed(node._saved_padding_idx) >= 0:  # type: ignore[attr-defined]
            leaf = getattr(node.next_functions[0][0], "variable", None)
            if leaf is None or id(leaf) in chosen:
                return True
    return False


def shape_at(place: GradientEdge) -> torch.Size:
    """The shape of the tensor at a place in the graph."""
    return torch.Size(place.node._input_metadata[place.output_nr].shape)


def dtype_at(place: GradientEdge) -> torch.dtype:
    """The dtype of the tensor at a place in the graph."""
    return place.node._input_metadata[place.output_nr].dtype


def shape_of(node: Node) -> torch.Size:
    """The shape of a node's first result."""
    return shape_at(GradientEdge(node, 0))


def signed(number: int) -> int:
    """A number saved by a node, with its sign: nodes show negative ones as unsigned."""
    return number - (1 << 64) if number >= 1 << 63 else number


def _plain(tensors: Iterable[Tensor]) -> Iterator[Tensor]:
    """All but sparse tensors, which have no place in memory of their own."""
    return (t for t in tensors if t.layout == torch.strided)


def _saved_by(node: Node) -> Iterator[Tensor]:
    """The tensors that a node saved for the backward pass."""
    for name in _saved_names(type(node)):
        try:
            saved = getattr(node, name)
        except RuntimeError:  # overwritten in place since: an error only if it is needed
            continue
        yield from (t for t in (saved if isinstance(saved, tuple | list) else [saved]) if isinstance(t, Tensor))


@cache
def _saved_names(kind: type[Node]) -> tuple[str, ...]:
    """The attributes in which a kind of node has what it saved; custom Functions have `saved_tensors`."""
    return tuple(name for name in dir(kind) if name.startswith("_saved_") or name == "saved_tensors")
