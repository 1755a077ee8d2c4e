"""KFAC: each layer's block as a Kronecker product of two small second-moment matrices."""

from __future__ import annotations

from dataclasses import dataclass

from torchtangent.curvature.diagonal import Diagonal
from torchtangent.curvature.kronecker import LayerMoments, LookupMoments, OuterMoments
from torchtangent.curvature.representation import Accumulator, Blocks, Choice, Layers, Representation, Scope, resolve
from torchtangent.jacobians.factors import Dense, Lookup, Outer
from torchtangent.jacobians.together import is_bias_of
from torchtangent.notice import check_choice, listed, warn
from torchtangent.operators import KroneckerOperator


@dataclass(frozen=True)
class KFAC(Representation):
    """F_layer ≈ B ⊗ A, with A the second moment of a layer's inputs and B that of its cotangents.

    Martens and Grosse (2015); Grosse and Martens (2016) for convolutions; Eschenhagen et al. (2023) for the two
    ways to treat a weight that is shared over S locations:

    - expand: A = Σ_ns a aᵀ / (N·S), B = Σ_nsm d dᵀ / N;
    - reduce: the same with a averaged and d summed over the locations first.

    The bias is the last column of [W b], with a = 1. Each group of a convolution has a block of its own, and so does a
    weight that is tied to another module. Embeddings have a diagonal A and always use expand.

    Args:
        sharing: "expand" or "reduce".
        rest: The representation of parameters that are not the matrix of a linear map: norm layers, lone biases,
            parameters without a rule. If a weight without a rule gets a diagonal, there is a warning.
    """

    sharing: str = "expand"
    rest: Choice = Diagonal

    def __post_init__(self) -> None:
        check_choice("sharing", self.sharing, ("expand", "reduce"))

    def start(self, scope: Scope) -> Accumulator:
        return KroneckerSum(scope, self.sharing, self.rest)


class KroneckerSum(Accumulator):
    """A and B of every layer, and another accumulator for the parameters that are not matrices."""

    def __init__(self, scope: Scope, sharing: str, rest: Choice, *, thin: bool = True) -> None:
        self.scope, self.sharing, self.thin = scope, sharing, thin
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

    def again(self, layers: Layers) -> None:
        for moments in self.layers:
            moments.add_cotangents(layers)
        if self.rest is not None:
            self.rest.again(layers)

    def _start(self, layers: Layers) -> None:
        """Sort the parameters: the first samples show which ones are matrices of linear maps."""
        self.started = True
        free = dict.fromkeys(self.scope.names)
        for own in self.scope.modules().values():
            for name in own:
                layer = layers[name]
                if isinstance(layer, Lookup):
                    self.layers.append(LookupMoments(self.scope.space, name, layer))
                    del free[name]
                elif isinstance(layer, Outer):
                    bias = next((other for other in own if is_bias_of(layers[other], layer)), None)
                    self.layers.append(OuterMoments(self.scope.space, name, layer, bias, self.sharing, thin=self.thin))
                    del free[name]
                    if bias is not None:
                        del free[bias]
        if free:
            self.rest = self.rest_kind.start(self.scope.part(list(free)))
        unknown = [name for name in free if isinstance(layers[name], Dense) and len(layers[name].shape) > 1]
        if unknown and isinstance(self.rest_kind, Diagonal):
            warn(
                f"No Kronecker factors are known for {listed(unknown)}: {len(unknown)} of {len(self.scope.names)} "
                "parameters have a diagonal block. To keep more of F pass rest=, as in tt.KFAC(rest=tt.BlockDiagonal), "
                "or leave them out with params=."
            )

    def finish(self, n: int) -> Blocks:
        blocks: Blocks = self.rest.finish(n) if self.rest is not None else []
        for layer in self.layers:
            for place, (left, right) in zip(layer.places, layer.factors(n), strict=True):
                blocks.append((place, KroneckerOperator(left, right)))
        return blocks
