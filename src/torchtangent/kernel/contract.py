"""The ways to contract two factored layers into a block of the kernel, with their costs.

A way says what is kept of each sample (`keep`) and adds the inner products of two sets of samples to a block (`add`):
out += α ⟨J_n, J_m⟩. `Outputs` says which outputs are paired: there are B separate kernels, in each of which a sample
has R rows. The table is for B = 1.

| way | multiplications per pair | kept of a sample |
|---|---|---|
| formed | R² P | J |
| forming | R² P, and R S P for each sample and block | a, d |
| product (one location) | I + R² O | a, d |
| locations | S² (I + R² O) | a, d |
| pixels (convolutions) | S_in² channels (fewer with a stride) + R² S² O, and shifted sums | x, d |
| tokens (embeddings) | S² R² O | index, d |
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from jaxtyping import Float
from torch import Tensor

from torchtangent.jacobians.factors import LayerJacobian, Lookup, Outer
from torchtangent.jacobians.together import write
from torchtangent.kernel.precision import add_product, multiply
from torchtangent.kernel.way import STRIP, Block, Cost, Kept, Outputs, Way, alike, is_plain_convolution, strips
from torchtangent.operators import memory
from torchtangent.operators.product import product

_PATCHES = {"cpu": 1 << 22, "cuda": 1 << 30}  # bytes of patches at a time while J is formed: a CPU keeps them in cache


@dataclass(frozen=True)
class Formed(Way):
    """J itself is kept."""

    outputs: Outputs
    width: int  # parameters
    name = "formed"

    def cost(self) -> Cost:
        o = self.outputs
        P = self.width * o.folded
        return Cost(pair=o.batches * o.rows**2 * P, held=o.batches * o.rows * P)

    def keep(self, layer: LayerJacobian) -> Kept:
        J = memory.empty((layer.samples, layer.outputs, self.width), layer.d.dtype, layer.d.device)
        write(layer, J)
        return (self.outputs.arrange(J),)

    def add(self, out: Block, left: Kept, right: Kept, alpha: float, room: int) -> None:
        add_rows(out, left[0], right[0], alpha)


@dataclass(frozen=True)
class Forming(Way):
    """a and d are kept; J is formed anew for each block, some output units at a time."""

    outputs: Outputs
    layer: Outer  # of any samples: only its geometry matters
    name = "forming"

    @property
    def terms(self) -> int:  # type: ignore[override]
        return self.layer.d.shape[3]

    def cost(self) -> Cost:
        o, (G, C, S, O) = self.outputs, self.layer.d.shape[1:]
        I = self.layer.columns
        P = G * O * I * o.folded
        return Cost(
            pair=o.batches * o.rows**2 * P,
            sample=C * S * G * O * I,  # forms J
            held=self.layer.source[0].numel() + G * C * S * O,
            opened=G * S * I,  # a
            least=o.batches * o.rows * G * I,  # J of one output unit
        )

    def keep(self, layer: LayerJacobian) -> Kept:
        layer = alike(layer, self.layer)
        d = self.outputs.arrange(layer.d.transpose(1, 2)).permute(0, 3, 1, 2, 5, 4)
        return layer.source.movedim(1, -1) if is_plain_convolution(layer) else layer.source, d

    def add(self, out: Block, left: Kept, right: Kept, alpha: float, room: int) -> None:
        sides = [left] if left[0] is right[0] else [left, right]
        _, G, B, R, O, _ = left[1].shape
        per_unit = sum(len(d) for _, d in sides) * B * R * G * self.layer.columns * left[1].element_size()
        steps = math.ceil(O / max(1, room // max(1, per_unit)))
        step = math.ceil(O / steps)
        if steps > 1:  # every step reads all patches, so form them once
            sides = [(self._open(source), d) for source, d in sides]
        for i in range(0, O, step):
            units = [(source, d[..., i : i + step, :]) for source, d in sides]
            self._add_units(out, units, alpha, opened=steps > 1)

    def _add_units(self, out: Block, sides: Sequence[Kept], alpha: float, *, opened: bool) -> None:
        """Add the share of some output units; on return their J is freed, before the next is formed."""
        J = [self._form(*side, opened=opened) for side in sides]
        add_rows(out, J[0], J[-1], alpha)

    def _open(self, source: Tensor) -> Float[Tensor, "N G S I"]:
        """a, with the entries along I in an order of its own, which is the same on both sides."""
        if is_plain_convolution(self.layer):
            return self.layer.locate.channels_last(source).unsqueeze(1)  # type: ignore[attr-defined]
        return replace(self.layer, source=source).a_by_sample

    def _form(self, source: Tensor, d: Float[Tensor, "N G B R O S"], *, opened: bool) -> Float[Tensor, "N B R P"]:
        N, G, B, R, O, S = d.shape
        J = memory.empty((N * G, B * R * O, self.layer.columns), d.dtype, d.device)
        step = N if opened else max(1, _PATCHES.get(d.device.type, 1 << 24) // (G * S * J.shape[2] * d.element_size()))
        for i in range(0, N, step):
            a = source[i : i + step] if opened else self._open(source[i : i + step])
            product(d[i : i + step].reshape(-1, B * R * O, S), a.reshape(-1, S, J.shape[2]), J[i * G : (i + step) * G])
        return J.view(N, G, B, R, -1).permute(0, 2, 3, 1, 4).flatten(3)


@dataclass(frozen=True)
class Product(Way):
    """With one location ⟨J_n, J_m⟩ = (a_n·a_m)(d_n·d_m), or (a_n·a_m + 1)(d_n·d_m) together with the bias."""

    outputs: Outputs
    layer: Outer
    bias: bool = False
    name = "product"

    def cost(self) -> Cost:
        o, (G, C, _, O) = self.outputs, self.layer.d.shape[1:]
        I = self.layer.columns
        entries = o.batches * o.rows**2  # of the kernel, per pair of samples
        return Cost(
            pair=G * (I + entries * O * o.folded),
            traffic=G * (2 + 4 * entries),
            held=G * (I + C * O),
        )

    def keep(self, layer: LayerJacobian) -> Kept:
        layer = alike(layer, self.layer)
        return layer.a[:, :, 0], self.outputs.arrange(layer.d[:, :, :, 0].transpose(1, 2))

    def add(self, out: Block, left: Kept, right: Kept, alpha: float, room: int) -> None:
        B, _, R, M, Q = out.shape
        per_sample = M * (1 + Q + B * R * Q) * out.element_size()
        for g in range(left[0].shape[1]):
            start = end = 0
            for rows, columns in strips(out, left, right, room // per_sample):
                if rows.stop > end:  # with many outputs a strip has too few samples for a fast product: take several
                    start, end = rows.start, max(rows.stop, rows.start + STRIP)
                    A = multiply(left[0][start:end, g], right[0][: max(end, columns.stop), g])
                    if self.bias:
                        A += 1
                pairs = A[rows.start - start : rows.stop - start, None, : columns.stop, None]
                pairs = pairs.expand(-1, -1, -1, Q).flatten(2)  # repeated, so that addcmul_ runs over long rows
                D = multiply(_stack(left[1][rows, ..., g, :]), _stack(right[1][columns, ..., g, :]))
                target = out[:, rows, :, columns]
                target = target.view(*target.shape[:3], -1)
                target.addcmul_(pairs, D.view_as(target), value=alpha)


@dataclass(frozen=True)
class Locations(Way):
    """Σ_st (a_ns·a_mt)(d_ns·d_mt): two matrix products, then a sum over pairs of locations."""

    outputs: Outputs
    layer: Outer
    name = "locations"

    def cost(self) -> Cost:
        o, (G, C, S, O) = self.outputs, self.layer.d.shape[1:]
        I = self.layer.columns
        entries = o.batches * o.rows**2  # of the kernel, per pair of samples
        return Cost(
            pair=G * S**2 * (I + entries * O * o.folded),
            traffic=G * S**2 * (2 + 4 * entries),
            held=self.layer.source[0].numel() + G * C * S * O,
            opened=G * S * I,  # a
        )

    def keep(self, layer: LayerJacobian) -> Kept:
        layer = alike(layer, self.layer)
        return layer.source, self.outputs.arrange(layer.d.transpose(1, 2))

    def add(self, out: Block, left: Kept, right: Kept, alpha: float, room: int) -> None:
        a2 = self.layer.locate(right[0])
        S = a2.shape[2]
        for rows, columns in strips(out, left, right, room // pair_bytes(out, S)):
            a1 = self.layer.locate(left[0][rows])
            for g in range(a1.shape[1]):
                d1, d2 = left[1][rows, :, :, g], right[1][columns, :, :, g]
                for s in range(S):
                    A = multiply(a1[:, g, s], a2[columns, g].flatten(0, 1))
                    add_pairs(out[:, rows, :, columns], A.view(len(a1), -1, S), d1[..., s, :], d2, alpha)


@dataclass(frozen=True)
class Tokens(Way):
    """Embeddings: a is a unit vector, so a_ns·a_mt is 1 where both read the same row and 0 elsewhere."""

    outputs: Outputs
    layer: Lookup
    name = "tokens"

    def cost(self) -> Cost:
        o, (C, S, O) = self.outputs, self.layer.d.shape[1:]
        entries = o.batches * o.rows**2  # of the kernel, per pair of samples
        return Cost(
            pair=S**2 * entries * O * o.folded,
            traffic=S**2 * (2 + 4 * entries),
            held=S * (1 + C * O),
        )

    def keep(self, layer: LayerJacobian) -> Kept:
        layer = alike(layer, self.layer)
        return layer.index, self.outputs.arrange(layer.d)

    def add(self, out: Block, left: Kept, right: Kept, alpha: float, room: int) -> None:
        S = left[0].shape[1]
        for rows, columns in strips(out, left, right, room // pair_bytes(out, S)):
            for s in range(S):
                same = (left[0][rows, s, None, None] == right[0][None, columns]).to(out.dtype)
                add_pairs(out[:, rows, :, columns], same, left[1][rows, :, :, s], right[1][columns], alpha)


def add_rows(out: Block, J1: Float[Tensor, "N B R P"], J2: Float[Tensor, "M B R P"], alpha: float) -> None:
    """out += alpha J1 J2ᵀ; for a block on the diagonal, little more than its lower half."""
    B, _, _, M, Q = out.shape
    for rows, columns in strips(out, (J1,), (J2,), len(J1)):
        m = columns.stop
        for b in range(B):
            target = out[b, rows].view(-1, M * Q)[:, : m * Q]
            add_product(target, J1[rows, b].flatten(0, 1), J2[columns, b].flatten(0, 1), alpha)


def add_pairs(
    out: Float[Tensor, "B N R M Q"],
    A: Float[Tensor, "N M T"],
    d1: Float[Tensor, "N B R O"],
    d2: Float[Tensor, "M B R T O"],
    alpha: float,
) -> None:
    """out += alpha Σ_t A[n,m,t] d1[n]·d2[m,t]."""
    B, N, R, M, Q = out.shape
    D = multiply(_stack(d1), d2.transpose(0, 1).flatten(1, 3)).view(B, N, R, M, Q, -1)
    out.add_(D.mul_(A[:, None, :, None]).sum(-1), alpha=alpha)


def pair_bytes(out: Block, S: int) -> int:
    """Bytes of the products between one location of one sample and all locations of all samples on the other side."""
    B, _, R, M, Q = out.shape
    return max(1, M * S * (1 + 2 * B * R * Q) * out.element_size())


def _stack(d: Float[Tensor, "N B R O"]) -> Float[Tensor, "B n O"]:
    """The N·R rows of each of the B kernels, one below the other."""
    return d.transpose(0, 1).flatten(1, 2)
