"""The interface of a block of parameters: G matrices, with second moments of their rows and of their columns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from torchtangent.jacobians.factors import LayerJacobian
from torchtangent.jacobians.matrices import as_matrices, as_weight
from torchtangent.jacobians.rules import weight_order

Parts = Mapping[str, Tensor]
PerSample = Sequence[Mapping[str, LayerJacobian]]  # per-sample gradients by parameter, for each batch


class Layer(ABC):
    """Parameters whose block of F is, or is approximated by, a Kronecker product B ⊗ A of two second moments.

    Axes: G matrices of O rows and J columns; A has I rows, where I = J unless columns share a factor.
    """

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """The names of the parameters."""

    @property
    def key(self) -> str:
        """The first parameter, under which the state of the block is kept."""
        return self.names[0]

    def rule(self, chosen: str) -> str:
        """The damping rule for this block, if `chosen` is the one for blocks with two factors."""
        return chosen

    @abstractmethod
    def moments(
        self, per_sample: PerSample, n: int, share: float, scale: float | Tensor, *, by_rows: bool
    ) -> tuple[Float[Tensor, "G _ O"], Float[Tensor, "G _ I"]]:
        """B and A of the per-sample gradients times `scale`: this rank's part of the means over all n samples.

        Only their lower triangles are defined; the rest is finite. If `by_rows` allows it, a second moment may be
        given as fewer rows r, of which it is Σ r rᵀ. `share` is the fraction of the samples that is on this rank.
        """

    def thin(self, per_sample: PerSample) -> bool:
        """Whether `rotate` and `multiply` are cheaper with the per-sample gradients, as for few samples."""
        return False

    @abstractmethod
    def rotate(
        self, parts: Parts, left: Float[Tensor, "G O O"], right: Float[Tensor, "G I I"], per_sample: PerSample = ()
    ) -> Float[Tensor, "G *OJ"]:
        """leftᵀ M right, where `parts` are tensors shaped like the parameters and M their matrices.

        The layout of the result is the layer's own; see `arrange`. If M may be a multiple of the mean of the
        per-sample gradients, these can be given as `per_sample`: they are used if that saves work and M is one.
        """

    @abstractmethod
    def project(
        self,
        mean: Parts,
        per_sample: PerSample,
        left: Float[Tensor, "G O O"],
        right: Float[Tensor, "G I I"],
        scale: float | Tensor,
    ) -> tuple[Float[Tensor, "G *OJ"], Float[Tensor, "G *OJ"]]:
        """`rotate(mean, left, right)` of the mean gradient, and Σ_n (scale · leftᵀ J_n right)² over the samples."""

    @abstractmethod
    def back(
        self, turned: Float[Tensor, "G *OJ"], left: Float[Tensor, "G O O"], right: Float[Tensor, "G I I"]
    ) -> dict[str, Tensor]:
        """left M rightᵀ for an M in the layout of `rotate`, as new tensors shaped like the parameters."""

    @abstractmethod
    def multiply(
        self, parts: Parts, left: Float[Tensor, "G O O"], right: Float[Tensor, "G I I"], per_sample: PerSample = ()
    ) -> dict[str, Tensor]:
        """left M rightᵀ, from and to tensors shaped like the parameters; `per_sample` as in `rotate`."""

    def columns(self, values: Float[Tensor, "G I"]) -> Float[Tensor, "G J"]:
        """The eigenvalues of A as one number per column of a matrix."""
        return values

    def arrange(self, matrix: Float[Tensor, "G O J"]) -> Float[Tensor, "G *OJ"]:
        """A matrix with one number per row and column, in the layout of `rotate`."""
        return matrix

    def alone(self, alpha: Float[Tensor, "G 1"]) -> dict[str, Tensor]:
        """What has to be kept beside (A + α)⁻¹ if one column is not part of A."""
        return {}

    @abstractmethod
    def explain(self, kind: str) -> dict[str, str]:
        """A description of each parameter, where blocks with two factors are called `kind`."""


@dataclass(frozen=True, eq=False)
class Weight:
    """The weight of a linear map as G matrices (O, I), one per group of a convolution.

    Args:
        name: The name of the weight.
        bias: The name of the bias if it is the last column of [W b], that is, if it shares the weight's cotangents.
        shape: The shape of the weight.
        groups: G.
        order: The axes of one group's weight in matrix order: first O, then those of I.
    """

    name: str
    bias: str | None
    shape: torch.Size
    groups: int
    order: tuple[int, ...]

    @classmethod
    def of(cls, module: nn.Module, shape: torch.Size, name: str, bias: str | None) -> Weight:
        """The weight of a Linear layer, of a convolution or of attention."""
        groups = module.groups if isinstance(module, _ConvNd) else 1
        return cls(name, bias, shape, groups, weight_order(module, len(shape)))

    @cached_property
    def names(self) -> tuple[str, ...]:
        return (self.name,) if self.bias is None else (self.name, self.bias)

    @cached_property
    def size(self) -> tuple[int, int]:
        """O and I."""
        group = (self.shape[0] // self.groups, *self.shape[1:])
        rows = group[self.order[0]]
        return rows, self.shape.numel() // (self.groups * rows)

    def matrices(self, W: Tensor) -> Float[Tensor, "G O I"]:
        """A tensor shaped like the weight as matrices."""
        return as_matrices(W, self.groups, self.order)

    def tensor(self, matrices: Float[Tensor, "G O I"]) -> Tensor:
        """The inverse of `matrices`."""
        return as_weight(matrices, self.shape, self.order)

    def explain(self, how: str, more: str = "") -> dict[str, str]:
        """A description of weight and bias: kind, size, and that the bias is a column of the weight."""
        rows, columns = self.size
        groups = f"{self.groups} groups of " if self.groups > 1 else ""
        said = {self.name: f"{how}, {groups}{rows} × {columns + (self.bias is not None)}{more}"}
        return said if self.bias is None else {**said, self.bias: f"{how}, last column of {self.name}"}


def each(a: Float[Tensor, "G X Y"], b: Float[Tensor, "G Y"]) -> Float[Tensor, "G X"]:
    """a b for one vector b per group. As a product with a one-column matrix it would take twice as long on a CPU."""
    return torch.mv(a[0], b[0].contiguous()).unsqueeze(0) if len(a) == 1 else torch.bmm(a, b.unsqueeze(2)).squeeze(2)
