"""Norm layers and lone biases: their block of F is small enough to be exact, or is taken channel by channel."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.optim.layer import Layer, Parts, PerSample

LARGEST = 1024  # parameters of an exact block: its decomposition costs about as much as that of a wide layer's factor


@final
@dataclass(frozen=True, eq=False)
class VectorLayer(Layer):
    """A = E[JᵀJ] and B = 1, where J has all parameters of a layer side by side or, if `apart`, those of each channel.

    A is the whole block: nothing is approximated, except that `apart` neglects correlations between channels.

    Args:
        shapes: The shapes of the parameters, by name; all the same if `apart`.
        apart: Whether each channel has a block of its own.
    """

    shapes: Mapping[str, torch.Size]
    apart: bool

    @classmethod
    def of(cls, shapes: Mapping[str, torch.Size]) -> VectorLayer:
        """One block if it is small enough, else one per channel."""
        return cls(shapes, sum(shape.numel() for shape in shapes.values()) > LARGEST)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.shapes)

    def rule(self, chosen: str) -> str:
        return "single"  # there is only one factor to damp

    def moments(
        self, per_sample: PerSample, n: int, share: float, scale: float | Tensor, *, by_rows: bool
    ) -> tuple[Float[Tensor, "G 1 1"], Float[Tensor, "G _ J"]]:
        J = self._jacobian(per_sample)
        few = by_rows and J.shape[1] <= J.shape[2] // 2
        A = J * (scale / math.sqrt(n)) if few else J.mT @ J * (scale**2 / n)
        return torch.full_like(A[:, :1, :1], share), A

    def rotate(
        self, parts: Parts, left: Float[Tensor, "G 1 1"], right: Float[Tensor, "G J J"], per_sample: PerSample = ()
    ) -> Float[Tensor, "G 1 J"]:
        return self._join(parts) @ right

    def project(
        self,
        mean: Parts,
        per_sample: PerSample,
        left: Float[Tensor, "G 1 1"],
        right: Float[Tensor, "G J J"],
        scale: float | Tensor,
    ) -> tuple[Float[Tensor, "G 1 J"], Float[Tensor, "G 1 J"]]:
        squares = (self._jacobian(per_sample) @ right * scale).square_().sum(1, keepdim=True)
        return self.rotate(mean, left, right), squares

    def back(
        self, turned: Float[Tensor, "G 1 J"], left: Float[Tensor, "G 1 1"], right: Float[Tensor, "G J J"]
    ) -> dict[str, Tensor]:
        found = (turned @ right.mT).squeeze(1)
        sizes = [shape.numel() for shape in self.shapes.values()]
        pieces = found.unbind(1) if self.apart else found[0].split(sizes)
        named = zip(self.shapes.items(), pieces, strict=True)
        return {name: piece.contiguous().view(shape) for (name, shape), piece in named}

    def multiply(
        self, parts: Parts, left: Float[Tensor, "G 1 1"], right: Float[Tensor, "G J J"], per_sample: PerSample = ()
    ) -> dict[str, Tensor]:
        return self.back(self._join(parts), left, right)

    def explain(self, kind: str) -> dict[str, str]:
        size = sum(shape.numel() for shape in self.shapes.values())
        how = f"exact block, {size} × {size}"
        if self.apart:
            width = len(self.names)
            how = f"a block for each channel, {width} × {width}" if width > 1 else "diagonal"
        said = dict.fromkeys(self.names, f"{how}, with {self.key}")
        return {**said, self.key: how}

    def _join(self, parts: Parts) -> Float[Tensor, "G 1 J"]:
        """Tensors shaped like the parameters as one row per block."""
        return self._blocks([parts[name].flatten() for name in self.names]).unsqueeze(1)

    def _blocks(self, columns: list[Float[Tensor, "*N P"]]) -> Float[Tensor, "G *N J"]:
        """The columns of all parameters as one block, or as one block per channel."""
        if self.apart:
            return torch.stack(columns, -1).movedim(-2, 0)
        return torch.cat(columns, -1).unsqueeze(0)

    def _jacobian(self, per_sample: PerSample) -> Float[Tensor, "G N J"]:
        """The per-sample gradients of all backward passes."""
        found = []
        for seen in per_sample:
            here = [seen[name] for name in self.names if name in seen]
            if here:
                like = here[0].d.new_zeros(here[0].samples, 1)
                columns = [
                    seen[name].flat()[:, 0] if name in seen else like.expand(-1, shape.numel())
                    for name, shape in self.shapes.items()
                ]
                found.append(self._blocks(columns))
        return found[0] if len(found) == 1 else torch.cat(found, 1)
