"""The steps of SGD on c, where θ = (1 + a)θ₀ + Jᵀc: many at a time, with the same result as one after the other.

SGD is linear in the parameters, the momentum buffer and the gradients. Let the buffer be sθ₀ + Jᵀq, and h the
derivatives of the batch's mean loss with respect to the outputs (zero for samples outside the batch). Then a step of
torch.optim.SGD is

    q ← μ q + w c + h,      c ← c − η q,   or with Nesterov   c ← c − η (w c + h + μ q)

and the pair (1 + a, s) follows the same rule without h. So after t steps, c is a weighted sum of the initial c and q
and of the h of these steps, with weights known in advance, and Kc is the same sum of Kc, Kq and K[:,B] h.

c and q are accumulated in float64: in Kc most of c cancels, but its rounding errors do not. Kc and Kq are no larger
than the outputs, and stay in K's dtype.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from torchtangent.kernel.matrix import Matrix
from torchtangent.operators.recorded import Recorded

_ROWS = 2048  # of the kernel at a time: enough for fast products
_BYTES = 1 << 30  # the most that these rows may take

Gradient = Callable[[Float[Tensor, "rows K"], Int[Tensor, " N"]], Float[Tensor, "rows K"]]
"""(outputs, samples) ↦ the derivatives of the samples' losses with respect to their outputs."""


