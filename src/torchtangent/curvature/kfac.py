"""KFAC: each layer's block as a Kronecker product of two small second moments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchtangent.curvature.cotangents import check_choice
from torchtangent.curvature.diagonal import Diagonal
from torchtangent.curvature.kronecker import LayerMoments, LookupMoments, OuterMoments
from torchtangent.curvature.representation import (
    Accumulator,
    Blocks,
    Choice,
    Layers,
    Representation,
    by_module,
    resolve,
)
from torchtangent.jacobians.factors import Lookup, Outer, Scale
from torchtangent.operators import KroneckerOperator, Space


@dataclass(frozen=True)
class KFAC(Representation):
    """F_layer ≈ B ⊗ A, with A the second moment of a layer's inputs and B that of its cotangents.

    Martens and Grosse (2015); Grosse and Martens (2016) for convolutions; Eschenhagen et al. (2023) for the two
    ways to treat a weight that is shared over S locations:

    - expand: A = Σ_ns a aᵀ / (N·S), B = Σ_nsm d dᵀ / N;
    - reduce: the same with a averaged and d summed over the locations first.

    The bias is the last column of [W b], with a = 1. Groups of a convolution are blocks of their own, and so is a
    weight that is tied to another module. Embeddings have a diagonal A (always expand).

    Args:
        sharing: "expand" or "reduce".
        rest: The representation of what is no matrix of a linear map: norm layers, biases on their own,
            parameters without a rule.
    """

    sharing: str = "expand"
    rest: Choice = Diagonal

    def __post_init__(self) -> None:
        check_choice("sharing", self.sharing, ("expand", "reduce"))

    def start(self, space: Space, names: Sequence[str]) -> Accumulator:
        return KroneckerSum(space, names, self.sharing, self.rest)


class KroneckerSum(Accumulator):
    """A and B of every layer, and something else for the parameters that are no matrix."""

    def __init__(self, space: Space, names: Sequence[str], sharing: str, rest: Choice) -> None:
        self.space, self.names, self.sharing = space, names, sharing
        self.rest_kind = resolve(rest)
        self.rest: Accumulator | None = None
        self.layers: list[LayerMoments] = []
        self.started = False

    def update(self, layers: Layers) -> None:
        if not self.started:
            self._start(layers)
        for moments in self.layers:
            moments.add(layers)
        if self.rest is not None:
            self.rest.update(layers)

    def _start(self, layers: Layers) -> None:
        """The first samples show which parameters are matrices of a linear map."""
        self.started = True
        free = dict.fromkeys(self.names)
        for path, own in by_module(self.names).items():
            bias = f"{path}.bias" if path else "bias"
            for name in own:
                layer = layers[name]
                if isinstance(layer, Lookup):
                    self.layers.append(LookupMoments(self.space, name, layer))
                    del free[name]
                elif isinstance(layer, Outer):
                    b = layers[bias] if bias in own else None
                    joint = isinstance(b, Scale) and b.x is None and b.origin == layer.origin
                    self.layers.append(OuterMoments(self.space, name, layer, bias if joint else None, self.sharing))
                    del free[name]
                    if joint:
                        del free[bias]
        if free:
            self.rest = self.rest_kind.start(self.space, list(free))

    def finish(self, n: int) -> Blocks:
        blocks: Blocks = self.rest.finish(n) if self.rest is not None else []
        for layer in self.layers:
            for place, (left, right) in zip(layer.places, layer.factors(n), strict=True):
                blocks.append((place, KroneckerOperator(left, right)))
        return blocks
