"""The patches of a convolution's input: what its taps read at each location."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import torch
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
        pad: The padding before and after each axis, from the last axis to the first (as `F.pad` takes it).
        mode: How the padding is filled: "zeros", "reflect", "replicate" or "circular".
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
        """The input with its padding."""
        if not any(self.pad):
            return x
        return F.pad(x, self.pad, mode="constant" if self.mode == "zeros" else self.mode)

    def __call__(self, x: Float[Tensor, "N channels *size"]) -> Float[Tensor, "N G S I"]:
        """The patches, as one copy of a strided view, stored as (G, I, N, S) for products over all samples at once."""
        view = self._view(x)
        S = math.prod(view.shape[-len(self.taps) :])
        a = view.movedim(0, 1 + len(self.taps)).reshape(self.groups, -1, len(x), S)
        return a.permute(2, 0, 3, 1)

    def by_sample(self, x: Float[Tensor, "N channels *size"]) -> Float[Tensor, "N G S I"]:
        """The same, stored as (N, G, I, S) for one product per sample."""
        view = self._view(x)
        S = math.prod(view.shape[-len(self.taps) :])
        return view.reshape(len(x), self.groups, -1, S).transpose(2, 3)

    def channels_last(self, x: Float[Tensor, "N *size channels"]) -> Float[Tensor, "N S I"]:
        """The patches, for one group, of an input with its channels last; I is in the order taps, channels.

        Adjacent channels are copied several at a time, as 64-bit integers.
        """
        x = self.padded(x.movedim(-1, 1)).movedim(1, -1).contiguous()
        many = max(1, 8 // x.element_size())
        even = all(s % many == 0 for s in (x.shape[-1], x.storage_offset(), *x.stride()[:-1]))
        wide = x.view(torch.int64) if even else x
        n, *size, channels = wide.shape
        outer, *inner, one = wide.stride()
        view = wide.as_strided(
            (n, *(self._locations(s, axis) for axis, s in enumerate(size)), *self.taps, channels),
            (outer, *map(operator.mul, inner, self.step), *map(operator.mul, inner, self.gap), one),
        )
        S = math.prod(view.shape[1 : 1 + len(size)])
        return view.reshape(n, S, -1).contiguous().view(x.dtype)  # `reshape` may give a view with gaps

    def weight_gradients(
        self, x: Float[Tensor, "N channels *size"], d: Float[Tensor, "N X *places"]
    ) -> Float[Tensor, "N X I"]:
        """Σ_s d[n,:,s] ⊗ a[n,s] for one group, without patches: by torch's gradient of a weight, sample by sample."""
        before, after = self.pad[-2::-2], self.pad[::-2]
        inside = before == after and self.mode == "zeros"
        x, pad = (x, before) if inside else (self.padded(x), (0,) * len(self.taps))
        weight = d.new_empty(d.shape[1], x.shape[1], *self.taps)
        gradients = d.new_empty(len(x), d.shape[1], weight[0].numel())
        for one, cotangent, place in zip(x.split(1), d.split(1), gradients, strict=True):
            _, gradient, _ = torch.ops.aten.convolution_backward(
                cotangent, one, weight, None, self.step, pad, self.gap, False, (0,) * len(pad), 1, (False, True, False)
            )
            place.copy_(gradient.flatten(1))
        return gradients

    def places(self, size: Sequence[int]) -> tuple[int, ...]:
        """The number of locations along each axis for an (unpadded) input of this size."""
        padded = map(sum, zip(size, self.pad[-2::-2], self.pad[::-2], strict=True))
        return tuple(self._locations(n, axis) for axis, n in enumerate(padded))

    def _view(self, x: Float[Tensor, "N channels *size"]) -> Float[Tensor, "N channels *taps_places"]:
        """The patches as a strided view of the padded input: (sample, channel, *taps, *places)."""
        x = self.padded(x).contiguous()
        inner = x.stride()[2:]
        return x.as_strided(
            (*x.shape[:2], *self.taps, *(self._locations(n, axis) for axis, n in enumerate(x.shape[2:]))),
            (
                *x.stride()[:2],
                *map(operator.mul, inner, self.gap),
                *map(operator.mul, inner, self.step),
            ),
        )

    def windows(self, size: Sequence[int]) -> Iterator[tuple[tuple[slice, ...], tuple[slice, ...]]]:
        """For each tap, the locations at which it reads a pixel of the (unpadded) input, and these pixels."""
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
        """The number of locations along an axis of so many pixels, padding included."""
        return (padded - self.gap[axis] * (self.taps[axis] - 1) - 1) // self.step[axis] + 1
