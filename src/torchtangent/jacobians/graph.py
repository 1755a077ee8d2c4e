"""The graph that autograd keeps behind a result."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.autograd.graph import Node
else:
    Node = object  # scripted models have nodes that torch itself does not count as such


_WITH_INDEX = {f"{name}Backward0" for name in ("Embedding", "Gather", "Index", "IndexAdd", "IndexSelect", "ScatterAdd")}


class User(NamedTuple):
    """A node that uses something: as which of its arguments, and which result of what it uses."""

    node: Node
    argument: int
    result: int


class Graph:
    """All nodes behind f.

    Args:
        f: The result.
        inputs: Tensors behind which nothing is looked at.

    Attributes:
        nodes: Those that are no leaves.
        leaves: Tensors that gradients accumulate in.
        samples: The size of f's first axis.
        users: Who uses a node, or a leaf (by its id).
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
        """Nodes whose result is made of leaves alone: no other tensor, no index, and not once for each sample."""
        others = [node for node in self.nodes if not all(before for before, _ in node.next_functions)]
        others += [node for node in self.nodes if type(node).__name__ in _WITH_INDEX]
        repeats = [node for node in self.nodes if type(node).__name__ in ("ExpandBackward0", "RepeatBackward0")]
        others += [node for node in repeats if shape_of(node)[:1] == (self.samples,)]
        found = self.nodes - set(others)
        while others:
            after = {user.node for user in self.users.get(others.pop(), ())} & found
            found -= after
            others.extend(after)
        return found

    def saved_bytes(self, without: Iterable[Tensor]) -> int:
        """Bytes that were saved for the backward pass, beside some tensors such as parameters."""
        known = {t.data_ptr() for t in without}
        saved = {t.data_ptr(): t.nbytes for node in self.nodes for t in _saved_by(node)}
        return sum(size for address, size in saved.items() if address not in known)


def shape_of(node: Any) -> torch.Size:
    """Of a node's result, the first one."""
    return torch.Size(node._input_metadata[0].shape)


def signed(number: int) -> int:
    """Nodes show negative numbers as those of an unsigned type."""
    return number - (1 << 64) if number >= 1 << 63 else number


def _saved_by(node: Node) -> Iterator[Tensor]:
    for name in _places(type(node)):
        try:
            found = getattr(node, name)
        except RuntimeError:  # overwritten since, which is an error only for those who need it
            continue
        yield from (t for t in (found if isinstance(found, tuple | list) else [found]) if isinstance(t, Tensor))


@cache
def _places(kind: type[Node]) -> tuple[str, ...]:
    """Where a kind of node has what it saved; `saved_tensors` is that of a Function in Python."""
    return tuple(name for name in dir(kind) if name.startswith("_saved_") or name == "saved_tensors")
