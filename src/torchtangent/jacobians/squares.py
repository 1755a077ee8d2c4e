"""Sums of squared Jacobians of a weight, with only a small part of J in memory at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.operators.product import add_products, product

if TYPE_CHECKING:
    from torchtangent.jacobians.factors import Outer

_IN_CACHE = 1 << 22  # bytes of J at a time when a CPU forms and squares it
_MANY = 24  # with at least so many outputs, sums over them are matrix products; with fewer, loops
_WRITE_COST = 64  # multiplications that cost as much as writing, reading and squaring one entry of J


def sum_of_squares(layer: Outer) -> Float[Tensor, "G O I"]:
    """Σ_nc J², in matrix form, by the cheapest of three ways.

    The first expands the square, Σ_c (Σ_s d_cs a_s)² = Σ_{s≤t} (2 − δ_st) (Σ_c d_cs d_ct) (a_s a_t): one product over
    all samples with S(S+1)/2 multiplications per entry of the result, and no J to write. With one location, this is
    (Σ_c d²)ᵀ a². The others form J, with C·S multiplications and C numbers to write per entry: for some samples at a
    time or, if the J of one sample does not fit into a CPU's cache, for some rows of one sample at a time.
    """
    (_, G, C, S, O), I = layer.d.shape, layer.columns
    total = layer.d.new_zeros(G, O, I)
    item = layer.d.element_size()
    if S * (S + 1) // 2 <= C * (S + _WRITE_COST):
        for part in layer.chunks(S * (S + 1) // 2 * G * (I + O) * item):
            aa, dd = _pairs(part.a.unsqueeze(2)), _pairs(part.d)
            s, r = torch.triu_indices(S, S, device=dd.device)
            dd[:, s != r] *= 2
            add_products(total, dd.flatten(1, 2).mT, aa.flatten(1, 2))
    elif layer.d.device.type == "cpu" and C * O * I * item > _IN_CACHE:
        for part in layer.chunks(G * S * (C * O + I) * item):
            d = part.d.permute(0, 1, 4, 2, 3).reshape(-1, O * C, S)
            for i, (own, a) in enumerate(zip(d, part.a_by_sample.flatten(0, 1), strict=True)):
                _add_squares(total[i % G], own, a, C)
    else:
        for part in layer.chunks(G * C * O * I * item):
            d = part.d.transpose(3, 4).reshape(-1, C * O, S)
            J = product(d, part.a_by_sample.reshape(-1, S, I))
            total += J.square_().view(-1, G, C, O, I).sum((0, 2))
    return total


def _add_squares(total: Float[Tensor, "O I"], d: Float[Tensor, "OC S"], a: Float[Tensor, "S I"], c: int) -> None:
    """total += Σ_c J² of one sample, where J = d a is formed some rows at a time, so that it stays in the cache."""
    rows = max(1, _IN_CACHE // (c * a.shape[1] * a.element_size()))
    for own, place in zip(d.split(rows * c), total.split(rows), strict=True):
        place += product(own, a).square_().view(-1, c, a.shape[1]).sum(1)


def _pairs(t: Float[Tensor, "N G C S X"]) -> Float[Tensor, "G pairs N X"]:
    """Σ_c t[c,s] t[c,r] for all pairs of locations s ≤ r, in the order of `torch.triu_indices`."""
    if t.shape[2] >= _MANY:
        rows = t.permute(1, 0, 4, 3, 2)
        s, r = torch.triu_indices(t.shape[3], t.shape[3], device=t.device)
        return (rows @ rows.mT)[..., s, r].permute(0, 3, 1, 2)
    t = t.permute(1, 3, 2, 0, 4)
    G, S, _, N, X = t.shape
    if S > 1:
        t = t.contiguous()
    sums = t.new_empty(G, S * (S + 1) // 2, N, X)
    start = 0
    for s in range(S):
        block = sums[:, start : start + S - s]
        start += S - s
        if t.is_cuda:  # two kernels instead of one for each output
            torch.sum(t[:, s : s + 1] * t[:, s:], 2, out=block)
            continue
        torch.mul(t[:, s : s + 1, 0], t[:, s:, 0], out=block)
        for c in range(1, t.shape[2]):
            block.addcmul_(t[:, s : s + 1, c], t[:, s:, c])
    return sums
