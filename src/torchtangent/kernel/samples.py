"""The inputs of a kernel: in memory, or a data set that is read batch by batch."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from torchtangent.jacobians.inputs import Inputs, batch_size, leaves, map_leaves, take
from torchtangent.kernel.hashing import bytes_of, content_hash

_READ_TWICE = 8  # about this many items of a data set are read twice at the start, to see whether they repeat


class Samples:
    """N inputs of a model, as it takes them or as a data set of single inputs; moved to its device in batches.

    Args:
        x: A tensor (N, ...), a tuple or dict of them, or anything with `len` and items that are single inputs (without
            targets: a `TensorDataset(x)` or a list, for example).
        device: Where batches go.
    """

    def __init__(self, x: Any, device: torch.device) -> None:
        self.device = device
        self.dataset: Repeating | None = None
        self.x = x
        if isinstance(x, Tensor | tuple | Mapping):
            self.count = batch_size(x)
        elif hasattr(x, "__len__") and hasattr(x, "__getitem__"):
            self.x = self.dataset = x if isinstance(x, Repeating) else Repeating(x)
            self.count = len(x)
        else:
            advice = " Pass loader.dataset, if its items are inputs alone." if hasattr(x, "dataset") else ""
            raise TypeError(
                "The inputs should be a tensor, a tuple, a dict or a data set with len() and items, "
                f"got {type(x).__name__}.{advice}"
            )

    def __len__(self) -> int:
        return self.count

    def batch(self, start: int, end: int) -> Inputs:
        """Samples start … end − 1, on the device; NaN and infinity are refused."""
        if self.dataset is None:
            x = take(self.x, slice(start, end))
        else:
            x = default_collate([self.dataset[i] for i in range(start, end)])
            x = tuple(x) if isinstance(x, list) else x
        x = map_leaves(lambda t: t.to(self.device, non_blocking=True), x)
        for t in leaves(x):
            if t.is_floating_point() and not bool(torch.isfinite(t.sum())):
                bad = (~torch.isfinite(t)).reshape(len(t), -1).any(1).nonzero()
                if len(bad):
                    raise ValueError(f"The inputs have NaN or infinity, first in sample {start + int(bad[0])}.")
        return x

    def few(self) -> Inputs:
        """The first two samples (or the only one): enough to check a model and learn its shapes."""
        return self.batch(0, min(2, len(self)))

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Where the model may complain about its inputs: if it was given several, its error comes with advice."""
        try:
            yield
        except TypeError as error:
            item = self.x if self.dataset is None else self.dataset[0]
            if not isinstance(item, tuple | list) or len(item) < 2:
                raise
            raise self._explained(error, item) from error

    def _explained(self, error: TypeError, item: Sequence[Any]) -> TypeError:
        what, alone = ("The inputs are", "x") if self.dataset is None else ("An item of the data set is", "a data set")
        said = f"{what} {len(item)} things, and the model was given all of them"
        longer = TypeError(f"{error}. {said}; if one is a target, give {alone} without it.")
        for note in getattr(error, "__notes__", []):
            longer.add_note(note)
        return longer

    def fingerprint(self) -> str:
        """A hash of all inputs."""
        if self.dataset is None:
            rest = map_leaves(lambda t: "tensor", self.x)  # the structure: names, and arguments that are not tensors
            return f"{content_hash((str(i), t) for i, t in enumerate(leaves(self.x)))} {rest!r}"
        items = (self.batch(i, i + 1) for i in range(self.count))
        return content_hash((f"{n}.{i}", t) for n, x in enumerate(items) for i, t in enumerate(leaves(x)))

    def shapes(self) -> dict[Any, tuple[int, ...]]:
        """The shapes of a single input's tensors, by name or number."""
        x = self.batch(0, 1)
        named = x if isinstance(x, Mapping) else dict(enumerate(x if isinstance(x, tuple | list) else (x,)))
        return {name: tuple(t.shape[1:]) for name, t in named.items() if isinstance(t, Tensor) and t.dim()}


class Repeating:
    """A data set whose items are read more than once and must be the same each time; else an error is raised."""

    def __init__(self, dataset: Any) -> None:
        if not len(dataset):
            raise ValueError("The data set is empty (0 samples): there is nothing to differentiate.")
        self.dataset = dataset
        self._seen: dict[int, int] = {}
        for index in 2 * [*range(0, len(dataset), max(1, len(dataset) // _READ_TWICE))]:
            self[index]

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        item = self.dataset[index]
        checksum = _checksum(item)
        if self._seen.setdefault(index, checksum) != checksum:
            raise ValueError(
                f"The data set does not repeat: its item {index} differs from one time to the next, as with random "
                "augmentation, but samples are read more than once. Switch it off, or pass the inputs as a tensor."
            )
        return item


def _checksum(item: Any, start: int = 0) -> int:
    """A checksum of everything in an item of a data set."""
    if isinstance(item, Mapping | tuple | list):
        for part in item.values() if isinstance(item, Mapping) else item:
            start = _checksum(part, start)
        return start
    if isinstance(item, Tensor):
        return zlib.crc32(bytes_of(item.detach().cpu().resolve_conj().resolve_neg()).numpy().data, start)
    if isinstance(item, np.ndarray | np.generic):
        return zlib.crc32(item.tobytes(), start)
    return zlib.crc32(repr(item).encode(), start) if isinstance(item, int | float | complex | str | bytes) else start


def check_alike(x1: Samples, x2: Samples) -> None:
    """Refuse inputs of different shapes: both sides of a kernel need the same layers at the same locations."""
    one, two = x1.shapes(), x2.shapes()
    if one != two:
        named = one.keys() != two.keys()
        said = f"{one} and {two}" if named else f"{[*one.values()]} and {[*two.values()]}"
        raise ValueError(f"x1 and x2 hold samples of different shapes, {said}; a kernel needs them alike.")
