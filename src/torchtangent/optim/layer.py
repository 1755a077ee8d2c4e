"""A layer with a Kronecker-factored block: its weight and bias as matrices [W b], its two second moments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from torchtangent.curvature.kronecker import OuterMoments
from torchtangent.curvature.moments import Moment
from torchtangent.jacobians.factors import Outer
from torchtangent.jacobians.patches import Patches
from torchtangent.operators import Basis, Columns, DenseOperator, Space


@dataclass(frozen=True, eq=False)
class Layer:
    """A weight, read as G matrices (O, I), and the bias as their last column.

    With `taps` > 1 the taps of a convolution count as uncorrelated (SUA, Grosse and Martens, 2016): the input factor is
    A = diag(A_c ⊗ I_taps, 1), where A_c is the second moment of the channels and the bias stands alone.

    Args:
        weight: Name of the weight.
        bias: Name of the bias, if it shares the weight's cotangents.
        space: Both, for their shapes.
        groups: G.
        order: The axes of one group's weight in matrix order.
        taps: Of a convolution, where they are taken as uncorrelated; 1 otherwise.
    """

    weight: str
    bias: str | None
    space: Space
    groups: int
    order: tuple[int, ...]
    taps: int

    @classmethod
    def of(cls, module: nn.Module, weight: str, bias: str | None, *, sua: bool) -> Layer:
        """The layer of a module that is linear in its weight: Linear or a convolution."""
        W: Tensor = module.weight  # type: ignore[assignment]
        shapes = {weight: W} if bias is None else {weight: W, bias: module.bias}
        order = tuple(range(W.dim()))
        if isinstance(module, _ConvTransposeNd):
            order = (1, 0, *order[2:])
        plain = isinstance(module, _ConvNd) and not isinstance(module, _ConvTransposeNd)
        taps = W[0, 0].numel() if sua and plain else 1
        groups = module.groups if isinstance(module, _ConvNd) else 1
        return cls(weight, bias, Space.of(shapes), groups, order, taps)  # type: ignore[arg-type]

    @property
    def names(self) -> list[str]:
        """Its parameters."""
        return list(self.space.names)

    @property
    def sua(self) -> bool:
        """Whether the taps are taken as uncorrelated."""
        return self.taps > 1

    def join(self, parts: dict[str, Tensor]) -> Float[Tensor, "G O J"]:
        """[W b] of tensors that have the shapes of the parameters."""
        W = parts[self.weight].unflatten(0, (self.groups, -1))
        matrix = W.permute(0, *(1 + i for i in self.order)).flatten(2)
        if self.bias is None:
            return matrix
        return torch.cat([matrix, parts[self.bias].view(self.groups, -1, 1).to(matrix)], 2)

    def split(self, matrix: Float[Tensor, "G O J"]) -> dict[str, Tensor]:
        """The inverse of `join`."""
        shape = self.space.shapes[0]
        group = (shape[0] // self.groups, *shape[1:])
        W = matrix if self.bias is None else matrix[:, :, :-1]
        W = W.reshape(self.groups, *(group[i] for i in self.order))
        back = sorted(range(len(self.order)), key=lambda i: self.order[i])
        parts = {self.weight: W.permute(0, *(1 + i for i in back)).reshape(shape)}
        if self.bias is not None:
            parts[self.bias] = matrix[:, :, -1].reshape(-1)
        return parts

    def moments(self, jacobians: Sequence[Outer], n: int) -> tuple[Float[Tensor, "G O O"], Float[Tensor, "G I I"]]:
        """B = Σ ddᵀ / n and A = Σ aaᵀ / (number of locations); with SUA A_c, over the pixels of the input."""
        if not self.sua:
            sums = OuterMoments(self.space, self.weight, jacobians[0], self.bias, "expand", thin=False)
            for jacobian in jacobians:
                sums.add({self.weight: jacobian})
            B, A = zip(*((_matrix(left), _matrix(right)) for left, right in sums.factors(n)), strict=True)
            return torch.stack(B), torch.stack(A)
        pixels = 0
        inputs, cotangents = Moment(thin=False), Moment(thin=False)
        for jacobian in jacobians:
            x = self._channels(jacobian)
            inputs.add_matrix(x @ x.mT)
            pixels += x.shape[2]
            d = jacobian.d.permute(1, 4, 0, 2, 3).flatten(2)
            cotangents.add_matrix(d @ d.mT)
        return (
            torch.stack([_matrix(b) for b in cotangents.operators(1 / n)]),
            torch.stack([_matrix(a) for a in inputs.operators(1 / pixels)]),
        )

    def squares(
        self, jacobians: Sequence[Outer], left: Float[Tensor, "G O O"], right: Float[Tensor, "G I I"]
    ) -> Float[Tensor, "G O J"]:
        """Σ_n (Uᵀ J_n)², the second moments of per-sample gradients in the basis U = left ⊗ right."""
        # Squares of squares of small numbers are subnormal, and slow: cotangents count in units of the largest.
        size = torch.stack([j.d.abs().amax() for j in jacobians]).amax().clamp(min=torch.finfo(left.dtype).tiny)
        left = left / size
        bases: list[tuple[Basis, Basis]] = [(Columns(b), Columns(a)) for b, a in zip(left, right, strict=True)]
        found = []
        for jacobian in jacobians:
            if self.sua:
                found.append(self._uncorrelated_squares(jacobian, left, right))
            else:
                sums = OuterMoments(self.space, self.weight, jacobian, self.bias, "expand", thin=False)
                found.append(torch.stack(sums.rotated_squares({self.weight: jacobian}, bases)))
        return (found[0] if len(found) == 1 else torch.stack(found).sum(0)) * size.square()

    def apply(
        self, matrix: Float[Tensor, "G O J"], left: Float[Tensor, "G O O"], right: Float[Tensor, "G I I"]
    ) -> Float[Tensor, "G O J"]:
        """left [W b] right; with SUA `right` acts on the channels and the bias column is only multiplied by `left`."""
        matrix = left @ matrix
        if not self.sua:
            return matrix @ right
        W = matrix if self.bias is None else matrix[:, :, :-1]
        W = torch.einsum("goct,gce->goet", W.unflatten(2, (-1, self.taps)), right).flatten(2)
        return W if self.bias is None else torch.cat([W, matrix[:, :, -1:]], 2)

    def columns(self, values: Float[Tensor, "G I"]) -> Float[Tensor, "G J"]:
        """Eigenvalues of the input factor, one for each column of [W b]."""
        if not self.sua:
            return values
        values = values.repeat_interleave(self.taps, 1)
        return values if self.bias is None else torch.cat([values, torch.ones_like(values[:, :1])], 1)

    def _channels(self, jacobian: Outer) -> Float[Tensor, "G I pixels"]:
        """What the channels held, all pixels side by side."""
        if isinstance(jacobian.locate, Patches):
            return jacobian.source.flatten(2).unflatten(1, (self.groups, -1)).permute(1, 2, 0, 3).flatten(2)
        return jacobian.a.unflatten(3, (-1, self.taps)).permute(1, 3, 0, 2, 4).flatten(2)

    def _uncorrelated_squares(self, jacobian: Outer, left: Tensor, right: Tensor) -> Float[Tensor, "G O J"]:
        """Rotating the channels of every pixel rotates the channels of every patch."""
        d = jacobian.d @ left.view(1, self.groups, 1, *left.shape[1:])
        if isinstance(jacobian.locate, Patches):
            x = jacobian.source.unflatten(1, (self.groups, -1))
            turned = torch.einsum("ngc...,gce->nge...", x, right).flatten(1, 2)
            total = replace(jacobian, source=turned, d=d).square_sum_matrix()
        else:
            a = jacobian.a.unflatten(3, (-1, self.taps))
            total = jacobian.at(torch.einsum("ngsct,gce->ngset", a, right).flatten(3), d).square_sum_matrix()
        if self.bias is None:
            return total
        return torch.cat([total, d.sum(3).square().sum((0, 2)).unsqueeze(2)], 2)


def _matrix(operator: object) -> Tensor:
    assert isinstance(operator, DenseOperator)
    return operator.matrix