@final
@dataclass(frozen=True)
class UpdateRule:
    """The update rule of torch.optim.SGD, with dampening 0."""

    momentum: float
    nesterov: bool
    weight_decay: float

    @property
    def order(self) -> int:
        """The number of vectors: 1 for c alone, 2 for c and q with momentum."""
        return 2 if self.momentum else 1

    def unroll(self, rates: Sequence[float], scales: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
        """m steps as weighted sums of the initial vectors and of the h of each step, whose weights include `scales`.

        Returns:
            The weights of c before each step, (m, order + m), and of the final vectors, (order, order + m).
        """
        order, m = self.order, len(rates)
        w = self.weight_decay
        gradient, buffer = np.array([[w, 0.0, 1.0], [w, self.momentum, 1.0]])  # as sums of c, q and h
        update = gradient + self.momentum * buffer if self.nesterov else buffer
        steps = np.stack([[1.0, 0.0, 0.0] - np.outer(rates, update), np.tile(buffer, (m, 1))], 1)[:, :order]
        kicks = steps[:, :, 2] * np.array(scales)[:, None]
        before, now = np.empty((m, order + m)), np.eye(order, order + m)
        for t in range(m):
            before[t] = now[0]
            now = steps[t, :, :order] @ now
            now[:, order + t] = kicks[t]
        return before, now


class Trajectory:
    """The current c and Kc, which `follow` moves along.

    Args:
        K: The kernel of the training samples, symmetric, with one row per sample and output.
        rule: The update rule.
        f0: f₀ as one column, or one per target.
        J0: Jθ₀, likewise.
        outputs: C, the number of outputs.
        targets: The number of targets, which are the columns of c.
    """

    def __init__(
        self,
        K: Matrix,
        rule: UpdateRule,
        f0: Float[Tensor, "rows _"],
        J0: Float[Tensor, "rows _"],
        outputs: int,
        targets: int,
    ) -> None:
        self._K, self._rule, self._f0, self._J0, self._outputs = K, rule, f0, J0, outputs
        self._origin = np.array([1.0, 0.0])[: rule.order]  # 1 + a, s
        size = (K.shape[0], targets)
        self._wide = K.dtype if K.device.type == "mps" else torch.float64  # which mps lacks
        self._vectors = [torch.zeros(size, dtype=self._wide, device=K.device) for _ in range(rule.order)]  # c, q
        self._images = [torch.zeros_like(v, dtype=K.dtype) for v in self._vectors]  # Kc, Kq
        self._recorded: dict[tuple[int, ...], Recorded] = defaultdict(Recorded)

    @property
    def a(self) -> float:
        """a in θ = (1 + a)θ₀ + Jᵀc."""
        return float(self._origin[0] - 1)

    @property
    def c(self) -> Float[Tensor, "rows K"]:
        """c in θ = (1 + a)θ₀ + Jᵀc, in K's dtype."""
        return self._vectors[0].to(self._K.dtype)

    @property
    def image(self) -> Float[Tensor, "rows K"]:
        """Kc."""
        return self._images[0]

    def outputs(self) -> Float[Tensor, "rows K"]:
        """f = f₀ + Kc + a·Jθ₀ on all training samples; Kc is at hand."""
        return self.image + (self._f0 + self.a * self._J0)

    def follow(
        self, batches: Sequence[Int[Tensor, " _"]], rates: Sequence[float], terms: int, gradient: Gradient
    ) -> None:
        """Take one step per batch of samples, with its learning rate; a sample has `terms` terms in the mean loss."""
        start, rows = 0, 0
        for stop, batch in enumerate(batches):
            more = len(batch) * self._outputs
            if rows and rows + more > self._limit:
                self._chunk(batches[start:stop], rates[start:stop], terms, gradient)
                start, rows = stop, 0
            rows += more
        self._chunk(batches[start:], rates[start:], terms, gradient)

    @property
    def _limit(self) -> int:
        """Rows of the kernel per chunk: few compared with all, as the work within a chunk grows with their square."""
        rows = self._K.shape[0]
        return min(_ROWS, max(rows // 4, 256), max(1, _BYTES // (rows * self._K.dtype.itemsize)))

    def _chunk(
        self, batches: Sequence[Int[Tensor, " _"]], rates: Sequence[float], terms: int, gradient: Gradient
    ) -> None:
        """Take some steps, with one large product for all of them."""
        order, sizes = self._rule.order, tuple(len(batch) for batch in batches)
        before, after = self._rule.unroll(rates, [1 / (terms * size) for size in sizes])
        a = before[:, :order] @ self._origin - 1
        self._origin = after[:, :order] @ self._origin
        weights = (torch.from_numpy(w).to(self._wide) for w in (np.column_stack([before, a]), after))
        given = [self._moved(t) for t in (torch.cat([*batches]), *weights)]
        if self._K.device.type == "cuda" and self._K.resident:
            self._recorded[sizes](partial(self._steps, sizes, gradient), given)
        else:
            self._steps(sizes, gradient, *given)

    def _steps(
        self,
        sizes: tuple[int, ...],
        gradient: Gradient,
        samples: Int[Tensor, " N"],
        before: Float[Tensor, "m _"],
        after: Float[Tensor, "order _"],
    ) -> None:
        """Take one step per batch of these sizes, with the weights of `UpdateRule.unroll`; `before` ends with a.

        Everything that changes from chunk to chunk is in tensors, so that a GPU can replay it.
        """
        order, C, device, dtype = self._rule.order, self._outputs, samples.device, self._K.dtype
        rows = (samples[:, None] * C + torch.arange(C, device=device)).flatten()
        step = torch.cat([torch.full((C * size,), t, device=device) for t, size in enumerate(sizes)])
        weights = before[step].to(dtype)

        # The outputs of all batches, as far as the initial vectors determine them.
        f = self._f0[rows] + weights[:, -1:] * self._J0[rows]
        for i, image in enumerate(self._images):
            f = torch.addcmul(f, weights[:, i : i + 1], image[rows])
        blocks: Iterable[Tensor] = (self._K.rows(part) for part in rows.split(self._limit))
        among = None
        if len(sizes) > 1:
            blocks = [*blocks]  # a single one, needed twice
            among = weights.index_select(1, order + step).mul_(blocks[0].index_select(1, rows))
        # Step by step: add what the earlier steps contribute, and compute the step's own h.
        h, stop = torch.empty_like(f), 0
        for batch in samples.split(sizes):
            start, stop = stop, stop + len(batch) * C
            if among is not None:
                f[start:stop].addmm_(among[start:stop, :start], h[:start])
            h[start:stop] = gradient(f[start:stop], batch)

        self._blend(self._vectors, after)
        for vector, kick in zip(self._vectors, after[:, order:][:, step, None], strict=True):
            vector.index_add_(0, rows, kick * h)
        after = after.to(dtype)
        self._blend(self._images, after)
        if len(sizes) == 1:  # a single product K h serves both images
            for block, part in zip(blocks, h.split(self._limit), strict=True):
                change = block.T @ part
                for image, kick in zip(self._images, after[:, order], strict=True):
                    image.addcmul_(change, kick)
        else:
            [block] = blocks
            for image, kick in zip(self._images, after[:, order:][:, step, None], strict=True):
                image.addmm_(block.T, kick * h)

    def _blend(self, vectors: list[Tensor], P: Float[Tensor, "order _"]) -> None:
        """Replace v_i by Σ_j P[i][j] v_j, in place."""
        c, *rest = vectors
        old = c.clone() if rest and self._rule.weight_decay else c
        if self._rule.weight_decay:
            c.mul_(P[0, 0])  # else 1
        for q in rest:
            c.addcmul_(q, P[0, 1])
            q.mul_(P[1, 1])
            if self._rule.weight_decay:
                q.addcmul_(old, P[1, 0])  # else 0

    def _moved(self, t: Tensor) -> Tensor:
        """The tensor on the device of K, without waiting for the work queued there."""
        if self._K.device.type != "cuda":
            return t.to(self._K.device)
        return t.pin_memory().to(self._K.device, non_blocking=True)
