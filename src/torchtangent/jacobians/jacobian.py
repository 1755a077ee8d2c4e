"""The Jacobian of a network's outputs with respect to its parameters, and the gradients of its samples' losses."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import reduce

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchtangent.jacobians.call import eagerly, float32_products, undisturbed
from torchtangent.jacobians.capture import BUDGET, Capture
from torchtangent.jacobians.covariance import covariance
from torchtangent.jacobians.factors import LayerJacobian
from torchtangent.jacobians.inputs import (
    Inputs,
    Loss,
    Output,
    batch_size,
    check_loss,
    check_product,
    leaves,
    split,
    versions,
    wide,
    with_targets,
)
from torchtangent.jacobians.products import pull, push
from torchtangent.jacobians.select import Params
from torchtangent.jacobians.together import write
from torchtangent.notice import listed
from torchtangent.operators import Operator, memory
from torchtangent.operators.derivative import linear
from torchtangent.operators.space import Space, Vector


def jacobian(model: nn.Module, x: Inputs, *, params: Params = None, output: Output = None) -> Jacobian:
    """The per-sample Jacobian of `model` at `x`, as an operator: it is computed when it is asked for.

    Args:
        model: Any module whose samples do not interact (BatchNorm and dropout in eval mode).
        x: A batch: a tensor (N, ...), a tuple (positional arguments) or a dict (keyword arguments).
        params: Which parameters, by name pattern or a predicate (name, parameter); all trainable ones by default.
        output: Which tensor of the model's result, (N, C) or (N, T, C).

    >>> net = nn.Linear(3, 2)
    >>> J = jacobian(net, torch.ones(4, 3))
    >>> J.dense().shape                     # N, C, P
    torch.Size([4, 2, 8])
    >>> v = dict(net.named_parameters())    # the network is linear: J @ θ = f
    >>> torch.allclose(J @ v, net(torch.ones(4, 3)))
    True
    """
    _refuse_list(x)
    capture = Capture(model, params, output)
    capture.look(x)
    return Jacobian(capture, x, (batch_size(x), *capture.output_shape))


def gradients(
    model: nn.Module, data: tuple[Inputs, Tensor], loss: Loss, *, params: Params = None, output: Output = None
) -> Jacobian:
    """The gradient of the loss at each sample, as an operator of shape (N, P): computed when it is asked for.

    `G @ v` is the inner product of every gradient with v, (N,), as influence functions need it; `G.T @ u` is a weighted
    sum of the gradients; `G.dense()` has them as rows. With a negative log-likelihood, GᵀG / N is the empirical Fisher
    matrix.

    Args:
        model: Any module whose samples do not interact (BatchNorm and dropout in eval mode).
        data: A batch (x, y), with x as for `jacobian` and y a tensor of targets, (N, ...).
        loss: (outputs, targets) → the loss of each sample, (N,): torch's losses with `reduction="none"`.
        params: Which parameters, as for `jacobian`.
        output: Which tensor of the model's result the loss is given.

    >>> net = nn.Linear(3, 1)
    >>> G = gradients(net, (torch.ones(4, 3), torch.zeros(4)), lambda f, y: (f[:, 0] - y) ** 2 / 2)
    >>> G.shape
    (4, 4)
    >>> torch.allclose(G.dense(), net(torch.ones(4, 3)) * torch.ones(4))    # (f − y) ∇f
    True
    """
    if not isinstance(data, tuple | list) or len(data) != 2 or not isinstance(data[1], Tensor):
        raise ValueError("gradients(model, (x, y), loss) needs one batch of inputs and targets, y a tensor (N, ...).")
    check_loss(loss, "gradients(model, (x, y), loss)")
    x, y = data
    _refuse_list(x)
    if y.dim() == 0 or len(y) != batch_size(x):
        raise ValueError(f"There are {batch_size(x)} samples, and targets of shape {tuple(y.shape)}: one for each.")
    capture, both = Capture(model, params, output, loss), with_targets(x, y)
    capture.look(both)
    return Jacobian(capture, both, (len(y),))


def _refuse_list(x: Inputs) -> None:
    if isinstance(x, list):
        raise ValueError(
            "The inputs are a list. Pass samples as one tensor, torch.stack(x), and several arguments as a tuple."
        )


class Jacobian:
    """J of shape (N, C, P), or (N, T, C, P), made by `jacobian`; (N, P) made by `gradients`."""

    def __init__(self, capture: Capture, x: Inputs, outputs: tuple[int, ...]) -> None:
        self._capture, self._x, self._outputs = capture, x, outputs
        self._versions = versions(leaves(x))

    @property
    def space(self) -> Space:
        """Names and shapes of the parameters, in the order of the last axis."""
        return self._capture.space

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self._outputs, self.space.size)

    def __repr__(self) -> str:
        return f"Jacobian{self.shape} of {type(self._capture.model).__name__}"

    @property
    @float32_products()
    def layers(self) -> dict[str, LayerJacobian]:
        """The factored Jacobian of each parameter, for all samples at once."""
        self._check()
        return self._layers(self._x)

    def _layers(self, x: Inputs) -> dict[str, LayerJacobian]:
        with undisturbed():
            return self._capture.trace(x).layers()

    @float32_products()
    def dense(self) -> Float[Tensor, "N *out P"]:
        """J itself, parameters flattened and concatenated in `named_parameters()` order."""
        dtype, device = self._capture.wide_dtype, self._capture.device
        memory.require("J", self.shape, dtype, device, "J @ v, J.T @ u and J.layers do without it, as does tt.ntk.")
        J = memory.empty(self.shape, dtype, device)
        self._check()
        self._capture.check(self._x)  # before pieces are cut: what a sample takes depends on how layers are captured
        for index, x in self._pieces(cotangents=J[0, ..., 0].numel()):
            start = 0
            for layer in self._layers(x).values():
                end = start + layer.shape.numel()
                write(layer, J[index, ..., start:end].view(layer.samples, layer.outputs, -1))
                start = end
        return J

    def __matmul__(self, v: Vector) -> Float[Tensor, "N *out"]:
        """J v for a flat tensor, dict or list in parameter space; a matrix (P, K) gives (N, *out, K)."""
        if isinstance(v, Transposed):
            raise TypeError("J @ J.T is the tangent kernel: tt.ntk(model, x) computes it without J.")
        flat, _ = self.space.flatten(v)
        self._check_like(flat)
        found = linear(self._push, self._pull, flat)
        return found if isinstance(v, Tensor) and v.dim() == 2 else found[..., 0]

    @eagerly
    @float32_products()
    def covariance(self, M: Operator) -> Float[Tensor, "N ..."]:
        """J M Jᵀ for each sample, (N, *out, *out): the outputs' covariance if the parameters have covariance M.

        With M = (N * F).inverse(δ), for the Fisher matrix F of N samples, these are the variances of predictions by a
        Laplace approximation, or the self-influences of samples. M is on the same parameters. If it is KFAC, EKFAC or
        diagonal, or the inverse, a multiple or a sum with the identity of one of these, it takes no products with M,
        and of convolutions a part of J at a time.

        >>> from torchtangent.operators import DiagonalOperator
        >>> J = jacobian(nn.Linear(3, 2), torch.ones(1, 3))
        >>> J.covariance(DiagonalOperator(torch.full((8,), 0.5)))      # (‖x‖² + 1) / 2, for each of two outputs
        tensor([[[2., 0.],
                 [0., 2.]]])
        """
        if not isinstance(M, Operator):
            raise TypeError(
                f"J.covariance(M) needs an operator M on parameter space, as tt.fisher returns, got a "
                f"{type(M).__name__}. (tt.operators.DenseOperator(matrix) is one.)"
            )
        if M.size != self.space.size or (M.space is not None and M.space != self.space):
            others = set(self.space.names) ^ set(M.space.names if M.space else self.space.names)
            raise ValueError(
                f"M is on {M.size} parameters, J on {self.space.size}: pass both the same params=. In only one of "
                f"them: {listed(sorted(others)) or 'none, but shapes differ'}."
            )
        self._check_like(torch.empty(0, dtype=M.dtype, device=M.device), "matrix")
        M = M.to(self._capture.wide_dtype)
        self._check()
        self._capture.check(self._x)  # before pieces are cut: what a sample takes depends on how layers are captured
        outputs = self._outputs[1:]
        found = [covariance(self._layers(x), self.space, M) for _, x in self._pieces(cotangents=math.prod(outputs))]
        return torch.cat(found).view(*self._outputs, *outputs)

    @property
    def T(self) -> Transposed:  # noqa: N802 (numpy's and torch's name for it)
        """Jᵀ."""
        return Transposed(self)

    @eagerly
    @float32_products()
    def _push(self, v: Float[Tensor, "P K"]) -> Float[Tensor, "N *out K"]:
        columns = []
        for column in v.unbind(1):
            tangent = self.space.split(column.contiguous())
            column = torch.cat([push(self._capture, x, tangent)[1] for _, x in self._pieces()])
            columns.append(column.view(self._outputs))
        products = torch.stack(columns, -1)
        check_product(products, v)
        return products

    @eagerly
    @float32_products()
    def _pull(self, u: Float[Tensor, "N *out K"]) -> Float[Tensor, "P K"]:
        columns = []
        for column in u.unbind(-1):
            parts = (pull(self._capture, x, column[index]).values() for index, x in self._pieces())
            columns.append(reduce(Tensor.add_, (torch.cat([wide(g).flatten() for g in part]) for part in parts)))
        products = (columns[0].unsqueeze(1) if len(columns) == 1 else torch.stack(columns, 1)).to(u.dtype)
        check_product(products, u)
        return products

    def _pieces(self, cotangents: int = 1) -> Iterator[tuple[slice, Inputs]]:
        self._check()
        return split(self._x, self._capture.samples_within(BUDGET, cotangents))

    def _check_like(self, v: Tensor, what: str = "vector") -> None:
        """A vector must be of the parameters' dtype (or float32, for those of half precision) and device."""
        dtype, device = self._capture.dtype, self._capture.device
        if v.device != device or v.dtype not in (dtype, self._capture.wide_dtype):
            raise ValueError(
                f"The {what} is {v.dtype} on {v.device}, the model {dtype} on {device}. Convert one with .to()."
            )

    def _check(self) -> None:
        """Model and inputs must be what they were."""
        if versions(leaves(self._x)) != self._versions:
            raise RuntimeError(
                "The inputs changed since this Jacobian was made (or it was copied). Make it again, or keep a copy."
            )
        self._capture.look(self._x)


