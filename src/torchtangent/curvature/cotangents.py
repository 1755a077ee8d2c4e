"""The cotangents pulled back from the output: the one place where exact, sampled and empirical Fisher differ.

Every Fisher matrix is F = (1/N) Σ_n Σ_m (J_nᵀ u_mn)(J_nᵀ u_mn)ᵀ. The cotangents u are

- exact: the columns of a root of Λ, the Fisher matrix of the likelihood with respect to the outputs, Σ_m u uᵀ = Λ;
- sampled: gradients of −log p(y|f) at labels y drawn from the model, E[u uᵀ] = Λ;
- empirical: the gradient of −log p(y|f) at the label in the data.

Terms whose class in the data is −100 do not count, whatever the kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, TypeGuard

import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.notice import check_choice

LIKELIHOODS = ("categorical", "bernoulli", "gaussian")
KINDS = ("exact", "sampled", "empirical")
Weigh = Callable[[Tensor], Tensor]  # w → Λ w, for each sample
IGNORED = -100
"""The class of terms that do not count, as for `torch.nn.functional.cross_entropy`."""


@dataclass(frozen=True)
class Cotangents:
    """Which cotangents: a likelihood and how the expectation over y is taken.

    Args:
        likelihood: "categorical" or "bernoulli" (f are logits), or "gaussian" (f are means, unit variance).
        kind: "exact", "sampled" or "empirical".
        samples: Draws of y for each sample, for `kind="sampled"`.
        seed: Seed of the draws, which do not depend on the batch size.
    """

    likelihood: str
    kind: str
    samples: int = 1
    seed: int = 0
    matrix: ClassVar[str] = "Fisher matrix"

    @property
    def with_targets(self) -> bool:
        """Whether the targets matter, which then have to repeat."""
        return self.kind == "empirical"

    def __post_init__(self) -> None:
        check_choice("likelihood", self.likelihood, LIKELIHOODS)
        check_choice("kind", self.kind, KINDS)
        if self.samples < 1:
            raise ValueError(f"samples={self.samples}: at least one draw is needed.")
        if self.samples > 1 and self.kind != "sampled":
            raise ValueError(f'samples={self.samples} has no effect with kind={self.kind!r}. Pass kind="sampled".')

    def count(self, outputs: torch.Size) -> int:
        """M, the number of cotangents per sample, for outputs of shape (C,) or (T, C)."""
        if self.kind != "exact":
            return self.samples if self.kind == "sampled" else 1
        return outputs.numel() - (outputs[:-1].numel() if self.likelihood == "categorical" else 0)

    def start(self) -> Callable[[Tensor, Tensor | None], Float[Tensor, "M N *out"]]:
        """Start a pass over the data: returns the function (outputs, targets) → u, to be called batch by batch.

        Exact cotangents of outputs (N, T, C) have shape (C − 1 or C, N, T, C): those of the T independent terms share
        a tensor, and `apart` separates them.
        """
        return partial(self._pull, torch.Generator().manual_seed(self.seed))

    def weigh(self) -> Callable[[Tensor, Tensor | None], Weigh]:
        """Start a pass over the data: returns the function (outputs, targets) → (w → Λ w), without a root of Λ."""
        pull = self.start()

        def at(f: Float[Tensor, "N *out"], targets: Tensor | None) -> Weigh:
            if self.kind != "exact":
                return partial(_outer, pull(f, targets))
            self._check(f)
            times, counted = _information(f, self.likelihood), self._counted(f, targets)
            return times if counted is None else lambda w: counted * times(w)

        return at

    def _pull(
        self, generator: torch.Generator, f: Float[Tensor, "N *out"], targets: Tensor | None
    ) -> Float[Tensor, "M N *out"]:
        self._check(f)
        if self.kind == "exact":
            u = _root(f, self.likelihood)
        elif self.kind == "sampled":
            u = _residual(f, _draw(f, self.likelihood, self.samples, generator), self.likelihood)
            u = u / math.sqrt(self.samples)
        elif targets is None:
            raise ValueError("kind='empirical' needs the targets: pass data that yields (inputs, targets).")
        else:
            u = _residual(f, _as_expected(f, targets, self.likelihood), self.likelihood).unsqueeze(0)
        counted = self._counted(f, targets)
        return u if counted is None else u * counted

    def _check(self, f: Float[Tensor, "N *out"]) -> None:
        if self.likelihood == "categorical" and f.shape[-1] < 2:
            raise ValueError(
                "likelihood='categorical' needs at least two outputs (one class is certain, its Fisher is zero). "
                "For one logit use likelihood='bernoulli'."
            )

    def _counted(self, f: Float[Tensor, "*lead C"], targets: Any) -> Float[Tensor, "*lead 1"] | None:
        """1 for terms that count and 0 for others; None if all do. Targets of a wrong shape are refused."""
        if self.likelihood != "categorical" or not _are_classes(targets):
            return None
        ignored = targets.long() == IGNORED
        if targets.shape == f.shape[:-1]:
            return (~ignored).to(f).unsqueeze(-1)
        if bool(ignored.any()) or f.dim() > 2:
            _as_expected(f, targets, self.likelihood)  # raises: the targets have the wrong shape
        return None

    def count_some(self, targets: Any) -> bool:
        """Whether any of the terms counts."""
        classes = self.likelihood == "categorical" and _are_classes(targets)
        return not classes or bool((targets.long() != IGNORED).any())

    def apart(self, u: Float[Tensor, "M N *out"], most: int) -> Iterator[Float[Tensor, "m N *out"]]:
        """The cotangents to pull back, at most `most` at a time; those of independent terms are separated."""
        if self.kind != "exact" or u.dim() < 4:
            yield from u.split(most)
            return
        M, N, T, C = u.shape  # makes M·T cotangents, each zero at all terms but one
        for places in torch.arange(M * T, device=u.device).split(most):
            part = u.new_zeros(len(places), N, T, C)
            part[torch.arange(len(places), device=u.device), :, places % T] = u[places // T, :, places % T]
            yield part


def _outer(u: Float[Tensor, "M N *out"], w: Float[Tensor, "N *out"]) -> Float[Tensor, "N *out"]:
    """Σ_m u_m ⟨u_m, w⟩ for each sample."""
    rows = u.flatten(2).transpose(0, 1)
    return (rows.mT @ (rows @ w.flatten(1).unsqueeze(-1))).view_as(w)


def _information(f: Float[Tensor, "*lead C"], likelihood: str) -> Weigh:
    """w → Λ(f) w, for each term."""
    if likelihood == "gaussian":
        return lambda w: w
    if likelihood == "bernoulli":
        variance = torch.sigmoid(f) * torch.sigmoid(-f)
        return lambda w: variance * w
    p = torch.softmax(f, -1)
    return lambda w: p * (w - (p * w).sum(-1, keepdim=True))


def _are_classes(targets: Any) -> TypeGuard[Tensor]:
    return isinstance(targets, Tensor) and not (targets.is_floating_point() or targets.is_complex())


def _root(f: Float[Tensor, "*lead C"], likelihood: str) -> Float[Tensor, "M *lead C"]:
    """Columns u_m with Σ_m u_m u_mᵀ = Λ(f), for each term."""
    if likelihood == "categorical":
        return _categorical_root(torch.softmax(f, -1))
    scale = torch.ones_like(f)
    if likelihood == "bernoulli":
        p = torch.sigmoid(f)
        scale = (p * torch.sigmoid(-f)).sqrt()
    return torch.diag_embed(scale).movedim(-1, 0)


def _categorical_root(p: Float[Tensor, "*lead C"]) -> Float[Tensor, "M *lead C"]:
    """The Cholesky factor of diag(p) − ppᵀ, which has rank C − 1 and a closed form (Tanabe and Sagae, 1992).

    With tails q_j = Σ_{k≥j} p_k, column j is √(p_j q_{j+1} / q_j) at j and −p_i √(p_j / (q_j q_{j+1})) at i > j.
    """
    C = p.shape[-1]
    q = p.flip(-1).cumsum(-1).flip(-1)
    here, q_here, q_next = p[..., :-1], q[..., :-1], q[..., 1:]
    ratio = torch.where(q_next > 0, here / q_here / q_next, torch.zeros_like(here)).sqrt()
    ratio = torch.nan_to_num(ratio, nan=0.0, posinf=0.0)
    below = torch.ones(C, C - 1, dtype=p.dtype, device=p.device).tril(-1)
    L = -p.unsqueeze(-1) * ratio.unsqueeze(-2) * below
    L.diagonal(dim1=-2, dim2=-1).copy_(ratio * q_next)
    return L.movedim(-1, 0).contiguous()


def _draw(f: Tensor, likelihood: str, samples: int, generator: torch.Generator) -> Tensor:
    """`samples` labels drawn from the model's own distribution, by inverting its cumulative distribution function."""
    terms = f.shape[1:-1] if likelihood == "categorical" else f.shape[1:]
    uniform = torch.rand(len(f), samples, *terms, generator=generator, dtype=torch.float64, device="cpu")
    uniform = uniform.movedim(1, 0).to(f.device)
    if likelihood == "gaussian":
        return f + (math.sqrt(2) * torch.erfinv(2 * uniform - 1)).to(f)
    if likelihood == "bernoulli":
        return (uniform < torch.sigmoid(f.double())).to(f)
    below = torch.softmax(f.double(), -1).cumsum(-1)
    return (uniform.unsqueeze(-1) > below).sum(-1).clamp(max=f.shape[-1] - 1)


