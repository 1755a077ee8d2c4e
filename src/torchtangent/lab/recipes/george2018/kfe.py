"""The Kronecker-factored eigenbasis of one layer, and how well diagonals in it approximate G = E[∇∇ᵀ].

A sample's gradient of [W b] is d aᵀ, with a the layer's input (a last 1 for the bias) and d the derivative of the
sample's loss with respect to its output. Nothing of G's size is ever formed: its spectrum and norms are those of the
matrix of the samples' inner products.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


@dataclass(frozen=True, eq=False)
class Basis:
    """U = left ⊗ right, the eigenvectors of E[ddᵀ] ⊗ E[aaᵀ], and its eigenvalues, all in decreasing order.

    Attributes:
        left: Eigenvectors of E[ddᵀ].
        right: Eigenvectors of E[aaᵀ].
        values: The products of the eigenvalues of the two.
    """

    left: Float[Tensor, "O O"]
    right: Float[Tensor, "I I"]
    values: Float[Tensor, "O I"]

    @classmethod
    def of(cls, a: Float[Tensor, "N I"], d: Float[Tensor, "N O"]) -> Basis:
        """That of some samples."""
        rows, left = torch.linalg.eigh(d.T @ d / len(d))
        columns, right = torch.linalg.eigh(a.T @ a / len(a))
        values = torch.outer(rows.clamp(min=0).flip(0), columns.clamp(min=0).flip(0))
        return cls(left.flip(1), right.flip(1), values)

    def rotate(self, g: Float[Tensor, "O I"]) -> Float[Tensor, "O I"]:
        """Uᵀg of a gradient of [W b]."""
        return self.left.T @ g @ self.right

    def scalings(self, a: Float[Tensor, "N I"], d: Float[Tensor, "N O"]) -> Float[Tensor, "O I"]:
        """s* = E[(Uᵀ∇)²], the best diagonal in this basis."""
        return (d @ self.left).square().T @ (a @ self.right).square() / len(a)


def factors(
    model: nn.Sequential,
    layer: int,
    x: Float[Tensor, "N ..."],
    y: Tensor,
    loss: Callable[[Tensor, Tensor], Tensor],
) -> tuple[Float[Tensor, "N I"], Float[Tensor, "N O"]]:
    """a and d of the model's `layer`-th linear layer (from 0), for a loss that is a mean over samples; in float64."""
    position = [i for i, module in enumerate(model) if isinstance(module, nn.Linear)][layer]
    with torch.no_grad():
        h = model[:position](x)
        z = model[position](h)
    z.requires_grad_()
    (d,) = torch.autograd.grad(loss(model[position + 1 :](z), y) * len(x), z)
    return torch.cat([h, torch.ones_like(h[:, :1])], 1).double(), d.double()


def spectrum(a: Float[Tensor, "N I"], d: Float[Tensor, "N O"]) -> Float[Tensor, " P"]:
    """The eigenvalues of G in decreasing order: those of the samples' inner products, and zeros."""
    size = a.shape[1] * d.shape[1]
    values = torch.linalg.eigvalsh(_inner(a, d)).clamp(min=0).flip(0)[:size]
    return torch.cat([values, values.new_zeros(size - len(values))])


def distance(true: Float[Tensor, " P"], approximate: Float[Tensor, "O I"]) -> Float[Tensor, ""]:
    """‖λ − λ̂‖ / ‖λ‖ of two spectra, both sorted."""
    return (true - approximate.flatten().sort(descending=True).values).norm() / true.norm()


def error(
    a: Float[Tensor, "N I"], d: Float[Tensor, "N O"], basis: Basis, diagonal: Float[Tensor, "O I"]
) -> Float[Tensor, ""]:
    """‖G − U D Uᵀ‖ / ‖G‖ in the Frobenius norm: ‖G‖² − 2⟨D, s*⟩ + ‖D‖², because s* is the diagonal of UᵀGU."""
    square = _inner(a, d).square().sum()
    rest = square - 2 * (diagonal * basis.scalings(a, d)).sum() + diagonal.square().sum()
    return (rest.clamp(min=0) / square).sqrt()


def correlations(g: Float[Tensor, "N K"]) -> Float[Tensor, "K K"]:
    """E[g_i g_j] / √(E[g_i²] E[g_j²]), as of G, which is not centred; zero where a coordinate never moves."""
    moments = g.T @ g / len(g)
    size = moments.diagonal().sqrt()
    floor = torch.finfo(g.dtype).eps * size.max()
    scale = torch.where(size > floor, 1 / size, torch.zeros_like(size))
    return moments * scale * scale.unsqueeze(1)


def coordinates(a: Float[Tensor, "N I"], d: Float[Tensor, "N O"], chosen: Int[Tensor, " K"]) -> Float[Tensor, "N K"]:
    """Some entries of every sample's gradient d aᵀ, counted row by row."""
    return d[:, chosen // a.shape[1]] * a[:, chosen % a.shape[1]]


def _inner(a: Float[Tensor, "N I"], d: Float[Tensor, "N O"]) -> Float[Tensor, "N N"]:
    """⟨∇_n, ∇_m⟩ / N, which shares its nonzero eigenvalues with G."""
    return (a @ a.T) * (d @ d.T) / len(a)