class Transposed:
    """Jᵀ, for `J.T @ u`: (P,) of outputs' cotangents (N, *out), (P, K) of (N, *out, K)."""

    def __init__(self, jacobian: Jacobian) -> None:
        self._jacobian = jacobian

    @property
    def T(self) -> Jacobian:  # noqa: N802
        return self._jacobian

    def __repr__(self) -> str:
        return f"Transposed({self._jacobian!r})"

    def __matmul__(self, u: Float[Tensor, "N *outK"]) -> Float[Tensor, "P *K"]:
        outputs = self._jacobian.shape[:-1]
        if isinstance(u, Jacobian):
            raise TypeError(
                'J.T @ J is N times a Fisher matrix: tt.fisher(model, (x, None), tt.Dense, likelihood="gaussian").'
            )
        if not isinstance(u, Tensor):
            raise TypeError(f"J.T @ u needs u as a tensor of the outputs' shape {outputs}, got a {type(u).__name__}.")
        self._jacobian._check_like(u)
        if u.dim() == len(outputs) + 1 and tuple(u.shape[:-1]) == outputs:
            return linear(self._jacobian._pull, self._jacobian._push, u)
        if tuple(u.shape) != outputs:
            hint = " Pass u.unsqueeze(1)." if (*u.shape, 1) == outputs else ""
            raise ValueError(f"J.T @ u needs u of the outputs' shape {outputs}, got {tuple(u.shape)}.{hint}")
        return linear(self._jacobian._pull, self._jacobian._push, u.unsqueeze(-1)).squeeze(1)
