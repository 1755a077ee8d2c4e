"""For kernels too large to form: products with the kernel, Nyström features, random projections of the Jacobian.

In all results, rows are samples, and within a sample its outputs: row n·C + c is output c of sample n, as in
`tt.flatten`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from torchtangent.jacobians.call import float32_products
from torchtangent.jacobians.capture import Capture
from torchtangent.jacobians.inputs import Output, leaves, map_leaves, versions
from torchtangent.jacobians.select import Params, among
from torchtangent.kernel.columns import batches, pull_columns, push_columns, split_columns, square_sum
from torchtangent.kernel.ntk import flatten, ntk
from torchtangent.kernel.projection import projected
from torchtangent.kernel.samples import Samples
from torchtangent.operators import ImplicitOperator, LowRankOperator
from torchtangent.operators.product import product
from torchtangent.operators.symmetric import eigh

__all__ = ["Features", "nystrom", "operator", "project"]


@final
@dataclass(frozen=True, eq=False, repr=False)
class Features:
    """Φ with K ≈ ΦΦᵀ. Made by `nystrom` and `project`; `features(x_new)` are the rows of Φ for other inputs.

    Attributes:
        matrix: Φ, (N·C, R), or (N, R) of a reduced kernel.
        error: ‖K − ΦΦᵀ‖ / ‖K‖ in Frobenius norm, estimated.
        trace_error: (tr K − tr ΦΦᵀ) / tr K, exact. For Nyström features it is not negative, and bounds the error in
            every norm relative to tr K.
    """

    matrix: Float[Tensor, "rows R"]
    error: float
    trace_error: float
    extend: Callable[[Any], Tensor]

    def __repr__(self) -> str:
        rows, rank = self.matrix.shape
        return f"Features({rows} × {rank}, error={self.error:.2g}, trace_error={self.trace_error:.2g})"

    @property
    def shape(self) -> tuple[int, int]:
        """Of ΦΦᵀ."""
        return len(self.matrix), len(self.matrix)

    @property
    def dtype(self) -> torch.dtype:
        return self.matrix.dtype

    @property
    def device(self) -> torch.device:
        return self.matrix.device

    def operator(self) -> LowRankOperator:
        """ΦΦᵀ with solves, traces and eigenpairs."""
        return LowRankOperator(self.matrix.T)

    def __matmul__(self, v: Tensor) -> Tensor:
        """ΦΦᵀ v."""
        return self.operator() @ v

    def __call__(self, x: Any) -> Float[Tensor, "rows R"]:
        """Φ of other inputs, so that K(x, y) ≈ features(x) features(y)ᵀ."""
        return self.extend(x)


def operator(model: nn.Module, x: Any, *, params: Params = None, output: Output = None) -> ImplicitOperator:
    """The kernel K = JJᵀ on R^(N·C) by its products v ↦ J(Jᵀv): neither K nor J is ever held.

    With few columns, each costs a backward and a forward-mode pass; with more columns than outputs, each sample's
    Jacobian is formed once for all of them.

    Args:
        model: Any module whose samples do not interact.
        x: Inputs: a tensor (N, ...), a tuple or dict of them, or a data set of single inputs.
        params: Which parameters, by name pattern or a predicate (name, parameter).
        output: Which tensor of the model's result.

    Returns:
        An operator with `@`, conjugate gradients (`solve`) and estimates of its trace.

    >>> K = operator(nn.Linear(3, 2), torch.eye(3))      # ⟨x_n, x_m⟩ + 1 in each output
    >>> K @ torch.ones(6)
    tensor([4., 4., 4., 4., 4., 4.])
    """
    capture = Capture(model, params, output)
    times = _KernelProduct(capture, x)
    return ImplicitOperator(times, times.size, capture.wide_dtype, capture.device)


class _KernelProduct:
    """V ↦ J(JᵀV), in two passes over the samples."""

    def __init__(self, capture: Capture, x: Any) -> None:
        self.capture, self.samples = capture, Samples(x, capture.device)
        self.versions = versions(leaves(x)) if self.samples.dataset is None else []
        with self.samples.explaining():
            capture.look(self.samples.few())
        self.size = len(self.samples) * capture.output_shape.numel()

    def __call__(self, V: Float[Tensor, "rows K"]) -> Float[Tensor, "rows K"]:
        if self.samples.dataset is None and versions(leaves(self.samples.x)) != self.versions:
            raise RuntimeError("The inputs changed since this operator was made. Make it again, or keep a copy of x.")
        capture, samples = self.capture, self.samples
        with float32_products():
            rows = V.unflatten(0, (-1, capture.output_shape.numel()))
            blocks = (pull_columns(capture, samples, W) for W in split_columns(capture, rows))
            return torch.cat([push_columns(capture, samples, G) for G in blocks], 1)


@float32_products()
def nystrom(
    model: nn.Module,
    x: Any,
    landmarks: int | np.integer | Sequence[int] | Tensor,
    *,
    reduce: str = "trace",
    params: Params = None,
    output: Output = None,
    cutoff: float | None = None,
    probes: int = 32,
    seed: int = 0,
) -> Features:
    """Features with ΦΦᵀ = K_xm K_mm⁺ K_mx: the part of the kernel that the landmarks m among the samples explain.

    Exact if the landmarks' gradients span those of all samples; else ΦΦᵀ ⪯ K, with equality in the landmarks' rows.

    Args:
        model: Any module whose samples do not interact.
        x: Inputs: a tensor (N, ...), a tuple or dict of them, or a data set of single inputs.
        landmarks: How many samples to draw, uniformly without replacement, or the indices of the samples.
        reduce: Which kernel: "trace" or "sum", (N, N), or "full", (N·C, N·C), where a landmark has C rows.
        params: Which parameters, by name pattern or a predicate (name, parameter).
        output: Which tensor of the model's result.
        cutoff: Eigenvalues of K_mm below this fraction of its largest count as zero; 10 eps of its dtype by default.
        probes: How many samples that are not landmarks give the columns of K from which the error is estimated.
        seed: Seed of the landmarks and the probes.

    Reference:
        Williams and Seeger, Using the Nyström method to speed up kernel machines, 2001.
    """
    if reduce not in ("trace", "sum", "full"):
        raise ValueError(f"reduce must be 'trace', 'sum' or 'full', got {reduce!r}: features need one matrix.")
    if probes < 1:
        raise ValueError(f"probes must be at least 1, got {probes}.")
    capture = Capture(model, params, output)
    samples = Samples(x, capture.device)
    x = samples.x
    order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(seed), device="cpu")
    chosen = _chosen(landmarks, order)
    others = order[~torch.isin(order, chosen)]
    probed = others[:probes]
    marks = _pick(x, chosen)

    def columns(x: Any, y: Any) -> Float[Tensor, "rows cols"]:
        capture.check_unmoved()
        K = ntk(model, x, y, reduce=reduce, params=among(capture.params), output=output)
        return flatten(K) if reduce == "full" else K

    K = columns(x, marks)
    outputs = K.shape[1] // len(chosen)
    root = _inverse_root(K[_rows(chosen, outputs)], cutoff)
    matrix = product(K, root)

    @float32_products()
    def extend(new: Any) -> Float[Tensor, "rows R"]:
        K = columns(new, marks)
        return product(K, root.to(K.device))

    def compare(K: Tensor, index: Tensor) -> Float[Tensor, "2"]:
        """‖K − ΦΦᵀ‖² and ‖K‖² over the columns of some samples."""
        gap = K - product(matrix, matrix[_rows(index, outputs)].T)
        return torch.stack([torch.linalg.vector_norm(t.double()).square() for t in (gap, K)])

    squares = compare(K, chosen)
    if len(probed):
        sampled = compare(columns(x, _pick(x, probed)).to(K.device), probed)
        squares += len(others) / len(probed) * sampled
    gap, size = squares.tolist()
    total = sum(square_sum(capture.trace(part).layers(summed=reduce == "sum")) for _, part in batches(capture, samples))
    explained = float(torch.linalg.vector_norm(matrix.double()).square())
    return Features(
        matrix,
        error=_ratio(gap, size) ** 0.5,
        trace_error=_ratio(total - explained, total),
        extend=extend,
    )


def project(
    model: nn.Module,
    x: Any,
    dimension: int,
    *,
    params: Params = None,
    output: Output = None,
    seed: int = 0,
) -> Features:
    """Features Z = JΩ with E[ZZᵀ] = JJᵀ: random projections of the Jacobian, (N·C, dimension).

    On each parameter, read as a matrix (first axis × the others), a column of Ω is the outer product p ⊗ q of two
    vectors of random signs. So it is contracted with a layer's factors directly, (d·p)(a·q), and neither Ω nor J is
    held. The price is a variance up to four times that of independent entries, within one layer. The relative error
    falls like 1/√dimension and is estimated from the spread of the columns.

    Args:
        model: Any module whose samples do not interact.
        x: Inputs: a tensor (N, ...), a tuple or dict of them, or a data set of single inputs.
        dimension: The number of columns, at least 2.
        params: Which parameters, by name pattern or a predicate (name, parameter).
        output: Which tensor of the model's result.
        seed: Seed of the signs, which depend only on it, the parameter's position and the column.
    """
    if dimension < 2:
        raise ValueError(f"dimension must be at least 2 (the error is estimated from the spread), got {dimension}.")
    capture = Capture(model, params, output)

    def features(x: Any) -> tuple[Float[Tensor, "rows R"], float]:
        """JΩ / √dimension, and ‖J‖²."""
        parts, total = [], 0.0
        with float32_products():
            for _, part in batches(capture, Samples(x, capture.device)):
                layers = capture.trace(part).layers()
                parts.append(projected(layers, dimension, seed) / dimension**0.5)
                total += square_sum(layers)
        return torch.cat(parts), total

    matrix, total = features(x)
    norms = torch.linalg.vector_norm(matrix.double(), dim=0).square()
    size = float(LowRankOperator(matrix.T).frobenius()) ** 2
    # ZZᵀ is the mean of dimension · zzᵀ over the columns z, so its variance is theirs divided by their number.
    variance = max(0.0, (dimension * float(norms.square().sum()) - size) / (dimension - 1))
    return Features(
        matrix,
        error=_ratio(variance, size - variance) ** 0.5,
        trace_error=_ratio(total - float(norms.sum()), total),
        extend=lambda new: features(new)[0],
    )


def _ratio(part: float, whole: float) -> float:
    """part / whole; of a kernel that is zero, 0 or infinity."""
    return part / whole if whole > 0 else math.inf if part > 0 else 0.0


def _chosen(landmarks: int | np.integer | Sequence[int] | Tensor, order: Int[Tensor, " N"]) -> Int[Tensor, " M"]:
    """The landmarks' indices."""
    samples = len(order)
    if isinstance(landmarks, int | np.integer):
        if not 1 <= landmarks <= samples:
            raise ValueError(f"landmarks must be between 1 and the {samples} samples, got {landmarks}.")
        return order[: int(landmarks)]
    chosen = torch.as_tensor(landmarks).cpu()
    if chosen.is_floating_point() or chosen.ndim != 1 or len(chosen) == 0 or len(chosen.unique()) < len(chosen):
        raise ValueError("landmarks must be a number or a list of different samples, at least one.")
    if int(chosen.min()) < 0 or int(chosen.max()) >= samples:
        raise ValueError(
            f"landmarks must be indices of the {samples} samples, got {int(chosen.min())} to {int(chosen.max())}."
        )
    return chosen.long()


def _pick(x: Any, index: Int[Tensor, " M"]) -> Any:
    """Some samples, by index."""
    if isinstance(x, Tensor | tuple | Mapping):
        return map_leaves(lambda v: v[index.to(v.device)], x)
    return [x[i] for i in index.tolist()]


def _rows(index: Int[Tensor, " M"], outputs: int) -> Int[Tensor, " rows"]:
    """The indices of all rows of some samples."""
    return (index[:, None] * outputs + torch.arange(outputs, device=index.device)).flatten()


def _inverse_root(K: Float[Tensor, "M M"], cutoff: float | None) -> Float[Tensor, "M R"]:
    """A with AAᵀ = K⁺."""
    values, vectors = eigh((K.double() + K.double().T) / 2)
    least = (10 * torch.finfo(K.dtype).eps if cutoff is None else cutoff) * float(values[-1])
    kept = values > max(least, 0.0)
    return (vectors[:, kept] / values[kept].sqrt()).to(K.dtype)
