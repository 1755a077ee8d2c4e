r"""The Jacobian of one parameter, factored: four final kinds.

A parameter that a layer uses at locations s contributes

    J[n,c] = Σ_s  d[n,c,s] ∘ a[n,s],        d = ∂ f_c(x_n) / ∂ y   (the cotangent),

where ∘ is an outer product (`Outer`: linear layers and convolutions), an entrywise product (`Scale`: norm layers and
every bias), or the choice of a row in a table (`Lookup`: embeddings). `Dense` is J itself. Fisher matrices and kernels
are contractions of these pairs; forming J is the last resort.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from torchtangent.jacobians.matrices import as_matrices, as_weight, in_order
from torchtangent.jacobians.patches import Patches
from torchtangent.jacobians.squares import sum_of_squares
from torchtangent.operators.product import product

_CHUNK_BYTES = {"cpu": 1 << 24, "cuda": 1 << 30}  # working set of a contraction: fits a CPU's cache, or fills a GPU
_FORMED = {"cpu": 1 << 22, "cuda": 1 << 30}  # bytes of patches and of J at a time, while J is formed: as above
_LARGE_CONVOLUTION = 1 << 23  # multiplications for the J of one sample; fewer take less time than the call itself


Self = TypeVar("Self", bound="LayerJacobian")


class LayerJacobian(ABC):
    """The per-sample Jacobian of one parameter: N samples, C cotangents (network outputs, usually)."""

    shape: torch.Size
    d: Tensor

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={tuple(self.shape)}, samples={self.samples}, outputs={self.outputs})"

    @property
    def samples(self) -> int:
        """N."""
        return self.d.shape[0]

    @property
    @abstractmethod
    def outputs(self) -> int:
        """C."""

    def part(self: Self, samples: slice) -> Self:
        """That of some of the samples, which are the first axis of all tensors."""
        fewer: Any = {name: t[samples] for name, t in vars(self).items() if isinstance(t, Tensor)}
        return replace(self, **fewer)  # type: ignore[type-var]  # every kind is a dataclass

    @abstractmethod
    def dense(self) -> Float[Tensor, "N C *P"]:
        """J itself, (N, C, *shape)."""

    def flat(self) -> Float[Tensor, "N C P"]:
        """J with the parameter flattened."""
        return self.dense().reshape(self.samples, self.outputs, -1)

    @abstractmethod
    def pullback(self, u: Float[Tensor, "N C"]) -> Float[Tensor, "*P"]:
        """Σ_nc u[n,c] J[n,c], of the parameter's shape."""

    @abstractmethod
    def square_sum(self) -> Float[Tensor, "*P"]:
        """Σ_nc J[n,c]², of the parameter's shape: N times the diagonal of the Fisher matrix."""

    @abstractmethod
    def magnitude(self) -> LayerJacobian:
        """The same with |a| and |d|: a bound on the size of terms that may cancel in J."""

    @abstractmethod
    def mass(self) -> Float[Tensor, " N"]:
        """For each sample, the sum of the magnitudes of all terms of J: zero only if all terms are."""

    @abstractmethod
    def regroup(self, n: int) -> LayerJacobian:
        """The Jacobian of n samples when the layer saw n·k rows, k consecutive ones for each sample."""


