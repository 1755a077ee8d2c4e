"""The layout of parameter space: how dictionaries and lists of tensors become one flat vector.

`Space` knows the names and shapes of all parameters; `Place` says where one block of an operator
lives in the flat vector, for instance the weight and bias of a layer side by side as [W b].
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

Vector = Tensor | dict[str, Tensor] | list[Tensor] | tuple[Tensor, ...]
"""A vector of parameter space: flat (P,), a matrix of columns (P, K), or one tensor per parameter."""

Restore = Callable[[Tensor], Any]
"""Turns a (P, K) result back into the format in which the vector was given."""


@dataclass(frozen=True)
class Space:
    """Names and shapes of the parameters, in the order in which they are concatenated.

    Example:
        >>> import torch
        >>> space = Space.of({"weight": torch.zeros(2, 3), "bias": torch.zeros(2)})
        >>> space.size, space.offsets
        (8, {'weight': 0, 'bias': 6})
        >>> columns, restore = space.flatten({"weight": torch.ones(2, 3), "bias": torch.zeros(2)})
        >>> columns.shape, restore(2 * columns)["bias"]
        (torch.Size([8, 1]), tensor([0., 0.]))
    """

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @classmethod
    def of(cls, params: Mapping[str, Tensor]) -> Space:
        """The space of named parameters, in the order of the mapping."""
        return cls(tuple(params), tuple(p.shape for p in params.values()))

    @cached_property
    def size(self) -> int:
        """The number of parameters P."""
        return sum(shape.numel() for shape in self.shapes)

    @cached_property
    def offsets(self) -> dict[str, int]:
        """Where each parameter starts in the flat vector."""
        starts, start = {}, 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            starts[name] = start
            start += shape.numel()
        return starts

    def names_in(self, place: Place) -> list[str]:
        """The names of the parameters in a block."""
        starts = [segment.start for segment in place.segments]
        ends = [start + shape.numel() for start, shape in zip(self.offsets.values(), self.shapes, strict=True)]
        return list(dict.fromkeys(self.names[bisect_right(ends, start)] for start in starts))

    def flatten(self, v: Vector) -> tuple[Float[Tensor, "P K"], Restore]:
        """A vector as columns (P, K), and the function that brings a result back to its format."""
        if isinstance(v, Tensor):
            return tensor_columns(v, self.size)
        if isinstance(v, Mapping):
            self._check_names(v)
            return self._concatenate([v[name] for name in self.names]), self._to_dict
        check_kind(v)
        if len(v) != len(self.names):
            raise ValueError(f"A list vector needs one tensor per parameter: expected {len(self.names)}, got {len(v)}.")
        return self._concatenate(v), lambda out: type(v)(self.split(out[:, 0]).values())

    def split(self, flat: Float[Tensor, " P"]) -> dict[str, Tensor]:
        """A flat vector as one tensor per parameter (views, if it is contiguous)."""
        if flat.shape != (self.size,):
            raise ValueError(f"Expected a flat vector of {self.size} parameters, got {tuple(flat.shape)}.")
        pieces = flat.split([shape.numel() for shape in self.shapes])
        return {name: piece.reshape(shape) for name, piece, shape in zip(self.names, pieces, self.shapes, strict=True)}

    def _to_dict(self, out: Float[Tensor, "P 1"]) -> dict[str, Tensor]:
        return self.split(out[:, 0])

    def _check_names(self, v: Mapping[str, Tensor]) -> None:
        missing = [name for name in self.names if name not in v]
        unknown = [name for name in v if name not in self.offsets]
        if missing or unknown:
            hint = "" if missing else " dict(model.named_parameters()) has no others."
            raise ValueError(
                f"The keys of a dict vector must be the parameters' names: missing {missing}, unknown {unknown}.{hint}"
            )

    def _concatenate(self, tensors: Sequence[Tensor]) -> Float[Tensor, "P 1"]:
        for name, shape, tensor in zip(self.names, self.shapes, tensors, strict=True):
            if tensor.shape != shape:
                raise ValueError(f"Parameter '{name}': expected shape {tuple(shape)}, got {tuple(tensor.shape)}.")
        return torch.cat([tensor.reshape(-1, 1) for tensor in tensors])


def check_kind(v: object) -> None:
    """Refuse what is no kind of vector, and say what makes it one."""
    if not isinstance(v, Tensor | Mapping | list | tuple):
        raise TypeError(
            f"A vector is a flat tensor, a dict of tensors by parameter name or a list of tensors, got "
            f"{type(v).__name__}.{_remedy(v)}"
        )


def tensor_columns(v: Tensor, size: int) -> tuple[Float[Tensor, "P K"], Restore]:
    """A flat tensor (P,) or a matrix (P, K) as columns, and the function that restores its format."""
    if v.ndim not in (1, 2) or v.shape[0] != size:
        raise ValueError(f"Expected a tensor of shape ({size},) or ({size}, K), got {tuple(v.shape)}.")
    if v.ndim == 2:
        return v, lambda out: out
    return v.unsqueeze(1), lambda out: out.squeeze(1)


@dataclass(frozen=True)
class Segment:
    """A stretch of the flat vector that is read as a matrix.

    The stretch starts at `start`, is reshaped to `shape` and permuted by `order`; all axes but the
    first are then flattened, which gives (rows, cols).
    """

    start: int
    shape: tuple[int, ...]
    order: tuple[int, ...]

    @cached_property
    def numel(self) -> int:
        """The number of entries."""
        return math.prod(self.shape)

    @cached_property
    def rows(self) -> int:
        """The length of the row axis, `shape[order[0]]`."""
        return self.shape[self.order[0]]

    @cached_property
    def cols(self) -> int:
        """The product of the other axes."""
        return self.numel // self.rows if self.rows else 0

    @cached_property
    def in_order(self) -> bool:
        """Whether nothing is permuted."""
        return self.order == tuple(range(len(self.shape)))

    def view(self, V: Shaped[Tensor, "P K"]) -> Shaped[Tensor, "rows *cols K"]:
        """A view of the stretch in V, permuted, with the columns of V last; (rows, cols, K) if nothing is permuted."""
        stretch = V[self.start : self.start + self.numel]
        if self.in_order:
            return stretch.view(self.rows, self.cols, V.shape[1])
        return stretch.view(*self.shape, V.shape[1]).permute(*self.order, len(self.shape))


@dataclass(frozen=True)
class Place:
    """Where a block lives in the flat vector: segments side by side, all with the same rows.

    Example:
        The block [W b] of a layer with W (2, 3) at offset 0 and b (2,) at offset 6:

        >>> import torch
        >>> place = Place((Segment(0, (2, 3), (0, 1)), Segment(6, (2, 1), (0, 1))))
        >>> place.gather(torch.arange(8)[:, None]).view(place.rows, place.cols)
        tensor([[0, 1, 2, 6],
                [3, 4, 5, 7]])
    """

    segments: tuple[Segment, ...]

    def __post_init__(self) -> None:
        rows = {segment.rows for segment in self.segments}
        if len(rows) != 1:
            raise ValueError(f"All segments of a place must have the same rows, got {sorted(rows)}.")

    @classmethod
    def flat(cls, start: int, numel: int) -> Place:
        """A stretch of the flat vector as a single row."""
        return cls((Segment(start, (1, numel), (0, 1)),))

    @cached_property
    def rows(self) -> int:
        """The rows that all segments share."""
        return self.segments[0].rows

    @cached_property
    def cols(self) -> int:
        """The columns of all segments together."""
        return sum(self._widths)

    @cached_property
    def _widths(self) -> list[int]:
        return [segment.cols for segment in self.segments]

    @cached_property
    def size(self) -> int:
        """The number of entries, rows × cols."""
        return self.rows * self.cols

    @cached_property
    def in_order(self) -> bool:
        """Whether the block is one stretch of the flat vector, unpermuted, as a single row."""
        joined = all(a.start + a.numel == b.start for a, b in pairwise(self.segments))
        return self.rows == 1 and joined and all(segment.in_order for segment in self.segments)

    def gather(self, V: Shaped[Tensor, "P K"]) -> Shaped[Tensor, "block K"]:
        """The block's entries (rows·cols, K) of a contiguous V (P, K), row-major: a view where possible."""
        pieces = [s.view(V) if s.in_order else s.view(V).flatten(1, -2) for s in self.segments]
        block = pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1)
        return block.reshape(self.size, V.shape[1])

    def scatter(self, block: Shaped[Tensor, "block K"], out: Shaped[Tensor, "P K"]) -> None:
        """Write (not add) the block's entries (rows·cols, K) into the contiguous `out` (P, K)."""
        pieces = block.reshape(self.rows, self.cols, out.shape[1]).split_with_sizes(self._widths, 1)
        for segment, piece in zip(self.segments, pieces, strict=True):
            target = segment.view(out)
            target.copy_(piece if segment.in_order else piece.reshape(target.shape))


def _remedy(v: object) -> str:
    """What makes a vector of a thing that is none."""
    if hasattr(v, "__array__"):
        return " torch.as_tensor(v) makes it one."
    if callable(getattr(v, "named_parameters", None)):
        return " Pass dict(model.named_parameters())."
    if isinstance(v, Iterator):
        return " Pass list(model.parameters()) or dict(model.named_parameters())."
    return ""
