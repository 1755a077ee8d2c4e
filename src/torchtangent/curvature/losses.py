"""Losses that are means over samples: how they are checked, and their second derivatives by the outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.curvature.cotangents import Weigh
from torchtangent.jacobians.call import Network
from torchtangent.jacobians.inputs import leaves, map_leaves
from torchtangent.operators.symmetric import eigh

Loss = Callable[[Tensor, Any], Tensor]
_NOT_OVER_SAMPLES = "The loss is not a mean of one loss per sample (does it ignore or weight some samples?)"


class LossCotangents:
    """Columns u_m of a root of Λ_n = ∇²ℓ_n for each sample, where the loss is (1/N) Σ_n ℓ_n(f_n): Σ_m u_m u_mᵀ = Λ_n.

    It has the methods of `Cotangents`, which knows closed forms for a few likelihoods. Terms of (N, T, C) outputs may
    depend on each other.
    """

    likelihood = kind = "loss"
    matrix = "Gauss-Newton matrix"
    with_targets = True

    def __init__(self, loss: Loss, network: Network) -> None:
        self.loss, self.network = loss, network

    def count(self, outputs: torch.Size) -> int:
        """M, the number of cotangents per sample."""
        return outputs.numel()

    def count_some(self, targets: Any) -> bool:
        """Whether any of the terms counts: the loss knows."""
        return True

    def start(self) -> Callable[[Tensor, Any], Float[Tensor, "M N *out"]]:
        """Start a pass over the data: returns the function (outputs, targets) → u."""
        check = MeanCheck(self.loss, pieces=True)

        def pull(f: Float[Tensor, "N *out"], y: Any) -> Float[Tensor, "M N *out"]:
            times = self._at(check, f, y)
            one = torch.eye(f[0].numel(), dtype=f.dtype, device=f.device)
            columns = [times(e.expand(len(f), -1).reshape(f.shape)).flatten(1) for e in one]
            return _root(torch.stack(columns, 2), f)

        return pull

    def weigh(self) -> Callable[[Tensor, Any], Weigh]:
        """Start a pass over the data: returns the function (outputs, targets) → (w → Λ w), without a root of Λ."""
        return partial(self._at, MeanCheck(self.loss, pieces=True))

    def _at(self, check: MeanCheck, f: Float[Tensor, "N *out"], y: Any) -> Weigh:
        """w → Λ w, the derivative of ⟨∇ℓ_n, w⟩: samples do not interact, so all are taken at once."""
        with torch.enable_grad():
            f = f.detach().requires_grad_()
            seen = self.network.as_returned(f)
            check(seen, y)
            (g,) = torch.autograd.grad(len(f) * self.loss(seen, y), f, create_graph=True, materialize_grads=True)

        def times(w: Float[Tensor, "N *out"]) -> Float[Tensor, "N *out"]:
            if not g.requires_grad:  # the loss is linear
                return torch.zeros_like(w)
            return torch.autograd.grad(g, f, w.to(g.dtype), retain_graph=True, materialize_grads=True)[0]

        return times

    def apart(self, u: Float[Tensor, "M N *out"], most: int) -> Iterator[Float[Tensor, "m N *out"]]:
        """The cotangents to pull back, at most `most` at a time."""
        yield from u.split(most)


def _root(curvature: Float[Tensor, "N C C"], f: Float[Tensor, "N *out"]) -> Float[Tensor, "C N *out"]:
    """Columns u_m with Σ_m u_m u_mᵀ = Λ, for each sample."""
    values, vectors = eigh((curvature + curvature.mT).double() / 2)
    largest, smallest = float(values.abs().max()), float(values.min())
    if not smallest >= -(torch.finfo(f.dtype).eps ** 0.5) * largest:
        raise ValueError(
            f"The loss is not convex in the outputs: its second derivatives have eigenvalues from {smallest:.1e} to "
            f"{largest:.1e}, so that the Gauss-Newton matrix has no such representation. tt.Implicit and tt.hessian do "
            "without convexity."
        )
    root = vectors * values.clamp(min=0).sqrt().unsqueeze(1)
    return root.movedim(2, 0).reshape(-1, *f.shape).to(f.dtype)


class MeanCheck:
    """Raises if a loss is not a mean or, with several batches or `pieces` of one, not a mean over samples."""

    def __init__(self, loss: Loss, *, pieces: bool = False) -> None:
        self.loss, self._pieces = loss, pieces
        self._first: tuple[Tensor, Any] | None = None
        self._over_samples = True

    def __call__(self, f: Float[Tensor, "N *out"], y: Any) -> None:
        f = f.detach().roll(1, 0)  # another sample's outputs: the loss of a perfect fit is zero and would tell nothing
        self._over_samples &= self._mean(f, y)
        if not self._over_samples and self._broadcasts(f, y):
            raise ValueError(
                f"The loss does not see which target belongs to which sample: outputs {tuple(f.shape)} and targets "
                f"{tuple(y.shape)} broadcast to {len(f), len(f)}. Pass y.unsqueeze(1) as targets."
            )
        if self._pieces and not self._over_samples:
            raise ValueError(
                f"{_NOT_OVER_SAMPLES}, which a Gauss-Newton matrix needs. Write it as one, for instance as "
                '(weights[y] * F.cross_entropy(f, y, reduction="none")).mean(), and multiply the matrix by '
                "len(y) / weights[y].sum() for that of torch's weighted mean."
            )
        if self._first is None:
            self._first = f, None if y is None else map_leaves(Tensor.clone, y)
            return
        if not (self._over_samples and self._adds_up(*self._first, f, y)):
            raise ValueError(
                f"{_NOT_OVER_SAMPLES}, so the losses of several batches do not add up to that of all data. Pass one "
                "batch."
            )

    def _mean(self, f: Tensor, y: Any) -> bool:
        """Whether the loss is a plain mean over samples, without weights and without ignored samples.

        Raises if it is not a mean at all: if it changes when every sample is taken twice.
        """

        def loss(pick: Callable[[Tensor], Tensor]) -> Tensor:
            return self.loss(pick(f), None if y is None else map_leaves(pick, y)).detach()

        once, twice = loss(lambda t: t), loss(lambda t: torch.cat([t, t]))
        if once.dim() != 0:
            raise ValueError(
                f"The loss should be one number, the mean over the samples; got shape {tuple(once.shape)}."
            )
        first = loss(lambda t: t[:1])
        if not _same(twice, once, first):
            raise ValueError(
                f"The loss should be the mean over the samples, but it is {once:.4g} for a batch and {twice:.4g} "
                'for the same batch twice. Use reduction="mean".'
            )
        return len(f) == 1 or _same((first + (len(f) - 1) * loss(lambda t: t[1:])) / len(f), once, first)

    def _broadcasts(self, f: Tensor, y: Any) -> bool:
        """Whether a loss of (N, 1) outputs and (N,) targets compares each with each."""
        if not isinstance(y, Tensor) or y.dim() != 1 or f.shape != (len(y), 1):
            return False
        once, turned = self.loss(f, y).detach(), self.loss(f, y.roll(1)).detach()
        if not _same(once, turned, once):
            return False
        try:
            column = self.loss(f, y.unsqueeze(1)).detach()
        except Exception:  # a loss that takes (N,) only
            return False
        return not _same(once, column, once)  # or the loss does not depend on the order of samples, or not on targets

    def _adds_up(self, f: Tensor, y: Any, f2: Tensor, y2: Any) -> bool:
        """Whether the losses of two batches average to that of both together, if the batches can be joined."""
        if [t.shape[1:] for t in (f, *leaves(y))] != [t.shape[1:] for t in (f2, *leaves(y2))]:
            return True  # sequences of different lengths
        one, two = self.loss(f, y).detach(), self.loss(f2, y2).detach()
        both = self.loss(torch.cat([f, f2]), _joined(y, y2)).detach()
        return _same((len(f) * one + len(f2) * two) / (len(f) + len(f2)), both, one)


def _same(a: Tensor, b: Tensor, part: Tensor) -> bool:
    """Whether two losses are equal up to rounding, relative to themselves or to a `part` that may cancel in them."""
    rtol = max(1e-3, 4 * torch.finfo(a.dtype).eps)
    return bool(torch.isclose(a, b, rtol=rtol, atol=1e-6 * abs(float(part.nan_to_num())), equal_nan=True))


def _joined(one: Any, two: Any) -> Any:
    """The targets of two batches, concatenated."""
    if isinstance(one, Mapping):
        return {k: _joined(v, two[k]) for k, v in one.items()}
    if isinstance(one, tuple | list):
        return tuple(_joined(v, w) for v, w in zip(one, two, strict=True))
    return torch.cat([one, two]) if isinstance(one, Tensor) and one.dim() > 0 else one
