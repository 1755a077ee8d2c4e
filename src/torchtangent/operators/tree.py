"""Walking through the parts of a composed operator."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from torchtangent.operators.space import Place, Space


def fields(node: Any) -> dict[str, Any]:
    """The constructor arguments that an operator or a basis holds."""
    return {field.name: getattr(node, field.name) for field in dataclasses.fields(node)}


def parts(node: Any, kind: type) -> Iterator[Any]:
    """The direct parts of a kind, also those inside tuples and lists."""
    pending = list(fields(node).values())
    while pending:
        value = pending.pop()
        if isinstance(value, kind):
            yield value
        elif isinstance(value, tuple | list):
            pending.extend(value)


def tensors(node: Any) -> Iterator[Tensor]:
    """All tensors that an operator or a basis is made of."""
    pending = [node]
    while pending:
        value = pending.pop()
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            pending.extend(value)
        elif dataclasses.is_dataclass(value) and not isinstance(value, type | Space | Place):
            pending.extend(fields(value).values())


def converted(node: Any, dtype: torch.dtype | None, device: torch.device | None) -> Any:
    """The same composition with every tensor in another dtype or on another device."""
    match node:
        case Tensor():
            return node.to(device=device, dtype=dtype if node.is_floating_point() else None)
        case torch.dtype():
            return dtype or node
        case torch.device():
            return device or node
        case Space() | Place():
            return node
        case tuple() | list():
            return type(node)(converted(item, dtype, device) for item in node)
        case _ if dataclasses.is_dataclass(node) and not isinstance(node, type):
            return type(node)(**{name: converted(value, dtype, device) for name, value in fields(node).items()})
        case _ if callable(node):
            raise ValueError("An operator that is given by a function cannot be converted: the function decides.")
    return node
