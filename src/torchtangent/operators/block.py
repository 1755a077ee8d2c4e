"""Block-diagonal operators, where each block has its own place in the flat vector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.notice import listed
from torchtangent.operators.base import Operator
from torchtangent.operators.basis import BlockBasis
from torchtangent.operators.checks import check_alike
from torchtangent.operators.derivative import Map
from torchtangent.operators.recorded import Repeated
from torchtangent.operators.space import Place, Space
from torchtangent.operators.spectrum import Factorization, Spectrum, indefinite, singular


@final
@dataclass(frozen=True, eq=False, repr=False)
class BlockOperator(Operator):
    """A block-diagonal operator; rows and columns outside all places are zero.

    Args:
        blocks: pairs of a `Place` and the operator that acts there; places are disjoint.
        size: P, the length of the flat vector.

    Example:
        >>> import torch
        >>> from torchtangent.operators import DiagonalOperator, Place
        >>> M = BlockOperator([(Place.flat(1, 2), DiagonalOperator(torch.tensor([2.0, 3.0])))], size=3)
        >>> M @ torch.ones(3), M.solve(torch.ones(3), damping=1.0)
        (tensor([0., 2., 3.]), tensor([1.0000, 0.3333, 0.2500]))
    """

    blocks: Sequence[tuple[Place, Operator]]
    size: int
    space: Space | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not self.blocks:
            raise ValueError("BlockOperator needs at least one block.")
        for place, block in self.blocks:
            if place.size != block.size:
                raise ValueError(f"A place of {place.size} entries holds a block of size {block.size}: {block}.")
        check_alike([block for _, block in self.blocks])
        _check_disjoint([place for place, _ in self.blocks], self.size)
        self._describe(self.size, like=self.blocks[0][1])

    @cached_property
    def uncovered(self) -> int:
        """The number of entries outside all places."""
        return self.size - sum(place.size for place, _ in self.blocks)

    def _matmat(self, V: Float[Tensor, "P K"]) -> Float[Tensor, "P K"]:
        return self._kept_products(V)

    @cached_property
    def _kept_products(self) -> Map:
        return self._repeated([block._matmat for _, block in self.blocks], torch.zeros_like)

    @cached_property
    def keeps_factorization(self) -> bool:  # type: ignore[override]
        return all(block.keeps_factorization for _, block in self.blocks)

    def _factorize(self, damping: float) -> Factorization:
        if self.uncovered and damping == 0:
            raise singular(f"{self!r}, which has {self.uncovered} zero rows,", damping)
        factors = [self._factorize_block(place, block, damping) for place, block in self.blocks]
        uncovered, name = self.uncovered, repr(self) if self.uncovered else ""  # self would be a cycle of references

        def logdet() -> Tensor:
            if uncovered and damping < 0:
                raise indefinite(name, damping, "log-determinant")
            total = torch.stack([factor.logdet() for factor in factors]).sum()
            return total + uncovered * total.new_tensor(damping).log() if uncovered else total

        return Factorization(self._repeated([factor.solve for factor in factors], lambda V: V / damping), logdet)

    def _decompose(self) -> Spectrum:
        spectra = [block._spectrum.completed() for _, block in self.blocks]
        bases = tuple((place, s.basis) for (place, _), s in zip(self.blocks, spectra, strict=True))
        return Spectrum(torch.cat([s.values for s in spectra]), BlockBasis(bases, self.size))

    def _diagonal(self) -> Float[Tensor, " P"]:
        out = torch.zeros(self.size, 1, dtype=self.dtype, device=self.device)
        for place, block in self.blocks:
            place.scatter(block.diag()[:, None], out)
        return out[:, 0]

    def _power_trace(self, power: int) -> Float[Tensor, ""]:
        return torch.stack([block._power_trace(power) for _, block in self.blocks]).sum()

    def _factorize_block(self, place: Place, block: Operator, damping: float) -> Factorization:
        """A factorization of one block; errors name its parameters if they are known."""
        try:
            return block._factorized(damping)
        except torch.linalg.LinAlgError as error:
            if self.space is None:
                raise
            raise torch.linalg.LinAlgError(f"Block of {listed(self.space.names_in(place))}: {error}") from error

    def _repeated(self, functions: Sequence[Map], rest: Map) -> Map:
        """V ↦ each function of the entries in its block's place, and `rest` of those outside all places."""
        places, start = [place for place, _ in self.blocks], rest if self.uncovered else torch.empty_like

        def each(V: Tensor) -> Tensor:
            V = V.contiguous()
            out = start(V)
            for place, function in zip(places, functions, strict=True):
                place.scatter(function(place.gather(V)), out)
            return out

        return Repeated(each, self._kept_tensors) if self.keeps_factorization else each  # others may wait for a GPU


def _check_disjoint(places: Sequence[Place], size: int) -> None:
    """Refuse places that overlap or extend beyond the vector."""
    stretches = sorted((s.start, s.start + s.numel) for place in places for s in place.segments)
    end = 0
    for start, stop in stretches:
        if start < end:
            raise ValueError(f"Places overlap: entries {start} to {min(end, stop) - 1} belong to two of them.")
        end = stop
    if end > size:
        raise ValueError(f"A place reaches entry {end - 1}, beyond the operator's size {size}.")
