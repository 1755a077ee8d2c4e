"""Products of J and Jᵀ with many columns at once, in sweeps over the samples.

Rows are samples, and within a sample its outputs: row n·C + c is output c of sample n, as in `tt.flatten`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.jacobians.capture import BUDGET, Capture
from torchtangent.jacobians.factors import LayerJacobian, Outer
from torchtangent.jacobians.inputs import Inputs, batch_size
from torchtangent.jacobians.products import push
from torchtangent.kernel.samples import Samples

_COLUMN_BYTES = 1 << 30  # for vectors in parameter space that are held at a time


def split_columns(capture: Capture, V: Float[Tensor, "... K"]) -> tuple[Float[Tensor, "... k"], ...]:
    """V in blocks of columns, few enough to hold one vector in parameter space for each."""
    return V.split(max(1, _COLUMN_BYTES // (capture.space.size * V.element_size())), -1)


def pull_columns(capture: Capture, samples: Samples, U: Float[Tensor, "N C K"]) -> Float[Tensor, "P K"]:
    """JᵀU: one backward pass per column or, with more columns than outputs, each sample's J formed once."""
    C, K = U.shape[1:]
    G = U.new_zeros(K, capture.space.size).T  # so that each column is contiguous
    for rows, x in batches(capture, samples):
        u = U[rows.start // C : rows.stop // C]
        if K <= C:
            _differentiate(capture, x, u.flatten(0, 1), G)
        else:
            for place, layer in _placed(capture, x):
                _pull(layer, u, G[place])
    return G


def push_columns(capture: Capture, samples: Samples, G: Float[Tensor, "P K"]) -> Float[Tensor, "rows K"]:
    """J G: one forward-mode pass per column or, with no fewer columns than outputs, each sample's J formed once."""
    one_by_one = G.shape[1] < capture.output_shape.numel()
    return torch.cat([(_push_each if one_by_one else _push_all)(capture, x, G) for _, x in batches(capture, samples)])


def batches(capture: Capture, samples: Samples) -> Iterator[tuple[slice, Inputs]]:
    """The samples in batches, each with its range of rows; small enough to form the J of any one layer."""
    with samples.explaining():
        capture.check(samples.few())
    outputs = capture.output_shape.numel()
    largest = outputs * max(p.numel() * max(4, p.element_size()) for p in capture.params.values())
    step = min(capture.samples_within(BUDGET, outputs), max(1, capture.budget(BUDGET) // largest))
    for start in range(0, len(samples), step):
        stop = min(start + step, len(samples))
        yield slice(start * outputs, stop * outputs), samples.batch(start, stop)


def square_sum(layers: dict[str, LayerJacobian]) -> float:
    """‖J‖², the trace of the kernel."""
    return sum(float(layer.square_sum().sum()) for layer in layers.values())


def _pull(layer: LayerJacobian, U: Float[Tensor, "N C K"], G: Float[Tensor, "p K"]) -> None:
    """G += JᵀU for one parameter, by forming J or, where that is cheaper, by first contracting d with U."""
    C, K = U.shape[1:]
    if isinstance(layer, Outer):
        groups, S, O = layer.d.shape[1], *layer.d.shape[3:]
        I = layer.columns
        if 2 * K * S * (I + C) < C * (S + K) * I:
            start = 0
            for part in layer.chunks(groups * K * S * O * U.element_size()):
                stop = start + part.samples
                d = torch.einsum("ngcso,nck->ngkso", part.d, U[start:stop])
                G += replace(part, d=d).regroup(1).flat()[0].T  # read as one sample's locations, samples are summed
                start = stop
            return
    G.addmm_(layer.flat().flatten(0, 1).T, U.flatten(0, 1))


def _differentiate(capture: Capture, x: Inputs, U: Float[Tensor, "rows K"], G: Float[Tensor, "P K"]) -> None:
    """G += JᵀU, by one backward pass per column."""
    trace = capture.trace(x)
    for u, g in zip(U.unbind(1), G.unbind(1), strict=True):
        gradient = trace.gradient(u.to(trace.outputs.dtype).view_as(trace.outputs))
        g += torch.cat([v.flatten() for v in gradient.values()])


def _push_each(capture: Capture, x: Inputs, G: Float[Tensor, "P K"]) -> Float[Tensor, "rows K"]:
    space, dtype = capture.space, capture.dtype
    columns = [push(capture, x, space.split(g.to(dtype).contiguous()))[1] for g in G.unbind(1)]
    return torch.stack([w.flatten() for w in columns], 1).to(G.dtype)


def _push_all(capture: Capture, x: Inputs, G: Float[Tensor, "P K"]) -> Float[Tensor, "rows K"]:
    products = G.new_zeros(batch_size(x) * capture.output_shape.numel(), G.shape[1])
    for place, layer in _placed(capture, x):
        products.addmm_(layer.flat().flatten(0, 1), G[place])
    return products


def _placed(capture: Capture, x: Inputs) -> Iterator[tuple[slice, LayerJacobian]]:
    """Each parameter's Jacobian, with its range in the flat parameter vector."""
    start = 0
    for layer in capture.trace(x).layers().values():
        stop = start + layer.shape.numel()
        yield slice(start, stop), layer
        start = stop
