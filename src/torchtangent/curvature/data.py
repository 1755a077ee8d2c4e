"""Batches of (inputs, targets), with checks that there are some and, if they are read again, that they repeat."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from torchtangent.jacobians.inputs import Inputs, batch_size, leaves, split, take

Batch = tuple[Inputs, Any]


def check_rows(x: Inputs, targets: Any) -> None:
    """Refuse targets that do not have one row per sample, even if they are only searched for −100."""
    samples = batch_size(x)
    for y in leaves(targets):
        if len(y) != samples:
            raise ValueError(
                f"The targets have shape {tuple(y.shape)}, but there are {samples} samples. Pass one row for each: "
                "classes (N,), or (N, T) for outputs (N, T, C), not flattened."
            )


class Batches:
    """A loader (any iterable of (inputs, targets)) or a single batch, (inputs, targets).

    Args:
        data: The loader or the tuple.
        check: Called on the inputs and targets of each batch; raises if they cannot be used.
        targets: Whether targets matter, so that they must repeat, too.

    If `repeat` is set, the first pass records a fingerprint of each batch, and a later pass raises if one differs: what
    is computed in several passes is only right if each sees the same samples in the same order.
    """

    def __init__(self, data: Any, check: Callable[[Inputs, Any], None], *, targets: bool) -> None:
        if isinstance(data, Tensor | Mapping):
            raise ValueError(
                "The data should be a loader of batches, or one batch as a tuple (inputs, targets), not the inputs "
                "alone. Where targets are not needed, pass (x, None)."
            )
        if isinstance(data, Dataset):
            raise ValueError(
                f"The data should be a loader of batches, not a data set of samples ({type(data).__name__}): "
                "DataLoader(data, batch_size=256)."
            )
        self.repeat = False  # set by those who read the data more than once
        self._data: Iterable[Any] = [data] if _is_batch(data) else data
        self._check, self._targets = check, targets
        self._seen: list[tuple[Any, ...]] | None = None

    def __iter__(self) -> Iterator[Batch]:
        prints: list[tuple[Any, ...]] = []
        for batch in self._data:
            x, y = _split(batch)
            self._check(x, y)
            prints.append(self._fingerprint(x, y) if self.repeat else ())
            i = len(prints) - 1
            if self._seen is not None and prints[i:] != self._seen[i : i + 1]:
                raise ValueError(_NOT_REPEATED.format(f"batch {i} differs"))
            yield x, y
        if self._seen is not None and len(prints) < len(self._seen):
            raise ValueError(_NOT_REPEATED.format(f"{len(prints)} batches after {len(self._seen)}"))
        if not prints:
            raise ValueError("The data is empty: the loader yields no batch.")
        self._seen = prints

    def _fingerprint(self, x: Inputs, y: Any) -> tuple[Any, ...]:
        return _fingerprint(x) + (_fingerprint(y) if self._targets and y is not None else ())

    def count(self) -> int | None:
        """How many samples there are; None if only reading all of them would tell."""
        if isinstance(self._data, list):
            return sum(batch_size(_split(batch)[0]) for batch in self._data)
        if isinstance(self._data, DataLoader) and self._data.batch_size and isinstance(self._data.sampler, Sized):
            n = len(self._data.sampler)
            return n - n % self._data.batch_size if self._data.drop_last else n
        return None

    def pieces(self, size: Callable[[Inputs], int]) -> Iterator[Batch]:
        """The batches, each in pieces of at most `size(inputs)` samples."""
        for x, y in self:
            for index, part in split(x, size(x)):
                yield part, None if y is None else take(y, index)


_NOT_REPEATED = (
    "The data does not repeat ({}), but this computation reads it more than once. "
    "Pass a list of batches, or a loader with shuffle=False and no random augmentation (not a generator)."
)


def _is_batch(data: Any) -> bool:
    """Whether the data is a single batch: a tuple, or the list that a `DataLoader` turns a tuple into."""
    return isinstance(data, tuple) or (
        isinstance(data, list) and len(data) == 2 and isinstance(data[0], Tensor | Mapping)
    )


def _split(batch: Any) -> Batch:
    if isinstance(batch, tuple | list) and len(batch) == 2:
        x, y = batch
        plain = isinstance(y, np.ndarray) or (isinstance(y, list) and not any(isinstance(t, Tensor) for t in y))
        return x, torch.as_tensor(y, device="cpu") if plain else y
    raise ValueError(
        f"A batch should be (inputs, targets), got a {type(batch).__name__}"
        + (f" of length {len(batch)}" if isinstance(batch, tuple | list) else "")
        + ". Several positional inputs go into a tuple, ((x1, x2), targets), and those with names into a dict: "
        '({"input_ids": ids}, targets).'
    )


def _fingerprint(x: Inputs) -> tuple[Any, ...]:
    """Shapes, and two sums that change with the values or their order."""
    prints: list[Any] = []
    for leaf in leaves(x):
        flat = leaf.detach().reshape(-1).double().nan_to_num(0.5, 3.0, -3.0)  # NaN may mark a missing target
        ramp = torch.linspace(1, 2, len(flat), dtype=torch.float64, device=flat.device)
        prints += [tuple(leaf.shape), float(flat.sum()), float(flat @ ramp)]
    return tuple(prints)
