"""What the taps of a convolution see: patches of its input."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.nn.modules.conv import _ConvNd


@dataclass(frozen=True)
class Patches:
    """The geometry of a convolution; called on its input it gives the patches.

    Args:
        taps: Kernel size.
        step: Stride.
        gap: Dilation.
        pad: What is added before and after each axis, from the last axis to the first (as `F.pad` wants it).
        mode: How it is filled: "zeros", "reflect", "replicate" or "circular".
        groups: Groups of channels.
    """

    taps: tuple[int, ...]
    step: tuple[int, ...]
    gap: tuple[int, ...]
    pad: tuple[int, ...]
    mode: str
    groups: int

    @classmethod
    def of(cls, module: _ConvNd) -> Patches:
        """The geometry of a module."""
        pad = tuple(module._reversed_padding_repeated_twice)
        return cls(module.kernel_size, module.stride, module.dilation, pad, module.padding_mode, module.groups)

    def padded(self, x: Float[Tensor, "N channels *size"]) -> Float[Tensor, "N channels *padded"]:
        """The input with its border."""
        if not any(self.pad):
            return x
        return F.pad(x, self.pad, mode="constant" if self.mode == "zeros" else self.mode)

    def __call__(self, x: Float[Tensor, "N channels *size"]) -> Float[Tensor, "N G S I"]:
        """The patches, by one copy of a strided view; stored as (G, I, N, S)."""
        x = self.padded(x).contiguous()
        N, channels = x.shape[:2]
        sizes = [self._locations(n, axis) for axis, n in enumerate(x.shape[2:])]
        inner = x.stride()[2:]
        view = x.as_strided(
            (channels, *self.taps, N, *sizes),
            (
                x.stride(1),
                *(i * g for i, g in zip(inner, self.gap, strict=True)),
                x.stride(0),
                *(i * s for i, s in zip(inner, self.step, strict=True)),
            ),
        )
        a = view.reshape(self.groups, -1, N, math.prod(sizes))
        return a.permute(2, 0, 3, 1)

    def windows(self, size: Sequence[int]) -> Iterator[tuple[tuple[slice, ...], tuple[slice, ...]]]:
        """For each tap the locations at which it sees a pixel of the (unpadded) input, and these pixels."""
        before, after = self.pad[-2::-2], self.pad[::-2]
        for tap in product(*(range(k) for k in self.taps)):
            locations, pixels = [], []
            for axis, k in enumerate(tap):
                step, offset = self.step[axis], k * self.gap[axis] - before[axis]
                many = self._locations(size[axis] + before[axis] + after[axis], axis)
                first = max(0, -(offset // step))
                end = min(many, (size[axis] - 1 - offset) // step + 1)
                locations.append(slice(first, max(first, end)))
                start = first * step + offset
                pixels.append(slice(start, max(start, (end - 1) * step + offset + 1), step))
            yield tuple(locations), tuple(pixels)

    def _locations(self, padded: int, axis: int) -> int:
        """How many output locations an axis of so many pixels has."""
        return (padded - self.gap[axis] * (self.taps[axis] - 1) - 1) // self.step[axis] + 1
