"""What is kept of consecutive samples while their tiles are computed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtangent.jacobians.factors import LayerJacobian
from torchtangent.jacobians.together import is_bias_of, side_by_side
from torchtangent.kernel.contract import Formed
from torchtangent.kernel.distributed import Ranks
from torchtangent.kernel.precision import Precision
from torchtangent.kernel.way import DifferentUse, Kept, Way, aligned
from torchtangent.operators import memory


@dataclass(frozen=True)
class Part:
    """Parameters that are contracted together: one, a weight with its bias, or several with their J side by side."""

    names: tuple[str, ...]
    ways: tuple[Way, ...]

    @property
    def way(self) -> Way:
        return self.ways[0]

    def keep(self, layers: Mapping[str, LayerJacobian]) -> Kept:
        """The tensors that are kept of a batch of samples."""
        chosen = [layers[name] for name in self.names]
        if len(chosen) > 1 and isinstance(self.way, Formed):
            J = side_by_side(chosen, aligned(sum(layer.shape.numel() for layer in chosen)))
            return (self.way.outputs.arrange(J),)
        if not all(is_bias_of(bias, chosen[0]) for bias in chosen[1:]):
            raise DifferentUse(self.names[0])
        try:
            return self.way.keep(chosen[0])
        except DifferentUse as error:
            raise DifferentUse(self.names[0]) from error


class Panel:
    """Kept tensors of `n` samples in the format of a precision, filled batch by batch.

    float16 has a narrow range, so each tensor is scaled by a power of two that makes its entries as large as they can
    be without an overflow in the sums of its way. When a later batch has larger entries, earlier ones are rescaled.
    """

    def __init__(self, parts: Sequence[Part], precision: Precision, n: int, ranks: Ranks) -> None:
        self.parts, self.precision, self.n = parts, precision, n
        self.ranks = ranks if ranks.size <= n else Ranks()
        self.own = self.ranks.stretch(n)  # the samples that this process captures
        self.filled = self.own.start
        self.kept: list[list[Tensor]] = []  # by part
        self.scales: list[list[float]] = []

    def append(self, layers: Mapping[str, LayerJacobian]) -> None:
        """Add the next samples."""
        new = self._keep(layers)
        largest = self._largest(new)
        count = len(new[0][0])
        if not self.kept:  # assigned as a whole: if memory runs out, nothing is left half allocated
            self.kept = [[t if self._as_is(t) else self._room(t) for t in tensors] for tensors in new]
            self.scales = [[math.inf if self._scaled(t) else 1.0 for t in tensors] for tensors in new]
        for i, (part, tensors) in enumerate(zip(self.parts, new, strict=True)):
            for j, t in enumerate(tensors):
                if t is self.kept[i][j]:
                    continue
                place = self.kept[i][j][self.filled : self.filled + count]
                if self._scaled(t):
                    self._rescale(i, j, _scale(largest[i][j], part.way.terms))
                    t = t * self.scales[i][j]
                place.copy_(t)
        self.filled += count

    def _keep(self, layers: Mapping[str, LayerJacobian]) -> list[Kept]:
        """What each part keeps; raises one `DifferentUse` that names all parameters used differently."""
        new: list[Kept] = []
        different: list[str] = []
        for part in self.parts:
            try:
                new.append(part.keep(layers))
            except DifferentUse as error:
                different += error.args
        if different:
            raise DifferentUse(*different)
        return new

    def tile(self, part: int, rows: slice) -> Kept:
        """What is kept of some samples, for one part."""
        return [t[rows] for t in self.kept[part]]

    def unit(self, part: int) -> float:
        """The factor that undoes the scales in a product of a part's kept tensors."""
        return 1 / math.prod(self.scales[part])

    def _as_is(self, t: Tensor) -> bool:
        """Whether a tensor can be kept without a copy: it has all samples, and its storage holds little else."""
        whole = len(t) == self.n and t.is_contiguous() and t.untyped_storage().nbytes() <= 2 * t.nbytes
        return whole and t.dtype == self._format(t) and not self._scaled(t)

    def _room(self, t: Tensor) -> Tensor:
        return memory.empty((self.n, *t.shape[1:]), self._format(t), t.device)

    def _scaled(self, t: Tensor) -> bool:
        return self.precision.held == torch.float16 and t.is_floating_point()

    def _format(self, t: Tensor) -> torch.dtype:
        return self.precision.held if t.is_floating_point() else t.dtype

    def _largest(self, new: Sequence[Kept]) -> list[list[float]]:
        """The largest magnitude in each tensor (float16 only), with one synchronization for all."""
        if self.precision.held != torch.float16:
            return []
        norms = [torch.linalg.vector_norm(t.float(), math.inf) for tensors in new for t in tensors]
        values = iter(torch.stack(norms).tolist())
        return [[next(values) for _ in tensors] for tensors in new]

    def _rescale(self, i: int, j: int, scale: float) -> None:
        if scale < self.scales[i][j]:
            self.kept[i][j][self.own.start : self.filled].mul_(scale / self.scales[i][j])
            self.scales[i][j] = scale

    def share(self) -> None:
        """Exchange what all ranks captured, after bringing it to a common scale."""
        if self.ranks.size == 1:
            return
        every = self.ranks.gather(self.scales)
        for i, j in ((i, j) for i, tensors in enumerate(self.kept) for j in range(len(tensors))):
            self._rescale(i, j, min(scales[i][j] for scales in every))
        self.ranks.exchange(t for tensors in self.kept for t in tensors)


def _scale(largest: float, terms: int) -> float:
    """A power of two that keeps sums of `terms` products below 2¹⁵ for factors of magnitude up to `largest`."""
    if not largest > 0:
        return 2.0**60  # only zeros so far
    top = min(8.0, (15 - math.log2(terms)) / 2)
    return 2.0 ** min(60, max(-60, math.floor(top - math.log2(largest))))
