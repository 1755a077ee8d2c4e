"""`fisher()`, `gauss_newton()` and `hessian()`."""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from torchtangent.curvature.cotangents import Cotangents
from torchtangent.curvature.data import Batches, check_rows
from torchtangent.curvature.implicit import FisherProduct, HessianProduct, Implicit, implicit
from torchtangent.curvature.losses import Loss, LossCotangents
from torchtangent.curvature.representation import Choice, Scope, resolve
from torchtangent.curvature.source import LayerSource
from torchtangent.jacobians.call import float32_products
from torchtangent.jacobians.capture import Capture
from torchtangent.jacobians.inputs import Inputs, Output, check_devices, check_loss
from torchtangent.jacobians.select import Params
from torchtangent.notice import Overflow, warn
from torchtangent.operators import BlockOperator, Operator
from torchtangent.progress import Progress, Report


@float32_products()
def fisher(
    model: nn.Module,
    data: Any,
    representation: Choice,
    *,
    likelihood: str = "categorical",
    kind: str = "exact",
    samples: int = 1,
    seed: int = 0,
    params: Params = None,
    output: Output = None,
    progress: bool | Report | None = None,
) -> Operator:
    """The Fisher information matrix F = E_x E_y[∇log p(y|x) ∇log p(y|x)ᵀ] of a network, in a representation.

    F is a mean over the samples of the data and a sum over outputs (and over the T terms of (N, T, C) outputs).

    Args:
        model: Any module whose samples do not interact (BatchNorm and dropout in eval mode).
        data: A loader (any iterable of batches (inputs, targets)), or one batch (inputs, targets). Terms whose class is
            −100 do not count, as for `torch.nn.functional.cross_entropy`, but the mean is still over all samples.
        representation: `Dense`, `Diagonal`, `BlockDiagonal`, `QuasiDiagonal`, `KFAC`, `EKFAC`, `LowRank`, `Implicit`,
            an instance of one with options, or a dict from patterns on module names to them.
        likelihood: "categorical" (logits), "bernoulli" (logits) or "gaussian" (unit variance).
        kind: "exact" (the expectation over y in closed form), "sampled" (`samples` draws of y for each x) or
            "empirical" (y from the data: not the Fisher matrix, but often used instead). Per sample they take about
            T·C (one per output), `samples` and one backward passes: with many outputs, such as those of a language
            model, choose "sampled".
        samples: Draws for `kind="sampled"`.
        seed: Seed of the draws; the same seed gives the same labels whatever the batch size.
        params: Which parameters, by name pattern or a predicate (name, parameter); all trainable ones by default.
        output: Which tensor of the model's result, (N, C) or (N, T, C).
        progress: Show a line with rate and end time: True, False, on terminals only (default), or a function of
            (samples done, all of them), where EKFAC counts each sample twice, once for each pass over the data.

    Returns:
        An operator on parameter space: `F @ v`, `F.solve(v, damping=...)`, `F.trace()`, and so on. Vectors are flat
        tensors, dicts by name or lists; products, solves and `quad` are differentiable with respect to them. F itself
        is a constant.

    >>> import torch
    >>> from torchtangent.curvature import Diagonal
    >>> net = nn.Linear(3, 2)
    >>> F = fisher(net, (torch.ones(5, 3), None), Diagonal, likelihood="gaussian")
    >>> F.trace()       # E‖x‖² + 1, for each of two outputs
    tensor(8.)
    """
    cotangents = Cotangents(likelihood, kind, samples, seed)
    return _represented(Capture(model, params, output), data, representation, cotangents, progress)


