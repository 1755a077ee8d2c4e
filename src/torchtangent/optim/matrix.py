"""Linear layers and convolutions: B is the second moment of cotangents, A that of inputs or patches [a 1]."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.curvature.kronecker import OuterMoments
from torchtangent.jacobians.factors import Outer
from torchtangent.operators import Basis, Columns, Space
from torchtangent.operators.product import empty_rows, product
from torchtangent.optim.layer import Layer, Parts, PerSample, Weight, each

_LESS = 0.9  # per-sample gradients are used only if they need less than this fraction of the multiplications


@final
@dataclass(frozen=True, eq=False)
class MatrixLayer(Layer):
    """[W b] with A = Σ aaᵀ / (number of locations), where a is an input or patch with 1 appended, and B = Σ ddᵀ / n."""

    weight: Weight

    @property
    def names(self) -> tuple[str, ...]:
        return self.weight.names

    def moments(
        self, per_sample: PerSample, n: int, share: float, scale: float | Tensor, *, by_rows: bool
    ) -> tuple[Float[Tensor, "G _ O"], Float[Tensor, "G _ I"]]:
        jacobians = outers(self, per_sample)
        sums = self._sums(jacobians[0], by_rows)
        for jacobian in jacobians:
            sums.add({self.key: jacobian})
        return sums.rows_or_lower(scale**2 / n, share)

    def thin(self, per_sample: PerSample) -> bool:
        jacobians = outers(self, per_sample)
        if len(jacobians) != 1 or not _vectors(jacobians[0]) or jacobians[0].d.device.type != "cpu":
            return False
        n, (rows, columns) = len(jacobians[0].d), self.weight.size
        products = n * (rows**2 + columns**2 + rows * columns), rows * columns * (rows + columns)
        return products[0] < _LESS * products[1]

    def rotate(
        self, parts: Parts, left: Float[Tensor, "G O O"], right: Float[Tensor, "G I I"], per_sample: PerSample = ()
    ) -> Float[Tensor, "G O J"]:
        if (factors := self._factors(parts, left[0], right[0], per_sample)) is not None:
            d, a, c = factors
            return product(d, a, reused=True).mul_(c).unsqueeze(0)
        half = self._half(left.mT, parts)
        return product(half, right, reused=True)

    def project(
        self,
        mean: Parts,
        per_sample: PerSample,
        left: Float[Tensor, "G O O"],
        right: Float[Tensor, "G I I"],
        scale: float | Tensor,
    ) -> tuple[Float[Tensor, "G O J"], Float[Tensor, "G O J"]]:
        jacobians = outers(self, per_sample)
        unit = size_of(jacobians)
        rescale = (unit * scale).square()
        if len(jacobians) == 1 and _vectors(jacobians[0]):
            d, a = self._rotated_vectors(jacobians[0], left[0], right[0])
            less = 2 * len(d) < d.shape[1] + a.shape[1]
            c = self._multiple(mean, jacobians[0]) if less else None
            g = self.rotate(mean, left, right) if c is None else product(d.mT, a, reused=True).mul_(c).unsqueeze(0)
            # Σ_n (d_n a_nᵀ)² = Σ_n d_n² (a_n²)ᵀ, squares being entrywise.
            return g, product(d.div_(unit).square_().mT, a.square_(), reused=True).mul_(rescale).unsqueeze(0)
        squares = summed([self._squares(jacobian, left / unit, right) for jacobian in jacobians])
        return self.rotate(mean, left, right), squares * rescale

    def back(
        self, turned: Float[Tensor, "G O J"], left: Float[Tensor, "G O O"], right: Float[Tensor, "G I I"]
    ) -> dict[str, Tensor]:
        return self._other_half(product(left, turned, reused=True), right)

    def multiply(
        self, parts: Parts, left: Float[Tensor, "G O O"], right: Float[Tensor, "G I I"], per_sample: PerSample = ()
    ) -> dict[str, Tensor]:
        factors = self._factors(parts, left[0].mT, right[0].mT, per_sample) if per_sample else None
        if factors is None:
            return self._other_half(self._half(left, parts), right)
        d, a, c = factors
        if self.weight.bias is None:
            return {self.key: product(d, a).mul_(c)}
        bias = each(d.unsqueeze(0), a[:, -1].unsqueeze(0)).view(-1).mul_(c)
        return {self.key: product(d, a[:, :-1]).mul_(c), self.weight.bias: bias}

    def explain(self, kind: str) -> dict[str, str]:
        return self.weight.explain(kind)

    def _half(self, left: Float[Tensor, "G O O"], parts: Parts) -> Float[Tensor, "G O J"]:
        """left [W b], without a copy of W."""
        W = self.weight.matrices(parts[self.key])
        if self.weight.bias is None:
            return product(left, W)
        b = parts[self.weight.bias].view(self.weight.groups, -1).to(W)
        half = empty_rows(W, *W.shape[:2], W.shape[2] + 1)
        product(left, W, out=half[:, :, :-1])
        half[:, :, -1] = each(left, b)
        return half

    def _other_half(self, half: Float[Tensor, "G O J"], right: Float[Tensor, "G I I"]) -> dict[str, Tensor]:
        """half rightᵀ, separately for weight and bias: a slice of the joint product would have to be copied."""
        if self.weight.bias is None:
            return {self.key: self.weight.tensor(product(half, right.mT))}
        return {
            self.key: self.weight.tensor(product(half, right[:, :-1].mT)),
            self.weight.bias: each(half, right[:, -1]).reshape(-1),
        }

    def _sums(self, jacobian: Outer, by_rows: bool = False) -> OuterMoments:
        """An empty accumulator for the second moments of this layer."""
        shapes = {self.key: torch.empty(self.weight.shape, device="meta")}
        if self.weight.bias is not None:
            rows = self.weight.size[0] * self.weight.groups
            shapes[self.weight.bias] = torch.empty(rows, device="meta")
        return OuterMoments(Space.of(shapes), self.key, jacobian, self.weight.bias, "expand", thin=by_rows)

    def _squares(self, jacobian: Outer, left: Tensor, right: Tensor) -> Float[Tensor, "G O J"]:
        """Σ_n (leftᵀ J_n right)², entry by entry."""
        bases: list[tuple[Basis, Basis]] = [(Columns(b), Columns(a)) for b, a in zip(left, right, strict=True)]
        return torch.stack(self._sums(jacobian).rotated_squares({self.key: jacobian}, bases))

    def _rotated_vectors(self, jacobian: Outer, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """d left and [a 1] right with a row per sample, where each sample has one location."""
        d, a = product(jacobian.d[:, 0, 0, 0], left), jacobian.a[:, 0, 0]
        if self.weight.bias is None:
            return d, product(a, right)
        return d, product(a, right[:-1], reused=True).add_(right[-1])

    def _factors(
        self, mean: Parts, left: Float[Tensor, "O O"], right: Float[Tensor, "I I"], per_sample: PerSample
    ) -> tuple[Float[Tensor, "O N"], Float[Tensor, "N J"], float] | None:
        """leftᵀ M right as two matrices and a number whose product it is, if that is possible and less work."""
        if not self.thin(per_sample):
            return None
        (jacobian,) = outers(self, per_sample)
        c = self._multiple(mean, jacobian)
        if c is None:
            return None
        d, a = self._rotated_vectors(jacobian, left, right)
        return d.mT, a, c

    def _multiple(self, mean: Parts, jacobian: Outer) -> float | None:
        """c if the mean gradient M is c Σ_n d [a 1]ᵀ, else None: the user may have changed the gradients.

        If it is, products with M can be computed from its factors, which is less work for small batches. Both sides are
        compared entry by entry, up to the rounding of the terms, after multiplication by a random vector from the left
        and, unless c = 1, from the right (with a single sample, one side alone could not tell). Not on GPUs, where the
        comparison would have to be waited for.
        """
        W, d, a = mean[self.key].flatten(1), jacobian.d[:, 0, 0, 0], jacobian.a[:, 0, 0]
        if W.device.type != "cpu" or d.dtype != W.dtype:
            return None
        b = None if self.weight.bias is None else mean[self.weight.bias].to(W)
        norm, norms = torch.linalg.vector_norm, _norms_of_columns
        left, size, count = _direction(W.shape[0], W.dtype), norm(d), math.sqrt(len(a))
        s = d @ left
        pairs = [(torch.mv(W.mT, left), s @ a, size * norms(a))]
        if b is not None:
            pairs.append((left @ b, s.sum(), size * count))
        if _are_multiples(pairs, 1.0, sum(W.shape)):  # as autograd left it
            return 1.0
        right, sizes = _direction(W.shape[1], W.dtype), norms(d)
        pairs.append((W @ right, (a @ right) @ d, sizes * norm(a)))
        if b is not None:
            pairs.append((b, d.sum(0), sizes * count))
        found, v = (torch.cat([(pair[i] / pair[2]).nan_to_num(0.0).view(-1) for pair in pairs]) for i in (0, 1))
        c = float(found @ v) / max(float(v @ v), torch.finfo(W.dtype).tiny)
        return c if _are_multiples(pairs, c, sum(W.shape)) else None


def outers(layer: Layer, per_sample: PerSample) -> list[Outer]:
    """The per-sample gradients of a layer's weight, for each backward pass that went through it."""
    found = [seen.get(layer.key) for seen in per_sample]
    return [jacobian for jacobian in found if isinstance(jacobian, Outer)]


