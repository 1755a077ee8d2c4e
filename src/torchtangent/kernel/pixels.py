"""Convolutions without forming patches: the Gram matrix of pixels, summed over the taps' shifts.

⟨patch_s(x_n), patch_t(x_m)⟩ = Σ_k x_n[s+k]·x_m[t+k] for the taps k, so that the products are of pixels (with as many
terms as there are channels) and not of patches (with as many as channels times taps).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.jacobians.factors import LayerJacobian, Outer
from torchtangent.jacobians.patches import Patches
from torchtangent.kernel import fused
from torchtangent.kernel.precision import multiply
from torchtangent.kernel.way import Block, Cost, Kept, Outputs, Way, alike, inputs_of, strips


@dataclass(frozen=True)
class Pixels(Way):
    """Σ_st (Σ_k x_n[s+k]·x_m[t+k]) (d_ns·d_mt) for a convolution in one group."""

    outputs: Outputs
    layer: Outer
    name = "pixels"

    @staticmethod
    def fits(layer: Outer) -> bool:
        """Whether a layer is a plain convolution."""
        return isinstance(layer.locate, Patches) and layer.groups == 1

    @cached_property
    def patches(self) -> Patches:
        """The geometry with zeros for a border; any other border is made part of the input."""
        p = self.layer.locate
        assert isinstance(p, Patches)
        return p if p.mode == "zeros" else replace(p, pad=(0,) * len(p.pad))

    @property
    def terms(self) -> int:  # type: ignore[override]
        return max(self.layer.source.shape[1], self.layer.d.shape[4] * self.outputs.folded)

    @cached_property
    def size(self) -> tuple[int, ...]:
        """The pixels of an input along each axis."""
        return tuple(self._input(self.layer.source).shape[2:])

    @cached_property
    def places(self) -> tuple[int, ...]:
        """The output locations along each axis."""
        p, n = self.patches, len(self.size)
        sizes = [self.size[i] + p.pad[2 * (n - 1 - i)] + p.pad[2 * (n - 1 - i) + 1] for i in range(n)]
        return tuple((s - g * (k - 1) - 1) // t + 1 for s, k, t, g in zip(sizes, p.taps, p.step, p.gap, strict=True))

    def cost(self) -> Cost:
        o, (_, C, S, O) = self.outputs, self.layer.d.shape[1:]
        many = o.batches * o.rows**2
        channels, pixels = self.layer.source.shape[1], math.prod(self.size)
        taps = inputs_of(self.layer) // channels
        products = pixels**2 * channels + many * S**2 * O * o.folded
        moved = (
            taps / 4 + many if fused.usable(self.layer.d) else 3 * taps + 4 * many
        )  # fused sums are read from a cache
        traffic = pixels**2 + int(S**2 * moved)
        return Cost(products, 0, traffic, channels * pixels + C * S * O, channels * pixels + C * S * O)

    def keep(self, layer: LayerJacobian) -> Kept:
        layer = alike(layer, self.layer)
        return self._input(layer.source), self.outputs.arrange(layer.d[:, 0])

    def add(self, out: Block, left: Kept, right: Kept, alpha: float, room: int) -> None:
        B, _, R, M, Q = out.shape
        S, pixels = left[1].shape[3], math.prod(self.size)
        x2, d2 = _by_pixel(right[0]), _by_location(right[1])
        size = left[0].element_size() if fused.usable(left[0]) else 3 * out.element_size()
        per_sample = M * size * (pixels**2 + S**2 * B * R * Q)
        for rows, columns in strips(out, left, right, room // per_sample):
            x1, d1 = _by_pixel(left[0][rows]), _by_location(left[1][rows])
            m = columns.stop
            target = out[:, rows, :, columns]
            if fused.usable(x1):
                self._add_fused(target, x1, d1, x2[:, :m], d2[:, :, :m], alpha)
            else:
                self._add(target, x1, d1, x2[:, :m], d2[:, :, :m], alpha)

    def _add(self, out: Block, x1: Tensor, d1: Tensor, x2: Tensor, d2: Tensor, alpha: float) -> None:
        B, n, R, m, Q = out.shape
        X = multiply(x1.flatten(0, 1), x2.flatten(0, 1)).view(*self.size, n, *self.size, m)
        A = X.new_zeros(*self.places, n, *self.places, m)
        for locations, pixels in self.patches.windows(self.size):
            A[(*locations, slice(None), *locations)] += X[(*pixels, slice(None), *pixels)]
        del X
        S = d1.shape[1]
        D = multiply(d1.flatten(1, 3), d2.flatten(1, 3)).view(B, S, n, R, S, m, Q)
        out.add_(D.mul_(A.view(S, n, 1, S, m, 1)).sum((1, 4)), alpha=alpha)

    def _add_fused(self, out: Block, x1: Tensor, d1: Tensor, x2: Tensor, d2: Tensor, alpha: float) -> None:
        X = x1.flatten(0, 1) @ x2.flatten(0, 1).T
        starts, pairs = self.shifts
        for b, r, q in (
            (b, r, q) for b in range(out.shape[0]) for r in range(out.shape[2]) for q in range(out.shape[4])
        ):
            D = d1[b, :, :, r].flatten(0, 1) @ d2[b, :, :, q].flatten(0, 1).T
            fused.add_shifted(out[b, :, r, :, q], X, D, starts, pairs, alpha)

    @cached_property
    def shifts(self) -> tuple[Tensor, Tensor]:
        """For each pair of locations the pairs of pixels that meet in their patches, one list after the other."""
        index = torch.arange(math.prod(self.size), device="cpu").view(self.size)
        seen = torch.full((math.prod(self.patches.taps), *self.places), -1, device="cpu")
        for k, (locations, pixels) in enumerate(self.patches.windows(self.size)):
            seen[k][locations] = index[pixels]
        taps = seen.flatten(1).T
        both = (taps[:, None] >= 0) & (taps[None] >= 0)
        S, _, K = both.shape
        pairs = torch.stack([taps[:, None].expand(S, S, K)[both], taps[None].expand(S, S, K)[both]], 1)
        starts = torch.cat([torch.zeros(1, dtype=torch.long, device="cpu"), both.sum(2).flatten().cumsum(0)])
        device = self.layer.d.device
        return starts.to(device, torch.int32), pairs.to(device, torch.int32)

    def _input(self, x: Tensor) -> Tensor:
        p: Any = self.layer.locate
        return x if p.mode == "zeros" else p.padded(x)


def _by_pixel(x: Float[Tensor, "N channels *size"]) -> Float[Tensor, "pixels N channels"]:
    return x.flatten(2).permute(2, 0, 1).contiguous()


def _by_location(d: Float[Tensor, "N B R S O"]) -> Float[Tensor, "B S N R O"]:
    return d.permute(1, 3, 0, 2, 4).contiguous()