@float32_products()
def gauss_newton(
    model: nn.Module,
    data: Any,
    loss: Loss,
    representation: Choice,
    *,
    params: Params = None,
    output: Output = None,
    progress: bool | Report | None = None,
) -> Operator:
    """The Gauss-Newton matrix G = (1/N) Σ_n J_nᵀ ∇²ℓ_n J_n of a loss (1/N) Σ_n ℓ_n(f_n), in a representation.

    It is the Hessian of the loss of the linearized network. For cross-entropy, and for half the squared error summed
    over outputs, it is the Fisher matrix, which `fisher` computes with fewer backward passes.

    Args:
        model: Any module whose samples do not interact.
        data: A loader or one batch, as for `fisher`.
        loss: (outputs, targets) → the mean over samples of a loss that is convex in the outputs, with two derivatives,
            for example `nn.functional.huber_loss`. It is given what `output` picks, in the shape that it has there.
        representation: As for `fisher`. Each sample takes a backward pass for each output, except with `Implicit`,
            whose products take two and whose loss need not be convex.
        params: Which parameters.
        output: Which tensor of the model's result.
        progress: As for `fisher`.

    >>> import torch
    >>> from torchtangent.curvature import Dense
    >>> net = nn.Linear(2, 1, bias=False)
    >>> G = gauss_newton(net, (torch.eye(2), torch.ones(2)), lambda f, y: (y * f[:, 0].square()).mean() / 2, Dense)
    >>> G.dense()    # (1/N) Σ y x xᵀ
    tensor([[0.5000, 0.0000],
            [0.0000, 0.5000]])
    """
    check_loss(loss, "gauss_newton(model, data, loss, representation)")
    capture = Capture(model, params, output, flatten=True)
    G = _represented(capture, data, representation, LossCotangents(loss, capture.network), progress)
    if not G.matrix_free and not G.trace():
        warn("The Gauss-Newton matrix is zero: the loss has no second derivative by the outputs, as |f − y| has none.")
    return G


def _represented(
    capture: Capture,
    data: Any,
    representation: Choice,
    cotangents: Cotangents | LossCotangents,
    progress: bool | Report | None,
) -> Operator:
    """(1/N) Σ_nm (J_nᵀ u_mn)(J_nᵀ u_mn)ᵀ for the cotangents u."""

    def check(x: Inputs, y: Any) -> None:
        check_devices(capture.model, x)
        if isinstance(y, Tensor):
            check_rows(x, y)

    source = LayerSource(capture, Batches(data, check, targets=cotangents.with_targets), cotangents)
    chosen = resolve(representation)
    if isinstance(chosen, Implicit):
        source.look()
        product = FisherProduct(capture, source.batches, cotangents)
        return implicit(capture, product).on(capture.space)

    total = chosen.start(Scope(capture.space, capture.space.names, capture.tied))
    source.keep = source.batches.repeat = total.sweeps > 1
    work = source.batches.count()
    with Progress(work and work * total.sweeps, progress, cotangents.matrix, "samples") as bar:
        for _ in range(total.sweeps):
            for layers, again in source:
                (total.again if again else total.update)(layers)
                bar.add(0 if again else next(iter(layers.values())).samples)
                del layers  # before the next ones are captured
            total.end_sweep()
    blocks = total.finish(source.samples)
    dtype = reduce(torch.promote_types, (block.dtype for _, block in blocks))
    blocks = [(place, block.to(dtype)) for place, block in blocks]
    if not bool(torch.isfinite(torch.stack([block.trace() for _, block in blocks])).all()):
        raise Overflow(
            f"The {cotangents.matrix} has NaN or infinity: squares of gradients leave the range of {dtype}. Scale the "
            "inputs or the outputs, or pass model.double()."
        )
    place, only = blocks[0]
    if place.in_order and place.size == capture.space.size:
        return only.on(capture.space)
    return BlockOperator(blocks, capture.space.size).on(capture.space)


def hessian(model: nn.Module, data: Any, loss: Loss, *, params: Params = None, output: Output = None) -> Operator:
    """The Hessian of a loss with respect to the parameters, as an implicit operator.

    Args:
        model: Any module in eval mode.
        data: A loader or one batch, as for `fisher`.
        loss: (outputs, targets) → the mean loss over the batch, for example `F.cross_entropy`. It is given what
            `output` picks, in the shape that it has there, and the targets as the data yields them.
        params: Which parameters.
        output: Which tensor of the model's result.

    >>> import torch
    >>> net = nn.Linear(2, 1, bias=False)
    >>> x, y = torch.eye(2), torch.zeros(2, 1)
    >>> hessian(net, (x, y), nn.functional.mse_loss).dense()    # (2/N) Σ x xᵀ
    tensor([[1., 0.],
            [0., 1.]])
    """
    check_loss(loss, "hessian(model, data, loss)")
    capture = Capture(model, params, output, flatten=True)

    def check(x: Inputs, y: Any) -> None:
        check_devices(model, x)
        check_rows(x, y)

    batches = Batches(data, check, targets=True)
    batches.repeat = True
    for x, _ in batches:  # so that errors are raised now, not at the first product
        capture.look(x)
        capture.outputs(x)
    return implicit(capture, HessianProduct(capture, batches, loss)).on(capture.space)
