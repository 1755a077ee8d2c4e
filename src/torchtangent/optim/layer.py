"""What a preconditioner needs of a block of parameters: to be G matrices, with second moments of rows and columns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from torchtangent.jacobians.factors import LayerJacobian
from torchtangent.jacobians.matrices import as_matrices, as_weight, transposed_order

Parts = Mapping[str, Tensor]
Passes = Sequence[Mapping[str, LayerJacobian]]  # per-sample gradients by parameter, for each backward pass


class Layer(ABC):
    """Parameters whose block of F is (nearly) B ⊗ A: the Kronecker product of two second moments."""

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """The parameters. The state of the block is kept with the first."""

    @property
    def key(self) -> str:
        """The parameter that the state of the block is kept with."""
        return self.names[0]

    @abstractmethod
    def rule(self, chosen: str) -> str:
        """How it is damped, if `chosen` is how layers with two factors are."""

    @abstractmethod
    def moments(
        self, passes: Passes, n: int, share: float, scale: float | Tensor, *, by_rows: bool
    ) -> tuple[Float[Tensor, "G _ O"], Float[Tensor, "G _ I"]]:
        """B and A of `scale` times the per-sample gradients: this rank's part of the means over all n samples.

        Their lower triangles: what stands above may be anything finite. Or, if they may be given `by_rows`, fewer
        rows r of which they are Σ r rᵀ. `share` is the part of the samples that this rank has.
        """

    def thin(self, passes: Passes) -> bool:
        """Whether to know each sample's gradient makes `rotate` and `multiply` less work, as for few samples."""
        return False

    @abstractmethod
    def rotate(
        self, parts: Parts, left: Float[Tensor, "G O O"], right: Float[Tensor, "G I I"], passes: Passes = ()
    ) -> Float[Tensor, "G *OJ"]:
        """leftᵀ M right of tensors that have the shapes of the parameters, as matrices M; arranged as it suits.

        M may be a multiple of the mean of the samples' gradients in `passes`, which is looked at where it saves work.
        """

    @abstractmethod
    def project(
        self,
        mean: Parts,
        passes: Passes,
        left: Float[Tensor, "G O O"],
        right: Float[Tensor, "G I I"],
        scale: float | Tensor,
    ) -> tuple[Float[Tensor, "G *OJ"], Float[Tensor, "G *OJ"]]:
        """`rotate(mean, left, right)` of the mean gradient, and Σ_n (scale · leftᵀ J_n right)² of each sample's."""

    @abstractmethod
    def back(
        self, turned: Float[Tensor, "G *OJ"], left: Float[Tensor, "G O O"], right: Float[Tensor, "G I I"]
    ) -> dict[str, Tensor]:
        """left M rightᵀ of what `rotate` gave, as tensors of their own that have the shapes of the parameters."""

    @abstractmethod
    def multiply(
        self, parts: Parts, left: Float[Tensor, "G O O"], right: Float[Tensor, "G I I"], passes: Passes = ()
    ) -> dict[str, Tensor]:
        """left M rightᵀ, from and to tensors that have the shapes of the parameters; `passes` as for `rotate`."""

    @abstractmethod
    def columns(self, values: Float[Tensor, "G I"]) -> Float[Tensor, "G J"]:
        """Eigenvalues of A, one for each column of a matrix."""

    @abstractmethod
    def arrange(self, matrix: Float[Tensor, "G O J"]) -> Float[Tensor, "G *OJ"]:
        """A number for each row and column, arranged like those of `rotate`."""

    def alone(self, alpha: Float[Tensor, "G 1"]) -> dict[str, Tensor]:
        """What is to be kept beside (A + α)⁻¹ where A leaves out a column that stands alone."""
        return {}

    @abstractmethod
    def explain(self, kind: str) -> dict[str, str]:
        """What is said of each parameter, if layers with two factors are of a `kind`."""


@dataclass(frozen=True, eq=False)
class Weight:
    """How the weight of a linear map is G matrices (O, I): a group of a convolution is a map of its own channels.

    Args:
        name: Of the weight.
        bias: Name of the bias, if it shares the weight's cotangents: the last column of [W b].
        shape: Of the weight.
        groups: G.
        order: The axes of one group's weight in matrix order, first O, then those of I.
    """

    name: str
    bias: str | None
    shape: torch.Size
    groups: int
    order: tuple[int, ...]

    @classmethod
    def of(cls, module: nn.Module, shape: torch.Size, name: str, bias: str | None) -> Weight:
        """A weight of a Linear layer, a convolution or attention."""
        dims = len(shape)
        order = transposed_order(dims) if isinstance(module, _ConvTransposeNd) else tuple(range(dims))
        groups = module.groups if isinstance(module, _ConvNd) else 1
        return cls(name, bias, shape, groups, order)

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
        """The weight, or what has its shape, as matrices."""
        return as_matrices(W, self.groups, self.order)

    def tensor(self, matrices: Float[Tensor, "G O I"]) -> Tensor:
        """The inverse of `matrices`."""
        return as_weight(matrices, self.shape, self.order)

    def explain(self, how: str, more: str = "") -> dict[str, str]:
        """Kind and size, and where the bias is."""
        rows, columns = self.size
        groups = f"{self.groups} groups of " if self.groups > 1 else ""
        said = {self.name: f"{how}, {groups}{rows} × {columns + (self.bias is not None)}{more}"}
        return said if self.bias is None else {**said, self.bias: f"{how}, last column of {self.name}"}


def each(a: Float[Tensor, "G X Y"], b: Float[Tensor, "G Y"]) -> Float[Tensor, "G X"]:
    """a b of a vector for each group, which is not a product with a matrix of one column: twice as slow on a CPU."""
    return torch.mv(a[0], b[0].contiguous()).unsqueeze(0) if len(a) == 1 else torch.bmm(a, b.unsqueeze(2)).squeeze(2)
