"""Convolutions without forming patches: the Gram matrix of pixels, summed over the taps' shifts.

⟨patch_s(x_n), patch_t(x_m)⟩ = Σ_k x_n[s+k]·x_m[t+k] over the taps k: inner products of pixels (one term per channel)
replace those of patches (one term per channel and tap). With a stride, only pixels whose distance is a multiple of it
are ever paired. So pixels are grouped by their residue modulo the stride and multiplied within each group only; a pixel
of a group is called a cell.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import repeat
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from torchtangent.jacobians.factors import LayerJacobian, Outer
from torchtangent.jacobians.patches import Patches
from torchtangent.kernel import fused
from torchtangent.kernel.precision import multiply
from torchtangent.kernel.way import Block, Cost, Kept, Outputs, Way, alike, strips

Slices = tuple[Any, ...]


@dataclass(frozen=True)
class Pixels(Way):
    """Σ_st (Σ_k x_n[s+k]·x_m[t+k]) (d_ns·d_mt) for a convolution with one group."""

    outputs: Outputs
    layer: Outer
    name = "pixels"

    @cached_property
    def patches(self) -> Patches:
        """The geometry with zero padding; any other padding becomes part of the input."""
        p = self.layer.locate
        assert isinstance(p, Patches)
        return p if p.mode == "zeros" else replace(p, pad=(0,) * len(p.pad))

    @property
    def terms(self) -> int:  # type: ignore[override]
        return max(self.layer.source.shape[1], self.layer.d.shape[4] * self.outputs.folded)

    @cached_property
    def size(self) -> tuple[int, ...]:
        """The number of input pixels along each axis."""
        return tuple(self._input(self.layer.source).shape[2:])

    @cached_property
    def places(self) -> tuple[int, ...]:
        """The number of output locations along each axis."""
        return self.patches.places(self.size)

    @cached_property
    def cells(self) -> tuple[int, ...]:
        """The number of pixels with the same residue along each axis."""
        return tuple(math.ceil(s / t) for s, t in zip(self.size, self.patches.step, strict=True))

    @cached_property
    def residues(self) -> list[tuple[int, ...]]:
        """The residues modulo the stride of the pixels that some tap reads."""
        windows = [pixels for _, pixels in self.patches.windows(self.size)]
        return sorted({tuple(w.start % w.step for w in pixels) for pixels in windows})

    @cached_property
    def pixel_pairs(self) -> int:
        """How many pairs of pixels are multiplied, per pair of samples."""
        return len(self.residues) * math.prod(self.cells) ** 2

    def taps(self) -> Iterator[tuple[Slices, int, Slices]]:
        """For each tap: the locations at which it reads a pixel, the index of the pixels' residue, and their cells."""
        for locations, pixels in self.patches.windows(self.size):
            residue = tuple(w.start % w.step for w in pixels)
            cells = (
                slice(w.start // w.step, w.start // w.step + s.stop - s.start)
                for s, w in zip(locations, pixels, strict=True)
            )
            yield locations, self.residues.index(residue), tuple(cells)

    def cost(self) -> Cost:
        o, (_, C, S, O) = self.outputs, self.layer.d.shape[1:]
        entries = o.batches * o.rows**2  # of the kernel, per pair of samples
        channels, pixels = self.layer.source.shape[1], math.prod(self.size)
        taps = self.layer.columns // channels
        moved = entries if fused.usable(self.layer.d) else 3 * taps + 4 * entries  # fused, each product is read once
        held = channels * pixels + C * S * O
        return Cost(
            pair=self.pixel_pairs * channels + entries * S**2 * O * o.folded,
            traffic=self.pixel_pairs + S**2 * moved,
            held=held,
            opened=held,  # x and d in another order
            least=self.pixel_pairs + entries * S**2,  # both kinds of products with one other sample
        )

    def keep(self, layer: LayerJacobian) -> Kept:
        layer = alike(layer, self.layer)
        return self._input(layer.source), self.outputs.arrange(layer.d[:, 0])

    def add(self, out: Block, left: Kept, right: Kept, alpha: float, room: int) -> None:
        B, _, R, M, Q = out.shape
        S = left[1].shape[3]
        x2, d2 = self._by_cell(right[0]), _by_location(right[1])
        fuse = fused.usable(left[0])
        add, size = (self._add_fused, left[0].element_size()) if fuse else (self._add, 3 * out.element_size())
        per_sample = M * size * (self.pixel_pairs + S**2 * B * R * Q)
        for rows, columns in strips(out, left, right, room // per_sample):
            x1, d1 = self._by_cell(left[0][rows]), _by_location(left[1][rows])
            add(out[:, rows, :, columns], x1, d1, x2[:, :, columns], d2[:, :, columns], alpha)

    def _add(self, out: Block, x1: Tensor, d1: Tensor, x2: Tensor, d2: Tensor, alpha: float) -> None:
        B, n, R, m, Q = out.shape
        X = multiply(x1.flatten(1, 2), x2.flatten(1, 2)).view(-1, *self.cells, n, *self.cells, m)
        A = X.new_zeros(*self.places, n, *self.places, m)
        every: Any = slice(None)
        for locations, residue, cells in self.taps():
            A[(*locations, every, *locations)] += X[(residue, *cells, every, *cells)]
        del X
        S = d1.shape[1]
        D = multiply(d1.flatten(1, 3), d2.flatten(1, 3)).view(B, S, n, R, S, m, Q)
        out.add_(D.mul_(A.view(S, n, 1, S, m, 1)).sum((1, 4)), alpha=alpha)

    def _add_fused(self, out: Block, x1: Tensor, d1: Tensor, x2: Tensor, d2: Tensor, alpha: float) -> None:
        X = x1.new_empty(len(x1), x1[0, ..., 0].numel(), x2[0, ..., 0].numel())
        for residue, one, other in zip(X, x1, x2, strict=True):
            torch.mm(one.flatten(0, 1), other.flatten(0, 1).T, out=residue)
        for block, one, other in zip(out, d1, d2, strict=True):
            D = one.flatten(0, 2) @ other.flatten(0, 2).T
            fused.add_shifted(block, X.flatten(0, 1), D, self.meetings, alpha)

    @cached_property
    def meetings(self) -> Int[Tensor, "SS met 2"]:
        """For each pair of locations: the pair itself, then for each tap the pair of cells it reads, or −1.

        The first cell of a pair is numbered across all residues, the second within its own. Pairs of locations at the
        same distance share pixels, so they are listed together.
        """
        cells = torch.arange(math.prod(self.cells), device="cpu").view(self.cells)
        seen = torch.full((math.prod(self.patches.taps), *self.places), -1, device="cpu")
        first = torch.zeros(len(seen), 1, dtype=torch.long, device="cpu")
        for k, (locations, residue, where) in enumerate(self.taps()):
            seen[k][locations] = cells[where]
            first[k] = residue * cells.numel()
        seen = seen.flatten(1)
        wide = torch.arange(math.prod(2 * n for n in self.places), device="cpu").view([2 * n for n in self.places])
        # In a grid twice as wide, two pairs of places have the same difference only if their distance is the same.
        place = wide[tuple(slice(n) for n in self.places)].flatten()
        S = len(place)
        order = (place - place[:, None]).flatten().argsort(stable=True)
        s, t = order // S, order % S
        p, q = seen[:, s], seen[:, t]
        met = torch.stack([torch.where((p >= 0) & (q >= 0), p + first, -1), q], 2).transpose(0, 1)
        return torch.cat([torch.stack([s, t], 1).unsqueeze(1), met], 1).to(self.layer.d.device, torch.int32)

    def _by_cell(self, x: Float[Tensor, "N channels *size"]) -> Float[Tensor, "residues cells N channels"]:
        """The pixels of each residue, padded with zeros where a residue has fewer."""
        step = self.patches.step
        missing = [n * t - s for n, t, s in zip(self.cells, step, self.size, strict=True)]
        if any(missing):
            x = F.pad(x, [pad for extra in reversed(missing) for pad in (0, extra)])
        chosen: list[Slices] = [tuple(map(slice, residue, repeat(None), step)) for residue in self.residues]
        return torch.stack([x[(..., *pixels)].flatten(2).permute(2, 0, 1) for pixels in chosen])

    def _input(self, x: Tensor) -> Tensor:
        p: Any = self.layer.locate
        return x if p.mode == "zeros" else p.padded(x)


def _by_location(d: Float[Tensor, "N B R S O"]) -> Float[Tensor, "B S N R O"]:
    return d.permute(1, 3, 0, 2, 4).contiguous()
