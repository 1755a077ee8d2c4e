"""The inputs of a kernel: in memory, or a data set that is read batch by batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from torchtangent.jacobians.inputs import Inputs, batch_size, leaves, map_leaves, take
from torchtangent.kernel.identity import content_hash


class Samples:
    """N inputs of a model, given as it takes them, or as a data set of single inputs; moved to its device in batches.

    Args:
        x: A tensor (N, ...), a tuple or dict of them, or anything with `len` and items that are single inputs (without
            targets: a `TensorDataset(x)` or a list, for example).
        device: Where batches go.
    """

    def __init__(self, x: Any, device: torch.device) -> None:
        self.device = device
        self.dataset = None if isinstance(x, Tensor | tuple | Mapping) else x
        self.x = x
        if self.dataset is None:
            self.count = batch_size(x)
        elif hasattr(x, "__len__") and hasattr(x, "__getitem__"):
            self.count = len(x)
            if not self.count:
                raise ValueError("The data set is empty (0 samples): there is nothing to differentiate.")
            self._check_repeats()
        else:
            advice = " Pass loader.dataset, if its items are inputs alone." if hasattr(x, "dataset") else ""
            raise TypeError(
                "The inputs should be a tensor, a tuple, a dict or a data set with len() and items, "
                f"got {type(x).__name__}.{advice}"
            )

    def __len__(self) -> int:
        return self.count

    def _check_repeats(self) -> None:
        """Samples are read more than once, and must be the same each time."""
        one, two = (leaves(default_collate([self.x[0]])) for _ in range(2))
        if len(one) != len(two) or not all(_same(a, b) for a, b in zip(one, two, strict=True)):
            raise ValueError(
                "The data set does not repeat: its first item differs from one time to the next, as with random "
                "augmentation, but samples are read more than once. Switch it off, or pass the inputs as a tensor."
            )

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

    def explained(self, error: TypeError) -> TypeError:
        """What the model said of its inputs, with a guess where a data set gave it several."""
        item = None if self.dataset is None else self.dataset[0]
        if not isinstance(item, tuple | list) or len(item) < 2:
            return error
        return TypeError(
            f"{error}. An item of the data set is {len(item)} things, and the model was given all of them; if one is a "
            "target, give a data set of inputs alone."
        )

    def fingerprint(self) -> str:
        """A hash of all the inputs."""
        if self.dataset is None:
            rest = map_leaves(lambda t: "tensor", self.x)  # names, and what is passed along
            return f"{content_hash((str(i), t) for i, t in enumerate(leaves(self.x)))} {rest!r}"
        items = (self.batch(i, i + 1) for i in range(self.count))
        return content_hash((f"{n}.{i}", t) for n, x in enumerate(items) for i, t in enumerate(leaves(x)))

    def shapes(self) -> dict[Any, tuple[int, ...]]:
        """The shapes of a single input's tensors, by name or number."""
        x = self.batch(0, 1)
        named = x if isinstance(x, Mapping) else dict(enumerate(x if isinstance(x, tuple | list) else (x,)))
        return {name: tuple(t.shape[1:]) for name, t in named.items() if isinstance(t, Tensor) and t.dim()}


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether two are equal; NaN, which is refused elsewhere, equals itself."""
    return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())


def check_alike(x1: Samples, x2: Samples) -> None:
    """Both sides of a kernel must go through the same layers at the same locations."""
    one, two = x1.shapes(), x2.shapes()
    if one != two:
        named = one.keys() != two.keys()
        said = f"{one} and {two}" if named else f"{[*one.values()]} and {[*two.values()]}"
        raise ValueError(f"x1 and x2 hold samples of different shapes, {said}; a kernel needs them alike.")