@dataclass(frozen=True, eq=False, repr=False)
class Outer(LayerJacobian):
    """J[n,c] = Σ_s d[n,c,s,:] ⊗ a[n,s,:] for a weight read as G matrices (O, I).

    The G groups of a convolution are G independent pairs (a, d). `source` is the layer's input, and a = locate(source):
    patches of a convolution are formed when they are needed, and not kept.
    """

    source: Tensor
    locate: Callable[[Tensor], Float[Tensor, "N G S I"]]
    d: Float[Tensor, "N G C S O"]
    shape: torch.Size
    order: tuple[int, ...]  # the axes of one group's weight in matrix order: first O, then those of I
    origin: tuple[int, ...] = ()  # the recorded uses that d comes from; a bias with the same origin shares d
    starts: tuple[int, ...] = (0,)  # for each use, the first row of the weight that it reads; d is zero in other rows

    @property
    def a(self) -> Float[Tensor, "N G S I"]:
        return self.locate(self.source)

    @property
    def a_by_sample(self) -> Float[Tensor, "N G S I"]:
        """a, in the memory layout for one product per sample."""
        return self.locate.by_sample(self.source) if isinstance(self.locate, Patches) else self.a

    @property
    def outputs(self) -> int:
        return self.d.shape[2]

    @property
    def groups(self) -> int:
        return self.d.shape[1]

    @property
    def columns(self) -> int:
        """I, the width of a."""
        return self.source.shape[3] if self.locate is _here else self.shape.numel() // (self.groups * self.d.shape[4])

    def chunks(self, bytes_per_sample: int, most: Mapping[str, int] = _CHUNK_BYTES) -> Iterator[Outer]:
        """Pieces of so few samples that `bytes_per_sample` times their number stays below `most` for the device."""
        step = max(1, most.get(self.d.device.type, 1 << 24) // max(1, bytes_per_sample))
        for i in range(0, self.samples, step):
            yield self.part(slice(i, i + step))

    def form(self) -> Float[Tensor, "N G C O I"]:
        """J in matrix form, by one product per sample and group, with the outputs side by side."""
        N, G, C, S, O = self.d.shape
        if isinstance(self.locate, Patches) and self._many_locations():
            d = self.d.transpose(3, 4).reshape(N, C * O, *self.locate.places(self.source.shape[2:]))
            return self.locate.weight_gradients(self.source, d).view(N, G, C, O, -1)
        a = self.a_by_sample
        if S == 1:
            return self.d.squeeze(3).unsqueeze(4) * a.unsqueeze(2)
        d = self.d.transpose(3, 4).reshape(N * G, C * O, S)
        return product(d, a.reshape(N * G, S, -1)).view(N, G, C, O, -1)

    @property
    def in_order(self) -> bool:
        """Whether the entries of the parameter are in the order of those of its matrix."""
        return in_order(self.order)

    def form_into(self, J: Float[Tensor, "N C P"]) -> None:
        """Write J there, without a copy of it, if it is `in_order`."""
        _, G, C, S, O = self.d.shape
        place = J.unflatten(2, (G, O, -1)).transpose(1, 2)
        if S == 1:
            torch.mul(self.d.squeeze(3).unsqueeze(4), self.a.unsqueeze(2), out=place)
            return
        I = place.shape[4]
        start = 0
        for part in self.chunks(self.d.element_size() * G * I * max(S, C * O), _FORMED):
            place[start : start + part.samples] = part.form()
            start += part.samples

    def _many_locations(self) -> bool:
        """Whether patches are so much larger than J that a CPU would take longer to copy them than to multiply."""
        _, G, C, S, O = self.d.shape
        large = C * S * self.shape.numel() >= _LARGE_CONVOLUTION
        return G == 1 and S >= 4 * C * O and large and self.d.device.type == "cpu" and self.d.dtype == torch.float32

    def dense(self) -> Float[Tensor, "N C *P"]:
        return as_weight(self.form().transpose(1, 2), self.shape, self.order)

    def pullback(self, u: Float[Tensor, "N C"]) -> Float[Tensor, "*P"]:
        d = torch.einsum("ngcso,nc->ngso", self.d, u)
        return as_weight(torch.einsum("ngso,ngsi->goi", d, self.a), self.shape, self.order)

    def square_sum(self) -> Float[Tensor, "*P"]:
        return as_weight(self.square_sum_matrix(), self.shape, self.order)

    def square_sum_matrix(self) -> Float[Tensor, "G O I"]:
        """Σ_nc J², in matrix form."""
        return sum_of_squares(self)

    def magnitude(self) -> LayerJacobian:
        return self.at(self.a.abs(), self.d.abs())

    def mass(self) -> Float[Tensor, " N"]:
        d, a = torch.linalg.vector_norm(self.d, 1, (2, 4)), torch.linalg.vector_norm(self.a, 1, 3)
        return (d * a).sum((1, 2))

    def regroup(self, n: int) -> LayerJacobian:
        return self.at(_fold(self.a, n, 2), _fold(self.d, n, 3))

    def at(self, a: Float[Tensor, "N G S I"], d: Float[Tensor, "N G C S O"]) -> Outer:
        """The same weight with other factors, where a is given directly."""
        return replace(self, source=a, locate=_here, d=d)


@dataclass(frozen=True, eq=False, repr=False)
class Scale(LayerJacobian):
    """J[n,c] = Σ_s d[n,c,s,:] * x[n,s,:]: the scale of a norm layer; with x = None (all ones), a bias."""

    x: Float[Tensor, "N S K"] | None
    d: Float[Tensor, "N C S K"]
    shape: torch.Size
    origin: tuple[int, ...] = ()
    starts: tuple[int, ...] = (0,)  # as in `Outer`

    @property
    def outputs(self) -> int:
        return self.d.shape[1]

    def form(self) -> Float[Tensor, "N C K"]:
        if self.d.shape[2] == 1:
            d = self.d.squeeze(2)
            return d if self.x is None else d * self.x.squeeze(1).unsqueeze(1)
        return self.d.sum(2) if self.x is None else torch.einsum("ncsk,nsk->nck", self.d, self.x)

    def dense(self) -> Float[Tensor, "N C *P"]:
        return self.form().reshape(self.samples, self.outputs, *self.shape)

    def pullback(self, u: Float[Tensor, "N C"]) -> Float[Tensor, "*P"]:
        return torch.einsum("nck,nc->k", self.form(), u).view(self.shape)

    def square_sum(self) -> Float[Tensor, "*P"]:
        return self.form().square().sum((0, 1)).view(self.shape)

    def magnitude(self) -> LayerJacobian:
        return replace(self, x=None if self.x is None else self.x.abs(), d=self.d.abs())

    def mass(self) -> Float[Tensor, " N"]:
        if self.x is None:
            return torch.linalg.vector_norm(self.d, 1, (1, 2, 3))
        return (torch.linalg.vector_norm(self.d, 1, 1) * self.x.abs()).sum((1, 2))

    def regroup(self, n: int) -> LayerJacobian:
        return replace(self, x=None if self.x is None else _fold(self.x, n, 1), d=_fold(self.d, n, 2))


@dataclass(frozen=True, eq=False, repr=False)
class Lookup(LayerJacobian):
    """J[n,c][v,:] = Σ_{s: index[n,s] = v} d[n,c,s,:] for a table of V rows; d is zero where the row is `padding`."""

    index: Int[Tensor, "N S"]
    d: Float[Tensor, "N C S O"]
    shape: torch.Size
    padding: int | None = None

    @property
    def outputs(self) -> int:
        return self.d.shape[1]

    def rows(self) -> tuple[Int[Tensor, "U"], Int[Tensor, "U"], Float[Tensor, "U C O"]]:
        """The sample, the table row and the Jacobian of every row that a sample reads; repeated reads are summed."""
        N, C, S, O = self.d.shape
        sample = torch.arange(N, device=self.index.device)[:, None]
        key, place = torch.unique(sample * self.shape[0] + self.index, return_inverse=True)
        total = self.d.new_zeros(len(key), C, O)
        total.index_add_(0, place.flatten(), self.d.transpose(1, 2).reshape(N * S, C, O))
        return key // self.shape[0], key % self.shape[0], total

    def dense(self) -> Float[Tensor, "N C *P"]:
        sample, row, values = self.rows()
        J = self.d.new_zeros(self.samples, self.shape[0], self.outputs, self.shape[1])
        J[sample, row] = values
        return J.transpose(1, 2)

    def pullback(self, u: Float[Tensor, "N C"]) -> Float[Tensor, "*P"]:
        d = torch.einsum("ncso,nc->nso", self.d, u)
        return d.new_zeros(self.shape).index_add_(0, self.index.flatten(), d.flatten(0, 1))

    def square_sum(self) -> Float[Tensor, "*P"]:
        _, row, values = self.rows()
        return values.new_zeros(self.shape).index_add_(0, row, values.square().sum(1))

    def magnitude(self) -> LayerJacobian:
        return replace(self, d=self.d.abs())

    def mass(self) -> Float[Tensor, " N"]:
        return torch.linalg.vector_norm(self.d.flatten(1), 1, 1)

    def regroup(self, n: int) -> LayerJacobian:
        return replace(self, index=_fold(self.index, n, 1), d=_fold(self.d, n, 2))


@dataclass(frozen=True, eq=False, repr=False)
class Dense(LayerJacobian):
    """J itself, if no factors are known. `groups` and `order` say how to read a weight as matrices, as in `Outer`."""

    d: Float[Tensor, "N C *P"]
    shape: torch.Size
    groups: int = 1
    order: tuple[int, ...] = ()

    def matrix(self) -> Float[Tensor, "N C O I"]:
        """J with the weight as a matrix that has a row for each unit of the layer."""
        order = self.order or tuple(range(len(self.shape)))
        return as_matrices(self.d, self.groups, order).flatten(2, 3)

    @property
    def outputs(self) -> int:
        return self.d.shape[1]

    def dense(self) -> Float[Tensor, "N C *P"]:
        return self.d

    def pullback(self, u: Float[Tensor, "N C"]) -> Float[Tensor, "*P"]:
        return torch.tensordot(u, self.d, 2)

    def square_sum(self) -> Float[Tensor, "*P"]:
        return self.d.square().sum((0, 1))

    def magnitude(self) -> LayerJacobian:
        return replace(self, d=self.d.abs())

    def mass(self) -> Float[Tensor, " N"]:
        return torch.linalg.vector_norm(self.d.flatten(1), 1, 1)

    def regroup(self, n: int) -> LayerJacobian:
        k = self.samples // n
        return replace(self, d=self.d.unflatten(0, (n, k)).sum(1))


def outer(a: Float[Tensor, "N S I"], d: Float[Tensor, "N C S O"], shape: torch.Size) -> Outer:
    """An `Outer` with one group and a given directly."""
    return Outer(a.unsqueeze(1), _here, d.unsqueeze(1), shape, tuple(range(len(shape))))


def zero(n: int, c: int, like: Tensor) -> Scale:
    """The Jacobian of a parameter that the output does not depend on: a sum over no locations."""
    return Scale(None, like.new_zeros(n, c, 0, like.numel()), like.shape)


def _here(a: Tensor) -> Tensor:
    return a


def _fold(t: Tensor, n: int, axis: int) -> Tensor:
    """(n·k, …, S, …) → (n, …, k·S, …): k consecutive rows are one sample's locations."""
    return t.unflatten(0, (n, -1)).movedim(1, axis).flatten(axis, axis + 1)
