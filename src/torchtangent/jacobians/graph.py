"""The graph that autograd keeps behind a result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache

from torch import Tensor
from torch.autograd.graph import Node


def walk(f: Tensor) -> tuple[set[Node], Counter[int]]:
    """All nodes of the graph behind f, and how often it uses each leaf (by id)."""
    counts: Counter[int] = Counter()
    if f.grad_fn is None:
        return set(), counts
    nodes, stack = {f.grad_fn}, [f.grad_fn]
    while stack:
        for node, _ in stack.pop().next_functions:
            if node is None:
                continue
            if hasattr(node, "variable"):
                counts[id(node.variable)] += 1
            elif node not in nodes:
                nodes.add(node)
                stack.append(node)
    return nodes, counts


def saved_bytes(f: Tensor, without: Iterable[Tensor]) -> int:
    """Bytes that the graph behind f has saved for the backward pass, beside some tensors such as parameters."""
    known = {t.data_ptr() for t in without}
    saved = {t.data_ptr(): t.nbytes for node in walk(f)[0] for t in _saved_by(node)}
    return sum(size for address, size in saved.items() if address not in known)


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
