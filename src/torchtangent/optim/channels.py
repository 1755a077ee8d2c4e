"""Convolutions with uncorrelated taps (SUA): a small input factor over channels instead of a large one over patches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.jacobians.factors import Outer
from torchtangent.jacobians.patches import Patches
from torchtangent.operators.product import product
from torchtangent.optim.layer import Layer, Parts, PerSample, Weight
from torchtangent.optim.matrix import outers, size_of, summed


@final
@dataclass(frozen=True, eq=False)
class ChannelsLayer(Layer):
    """A convolution whose taps are treated as uncorrelated (SUA, Grosse and Martens, 2016): A = diag(I_taps ⊗ A_c, 1).

    A_c is the second moment of the channels over the pixels of the input; the 1 belongs to the bias. Columns are in
    order of taps, so that multiplying by A_c is one matrix product. The layout of `rotate` has the numbers of all
    weights first, then those of the bias: as a column, it would make rows start at odd addresses, slow on GPUs.
    """

    weight: Weight
    taps: int

    @property
    def names(self) -> tuple[str, ...]:
        return self.weight.names

    def moments(
        self, per_sample: PerSample, n: int, share: float, scale: float | Tensor, *, by_rows: bool
    ) -> tuple[Float[Tensor, "G O O"], Float[Tensor, "G I I"]]:
        inputs, cotangents, pixels = [], [], 0
        for jacobian in outers(self, per_sample):
            x = self._channels(jacobian)
            pixels += x.shape[0] * x.shape[3]
            inputs.append(_gram(x.mT))
            cotangents.append(_gram(jacobian.d.flatten(2, 3)))
        return summed(cotangents) * (scale**2 / n), summed(inputs) * (share / pixels)

    def rotate(
        self, parts: Parts, left: Float[Tensor, "G O O"], right: Float[Tensor, "G I I"], per_sample: PerSample = ()
    ) -> Float[Tensor, "G OJ"]:
        W, b = self._by_taps(parts)
        W = self._mix(W, right)
        if b is None:
            return product(left.mT, W).flatten(1)
        G, O, columns = W.shape
        found = W.new_empty(G, O * (columns + 1))
        product(left.mT, W, out=found[:, :-O].view(W.shape))
        product(left.mT, b, out=found[:, -O:].unsqueeze(2))
        return found

    def project(
        self,
        mean: Parts,
        per_sample: PerSample,
        left: Float[Tensor, "G O O"],
        right: Float[Tensor, "G I I"],
        scale: float | Tensor,
    ) -> tuple[Float[Tensor, "G OJ"], Float[Tensor, "G OJ"]]:
        jacobians = outers(self, per_sample)
        unit = size_of(jacobians)
        squares = summed([self._squares(jacobian, left / unit, right) for jacobian in jacobians])
        return self.rotate(mean, left, right), squares * (unit * scale).square()

    def back(
        self, turned: Float[Tensor, "G OJ"], left: Float[Tensor, "G O O"], right: Float[Tensor, "G I I"]
    ) -> dict[str, Tensor]:
        G, (O, _) = self.weight.groups, self.weight.size
        if self.weight.bias is None:
            return self._products(turned.view(G, O * self.taps, -1), None, left, right)
        W, b = turned[:, :-O], turned[:, -O:]
        return self._products(W.view(G, O * self.taps, -1), b.unsqueeze(2), left, right)

    def multiply(
        self, parts: Parts, left: Float[Tensor, "G O O"], right: Float[Tensor, "G I I"], per_sample: PerSample = ()
    ) -> dict[str, Tensor]:
        return self._products(*self._by_taps(parts), left, right)

    def columns(self, values: Float[Tensor, "G I"]) -> Float[Tensor, "G J"]:
        values = values.repeat(1, self.taps)
        return values if self.weight.bias is None else torch.cat([values, torch.ones_like(values[:, :1])], 1)

    def arrange(self, matrix: Float[Tensor, "G O J"]) -> Float[Tensor, "G OJ"]:
        if self.weight.bias is None:
            return matrix.flatten(1)
        return torch.cat([matrix[:, :, :-1].flatten(1), matrix[:, :, -1]], 1)

    def alone(self, alpha: Float[Tensor, "G 1"]) -> dict[str, Tensor]:
        return {} if self.weight.bias is None else {"alone": 1 / (1 + alpha)}  # the bias, whose factor is 1

    def explain(self, kind: str) -> dict[str, str]:
        return self.weight.explain(kind, ", taps uncorrelated")

    def _by_taps(self, parts: Parts) -> tuple[Float[Tensor, "G O_taps I"], Float[Tensor, "G O 1"] | None]:
        """The weight with one row per output and tap, and the bias."""
        G, (O, _) = self.weight.groups, self.weight.size
        W = parts[self.key].reshape(G, O, -1, self.taps).mT.reshape(G, O * self.taps, -1)
        return W, None if self.weight.bias is None else parts[self.weight.bias].view(G, O, 1).to(W)

    def _mix(self, W: Float[Tensor, "G O_taps I"], right: Float[Tensor, "G I I"]) -> Float[Tensor, "G O taps_I"]:
        """The channels of every tap times `right`."""
        return product(W, right).view(W.shape[0], self.weight.size[0], -1)

    def _products(
        self,
        W: Float[Tensor, "G O_taps I"],
        b: Float[Tensor, "G O 1"] | None,
        left: Float[Tensor, "G O O"],
        right: Float[Tensor, "G I I"],
    ) -> dict[str, Tensor]:
        """left W rightᵀ of every tap, and left b, as tensors shaped like the parameters."""
        found = product(left, self._mix(W, right.mT)).view(*left.shape[:2], self.taps, -1)
        # Contiguous like the parameter: torch moves a whole group at once only if strides agree.
        parts = {self.key: found.mT.contiguous().view(self.weight.shape)}
        if b is not None:
            parts[self.names[1]] = product(left, b).view(-1)
        return parts

    def _channels(self, jacobian: Outer) -> Float[Tensor, "N G I pixels"]:
        """The channels of the input, pixel by pixel."""
        if isinstance(jacobian.locate, Patches):
            return jacobian.source.flatten(2).unflatten(1, (self.weight.groups, -1))
        return jacobian.a.unflatten(3, (-1, self.taps)).permute(0, 1, 3, 2, 4).flatten(3)

    def _squares(self, jacobian: Outer, left: Tensor, right: Tensor) -> Float[Tensor, "G OJ"]:
        """Σ_n (leftᵀ J_n right)², entry by entry: rotating the channels of the pixels rotates those of the patches."""
        G = self.weight.groups
        d = jacobian.d @ left.view(1, G, 1, *left.shape[1:])
        if isinstance(jacobian.locate, Patches):
            x = self._channels(jacobian)
            turned = (right.mT @ x).reshape(jacobian.source.shape)
            total = replace(jacobian, source=turned, d=d).square_sum_matrix()
        else:
            a = jacobian.a.unflatten(3, (-1, self.taps))
            total = jacobian.at(torch.einsum("ngsct,gce->ngset", a, right).flatten(3), d).square_sum_matrix()
        total = total.unflatten(2, (-1, self.taps)).mT.flatten(1)
        return total if self.weight.bias is None else torch.cat([total, d.sum(3).square().sum((0, 2))], 1)


def _gram(t: Float[Tensor, "N G S X"]) -> Float[Tensor, "G X X"]:
    """Σ ttᵀ over samples and locations: if there are many locations sample by sample, without a copy; else at once."""
    if t.shape[2] >= t.shape[3]:
        return (t.mT @ t).sum(0)
    rows = t.transpose(0, 1).flatten(1, 2)
    return rows.mT @ rows