def _residual(f: Tensor, y: Tensor, likelihood: str) -> Tensor:
    """The gradient of −log p(y|f) with respect to f: mean minus label."""
    if likelihood == "categorical":
        return torch.softmax(f, -1) - torch.nn.functional.one_hot(y, f.shape[-1]).to(f)
    return (torch.sigmoid(f) if likelihood == "bernoulli" else f) - y


def _check_values(y: Tensor, likelihood: str) -> None:
    """Refuse targets that are not finite or, for a Bernoulli likelihood, not between 0 and 1."""
    if not bool(torch.isfinite(y).all()):
        raise ValueError("The targets have NaN or infinity.")
    if likelihood == "bernoulli" and not bool(((y >= 0) & (y <= 1)).all()):
        hint = " Labels -1 and 1 become these by (y + 1) / 2." if bool((y.abs() == 1).all()) else ""
        raise ValueError(f"likelihood='bernoulli' needs targets from 0 to 1, got {y.min()} to {y.max()}.{hint}")


def _as_expected(f: Tensor, targets: Tensor, likelihood: str) -> Tensor:
    """Targets in the shape that the likelihood needs; raises an error that names it if they have another."""
    wanted = f.shape[:-1] if likelihood == "categorical" else f.shape
    y = targets.to(f.device)
    if likelihood != "categorical" and y.dim() == f.dim() - 1 and f.shape[-1] == 1:
        y = y.unsqueeze(-1)
    if y.shape != wanted or y.is_complex() or (likelihood == "categorical" and not _are_classes(y)):
        kind = "class indices, integers" if likelihood == "categorical" else "values"
        raise ValueError(
            f"likelihood={likelihood!r} needs targets of shape {tuple(wanted)} ({kind}), "
            f"got {tuple(y.shape)} of {y.dtype}."
        )
    if likelihood != "categorical":
        _check_values(y, likelihood)
        return y.to(f)
    y = y.long()  # first: in uint8, −100 would be 156
    y = torch.where(y == IGNORED, 0, y)
    if y.numel() and (int(y.min()) < 0 or int(y.max()) >= f.shape[-1]):
        bad = int(y.min()) if int(y.min()) < 0 else int(y.max())
        raise ValueError(
            f"The targets hold class {bad}, but the model has classes 0 to {f.shape[-1] - 1} "
            f"({IGNORED} for terms that do not count)."
        )
    return y