def size_of(jacobians: list[Outer]) -> Tensor:
    """The root mean square of the cotangents, as a unit for them: subnormal squares would be ten times as slow."""
    sizes = [torch.linalg.vector_norm(jacobian.d) / math.sqrt(jacobian.d.numel()) for jacobian in jacobians]
    return torch.stack(sizes).amax().clamp(min=torch.finfo(sizes[0].dtype).tiny)


def _are_multiples(pairs: list[tuple[Tensor, Tensor, Tensor]], c: float, terms: int) -> bool:
    """Whether found = c v in every triple (found, v, size), up to the rounding of `terms` terms of that size."""
    allowed = 2 * math.sqrt(terms) * torch.finfo(pairs[0][0].dtype).eps * abs(c)
    return all(bool((torch.sub(found, v, alpha=c).abs_() <= allowed * size).all()) for found, v, size in pairs)


def _norms_of_columns(t: Float[Tensor, "N I"]) -> Float[Tensor, " I"]:
    """`torch.linalg.vector_norm(t, dim=0)`, in a quarter of its time on a CPU."""
    return torch.linalg.vecdot(t, t, dim=0).sqrt_()


def _vectors(jacobian: Outer) -> bool:
    """Whether J_n = d aᵀ: a linear layer, with one location per sample."""
    return jacobian.d.shape[1:4] == (1, 1, 1) and len(jacobian.shape) == 2


@cache
def _direction(size: int, dtype: torch.dtype) -> Float[Tensor, "I"]:
    """A fixed random vector, with no entry near zero, which would hide a difference."""
    r = torch.randn(size, generator=torch.Generator().manual_seed(0), dtype=dtype, device="cpu")
    return r + r.sign()


def summed(tensors: list[Tensor]) -> Tensor:
    """The sum of tensors; a single one is not copied."""
    return tensors[0] if len(tensors) == 1 else torch.stack(tensors).sum(0)
