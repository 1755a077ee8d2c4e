"""Neural anisotropy directions: the linear functions of the input that a network's tangent space favours."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.pooling import _AdaptiveMaxPoolNd, _MaxPoolNd

from torchtangent import spectrum
from torchtangent.jacobians.call import Network, float32_products
from torchtangent.jacobians.capture import BUDGET, Capture
from torchtangent.jacobians.inputs import Output, check_finite, split
from torchtangent.jacobians.select import Params
from torchtangent.notice import warn
from torchtangent.operators import ImplicitOperator

__all__ = ["Directions", "MixedDerivative", "directions"]

_COLUMNS = 64  # the most products computed at once
_PASSES = 4  # the size of the graph of a second derivative, in units of that of a first
_KINKED = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.RReLU, nn.SELU, nn.Threshold),
    *(nn.Hardtanh, nn.Hardsigmoid, nn.Hardswish, nn.Hardshrink, nn.Softshrink),
    *(_MaxPoolNd, _AdaptiveMaxPoolNd),
)  # modules whose slope jumps


@dataclass(frozen=True, eq=False, repr=False)
class Directions:
    """Directions of input space with their singular values; unpacks as `values, vectors`.

    Attributes:
        values: s, (k,), in descending order.
        vectors: v, (k, *shape), orthonormal as flat vectors, each with its largest entry positive.
    """

    values: Float[Tensor, " K"]
    vectors: Float[Tensor, "K *shape"]

    def __repr__(self) -> str:
        first, last = float(self.values[0]), float(self.values[-1])
        return f"Directions({len(self.values)} of shape {tuple(self.vectors.shape[1:])}, s {first:.4g} … {last:.4g})"

    @property
    def alignments(self) -> Float[Tensor, " K"]:
        """α(g_v) = s² of the linear functions g_v(x) = ⟨v, x⟩."""
        return self.values.square()

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.values, self.vectors))


def directions(
    model: nn.Module,
    shape: int | Sequence[int],
    k: int | None = None,
    *,
    x: Tensor | np.ndarray | None = None,
    params: Params = None,
    output: Output = None,
    seed: int = 0,
) -> Directions:
    """The right singular vectors of M = E_x[∇²_{x,θ} f(x)], (P, d), from its products alone.

    For x ~ N(0, I), the alignment of g_v(x) = ⟨v, x⟩ with the tangent kernel is α(g_v) = ‖Mv‖² by Stein's lemma. So the
    right singular vectors are linear functions in the order in which the linearized network favours them, with
    α(g_v) = s². This requires a smooth activation such as GELU: where ∇_θ f jumps, as with ReLU or max-pooling, its
    derivative misses the jump. There is a warning for such modules, but not for functions such as `F.relu`.

    The products Mv = ∇_θ⟨∇_x f, v⟩ and Mᵀw = ∇_x⟨∇_θ f, w⟩ are backward passes through the graph of a gradient. The
    vectors are eigenvectors of MᵀM (d, d). Up to d = 2048, or for more than a quarter of them, that is formed from 2 d
    products; otherwise they are found by Lanczos iterations (`spectrum.top`). Then s = ‖Mv‖. Directions with
    s < √eps · s₁, for eps of the model's dtype, cannot be told apart; a float64 model (`model.double()`) resolves them.

    Args:
        model: Any module whose samples do not interact, with one output.
        shape: The shape of a single input, without the axis of samples; d is the product of its sizes.
        k: The number of directions; all min(d, P) by default.
        x: Inputs (N, *shape) over which ∇² is averaged, a tensor or an array; by default only the origin, as in the
            experiments of the paper.
        params: Which parameters, by name pattern or a predicate (name, parameter); all trainable ones by default.
        output: Which tensor of the model's result to use; it has to pick one of several outputs.
        seed: The seed of the Lanczos iterations.

    Reference:
        Ortiz-Jiménez et al., What can linearized neural networks actually say about generalization?, 2021, Theorem 1.

    >>> net = nn.Linear(3, 1)                     # f = ⟨w, x⟩ + b favours no direction
    >>> s, v = directions(net, (3,))
    >>> s, v.shape
    (tensor([1., 1., 1.]), torch.Size([3, 3]))
    """
    mixed = MixedDerivative(model, shape, x, params, output)
    P, d = mixed.shape
    k = min(P, d) if k is None else k
    if not 1 <= k <= min(P, d):
        raise ValueError(f"k must be between 1 and min(d, P) = min({d}, {P}) = {min(P, d)}, got {k}.")
    vectors = spectrum.top(ImplicitOperator(mixed.gram, d, mixed.dtype, mixed.device), k, seed=seed).vectors
    # The root of an eigenvalue of MᵀM has lost half of its digits; ‖Mv‖ has not.
    values, order = mixed.norms(vectors).sort(descending=True)
    if float(values[0]) == 0:
        raise ValueError(
            f"∇²_(x,θ) f is exactly zero at the {'origin' if x is None else 'inputs'}, so it has no directions. "
            "(ReLU without biases has no derivative at the origin.) Use a smooth activation, such as GELU."
        )
    _warn_of_kinks(model)
    return Directions(values, vectors[:, order].T.reshape(k, *mixed.input_shape))


class MixedDerivative:
    """M = mean_n ∇²_{x,θ} f(x_n), (P, d), known by its products.

    Args:
        model: Any module whose samples do not interact, with one output.
        shape: The shape of a single input.
        x: The inputs x_n, (N, *shape); only the origin by default.
        params: Which parameters.
        output: Which tensor of the model's result to use.
    """

    def __init__(
        self,
        model: nn.Module,
        shape: int | Sequence[int],
        x: Tensor | np.ndarray | None = None,
        params: Params = None,
        output: Output = None,
    ) -> None:
        capture = Capture(model, params, output)
        self._params = list(capture.params.values())
        p = self._params[0]
        self.dtype, self.device = torch.promote_types(p.dtype, torch.float32), p.device
        if isinstance(shape, Tensor | np.ndarray) and (shape.ndim > 1 or "int" not in str(shape.dtype)):
            got = f"a {type(shape).__name__} of shape {tuple(shape.shape)}"
            raise ValueError(
                f"shape= is the shape of a single input, such as x.shape[1:], but got {got}. "
                "Data go to x=: directions(model, x.shape[1:], x=x)."
            )
        sizes = tuple(np.atleast_1d(shape).tolist())
        if not all(isinstance(size, int) and size >= 1 for size in sizes):
            raise ValueError(f"shape={sizes!s:.60} should hold the sizes of a single input, such as (1, 28, 28).")
        inputs = f"floating-point inputs of shape (N, {', '.join(map(str, sizes))})"
        self._x = torch.zeros(1, *sizes, dtype=p.dtype, device=p.device) if x is None else _as_tensor(x, p, inputs)
        if self._x.shape[1:] != sizes or not self._x.is_floating_point():
            raise ValueError(f"x should be {inputs}, got {tuple(self._x.shape)} of {self._x.dtype}.")
        try:
            capture.look(self._x)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, TypeError, IndexError) as error:
            raise ValueError(
                f"The model failed on {inputs} ({str(error).strip().splitlines()[0]}). shape= is that of a single "
                "input, as x.shape[1:]. A model of tokens has no directions: pass what follows its embedding."
            ) from error
        if capture.output_shape.numel() != 1:
            raise ValueError(
                f"The model has outputs of shape {tuple(capture.output_shape)}, but directions belong to one of them. "
                "Pick it by output=..., for example output=lambda r: r[:, 0]."
            )
        shifted = _Shifted(capture.model, self._x)
        self._network, self._shift = Network(shifted, output), [shifted.shift]
        self.shape = (capture.space.size, self._x[0].numel())
        self.input_shape = self._x.shape[1:]
        # As many columns at once as the budget allows, and with these as many samples.
        self._columns = min(_COLUMNS, max(1, capture.budget(BUDGET) // (self.shape[0] * p.element_size())))
        self._samples = capture.samples_within(BUDGET, _PASSES * self._columns)
        self._batched = True  # whether several backward passes can run as one

    def gram(self, V: Float[Tensor, "d K"]) -> Float[Tensor, "d K"]:
        """MᵀM V."""
        return torch.cat([self.pull(self.push(part)) for part in V.split(self._columns, 1)], 1)

    def norms(self, V: Float[Tensor, "d K"]) -> Float[Tensor, " K"]:
        """‖M v‖ for every column v."""
        return torch.cat([torch.linalg.vector_norm(self.push(part), dim=0) for part in V.split(self._columns, 1)])

    def push(self, V: Float[Tensor, "d K"]) -> Float[Tensor, "P K"]:
        """M V = ∇_θ⟨∇_x f, V⟩."""
        return self._product(self._shift, self._params, V)

    def pull(self, W: Float[Tensor, "P K"]) -> Float[Tensor, "d K"]:
        """MᵀW = ∇_x⟨∇_θ f, W⟩."""
        return self._product(self._params, self._shift, W)

    @float32_products()
    def _product(self, a: Sequence[Tensor], b: Sequence[Tensor], V: Float[Tensor, "a K"]) -> Float[Tensor, "b K"]:
        """∇_b⟨∇_a f, V⟩, averaged over the samples."""
        found = torch.zeros(V.shape[1], sum(t.numel() for t in b), dtype=self.dtype, device=self.device)
        for _, x in split(self._x, self._samples):
            with self._network.undisturbed():
                f = self._network(x)
                check_finite(f.detach())
                first = torch.autograd.grad(f.sum(), a, create_graph=True, materialize_grads=True)
                rows = V.T.to(f.dtype).split([t.numel() for t in a], 1)
                # Leave out constant derivatives, such as that with respect to the last bias.
                pairs = [(g, v.reshape(-1, *g.shape)) for g, v in zip(first, rows, strict=True) if g.requires_grad]
                if pairs:
                    found += self._second([g for g, _ in pairs], b, [v for _, v in pairs])
        if not bool(torch.isfinite(found.sum())) and not bool(torch.isfinite(found).all()):
            raise ValueError(
                "∇²_(x,θ) f has NaN or infinity although f is finite (as √x has at 0). "
                "Pass inputs x=... at which the model is smooth."
            )
        return (found / len(self._x)).T

    def _second(self, first: Sequence[Tensor], b: Sequence[Tensor], rows: Sequence[Tensor]) -> Float[Tensor, "K b"]:
        """∇_b⟨first, row⟩ for every row: in one backward pass, or one by one if torch cannot vectorize it."""

        def one(*row: Tensor) -> Tensor:
            grads = torch.autograd.grad(first, b, row, retain_graph=True, materialize_grads=True)
            return torch.cat([g.flatten() for g in grads])

        if self._batched:
            try:
                with warnings.catch_warnings():
                    warnings.filterwarnings("error", message="There is a performance drop")
                    return torch.vmap(one)(*rows)
            except torch.OutOfMemoryError:
                raise
            except (RuntimeError, UserWarning):
                self._batched = False
        return torch.stack([one(*row) for row in zip(*rows, strict=True)])


def _as_tensor(x: Any, like: Tensor, wanted: str) -> Tensor:
    """x as a tensor; floating-point numbers of an array get the dtype of the model."""
    if isinstance(x, np.ndarray):
        found = torch.from_numpy(np.ascontiguousarray(x)).to(like.device)
        return found.to(like.dtype) if found.is_floating_point() else found
    if not isinstance(x, Tensor):
        raise TypeError(f"x should be {wanted}, a tensor or an array, got a {type(x).__name__}.")
    return x


def _warn_of_kinks(model: nn.Module) -> None:
    """Warn if the model has modules for which α = s² does not hold."""
    for name, module in model.named_modules():
        if isinstance(module, _KINKED):
            warn(
                f"{type(module).__name__} '{name}' is not smooth: ∇_θ f jumps where its slope does, which ∇²_(x,θ) f "
                "does not see, so s² is not the alignment of ⟨v, x⟩. Use a smooth activation, such as GELU.",
            )
            return


class _Shifted(nn.Module):
    """The model with one more parameter: a shift of all inputs, which is zero."""

    def __init__(self, model: nn.Module, x: Float[Tensor, "N *shape"]) -> None:
        super().__init__()
        self.model = model
        self.shift = nn.Parameter(torch.zeros_like(x[0]))

    def forward(self, x: Float[Tensor, "N *shape"]) -> object:
        return self.model(x + self.shift)
