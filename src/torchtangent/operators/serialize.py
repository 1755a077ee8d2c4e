"""Operators on disk: one safetensors file whose JSON header says how its tensors are composed.

Nothing is pickled, and nothing but the classes listed here is ever built from a file.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from torchtangent.notice import dtype_name
from torchtangent.operators.base import Operator
from torchtangent.operators.basis import (
    Basis,
    BatchBasis,
    BlockBasis,
    Columns,
    Identity,
    KroneckerBasis,
    PickedBasis,
)
from torchtangent.operators.implicit import ImplicitOperator
from torchtangent.operators.space import Place, Segment, Space
from torchtangent.operators.tree import fields

HEADER = "torchtangent.operator"
VERSION = 1

_PLAIN = (Columns, Identity, KroneckerBasis, BatchBasis, BlockBasis, PickedBasis, Place, Segment, Space)


def save(operator: Operator, path: str | os.PathLike[str]) -> None:
    """Write an operator, its parts and its space."""
    writer = _Writer({}, {})
    tree = writer.encode(operator)
    Path(path).touch()  # with the rights that other files have; safetensors would give them to the owner alone
    rights = Path(path).stat().st_mode
    save_file(writer.tensors, path, metadata={HEADER: json.dumps({"version": VERSION, "tree": tree})})
    Path(path).chmod(rights)


def load(path: str | os.PathLike[str], device: torch.device | str = "cpu") -> Operator:
    """Read an operator that was written by `save`."""
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            header = (file.metadata() or {}).get(HEADER)
            tensors = {} if header is None else {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"'{os.fspath(path)}' is no safetensors file, or not a whole one: {error}") from error
    if header is None:
        raise ValueError(f"'{os.fspath(path)}' is a safetensors file, but not one of an operator.")
    try:
        content = json.loads(header)
        if content["version"] != VERSION:
            raise ValueError(f"it has version {content['version']}, this code reads {VERSION}.")
        operator = _decode(content["tree"], tensors, torch.device(device))
        if not isinstance(operator, Operator):
            raise ValueError(f"it holds a {type(operator).__name__}.")
        return operator.on(operator.space)  # an error if the space is another's
    except (KeyError, TypeError, AttributeError, IndexError, RuntimeError, ValueError) as error:
        what = f"there is no {error}." if isinstance(error, KeyError) else str(error)
        raise ValueError(f"'{os.fspath(path)}' cannot be read as an operator: {what}") from error


@dataclasses.dataclass
class _Writer:
    """Collects tensors under a number each; one that occurs twice is stored once."""

    tensors: dict[str, Tensor]
    seen: dict[int, str]

    def encode(self, value: Any) -> Any:
        """A value as JSON, with references to tensors."""
        match value:
            case None | bool() | int() | float() | str():
                return value
            case Tensor():
                return {"tensor": self._store(value)}
            case torch.dtype():
                return {"dtype": dtype_name(value)}
            case torch.device():
                return {"device": None}
            case torch.Size():
                return {"size": list(value)}
            case tuple() | list():
                return [self.encode(item) for item in value]
            case ImplicitOperator():
                raise ValueError(
                    f"{value!r} is a function and cannot be saved. Save DenseOperator(operator.dense()), or "
                    "another representation of the same matrix."
                )
            case Operator() | Basis() | Place() | Segment() | Space():
                return {
                    "type": type(value).__name__,
                    "fields": {name: self.encode(part) for name, part in fields(value).items()},
                }
        raise ValueError(f"Cannot save a {type(value).__name__} as part of an operator.")

    def _store(self, tensor: Tensor) -> str:
        if id(tensor) not in self.seen:
            key = str(len(self.seen))
            self.seen[id(tensor)] = key
            # A copy of its own memory: views that share it are refused by the format.
            self.tensors[key] = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        return self.seen[id(tensor)]


def _decode(tree: Any, tensors: dict[str, Tensor], device: torch.device) -> Any:
    """The value that `_Writer.encode` turned into JSON."""
    match tree:
        case list():
            return tuple(_decode(item, tensors, device) for item in tree)
        case {"tensor": key}:
            return tensors[key]
        case {"dtype": name}:
            return torch.empty(0, dtype=getattr(torch, name)).dtype
        case {"device": _}:
            return device
        case {"size": sizes}:
            return torch.Size(sizes)
        case {"type": name, "fields": parts}:
            known = Operator.registry | {cls.__name__: cls for cls in _PLAIN}
            if name not in known:
                raise ValueError(f"The file names an unknown part '{name}': it may come from a newer version.")
            return known[name](**{key: _decode(value, tensors, device) for key, value in parts.items()})
    return tree
