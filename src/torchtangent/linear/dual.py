"""SGD of a linearized network in function space: the same trajectory, from its kernel alone.

The gradients of f₀ + J(θ − θ₀) are combinations of the rows of J, so minibatch SGD never leaves θ = (1 + a)θ₀ + Jᵀc,
and the outputs are f = f₀ + Kc + a·Jθ₀ with the tangent kernel K = JJᵀ. A step needs rows of K and no network, and any
number of targets are trained at once, as columns of c.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from torchtangent import spectrum
from torchtangent.kernel.matrix import Matrix, as_matrix
from torchtangent.kernel.progress import Report
from torchtangent.linear.batches import Schedule, check_schedule, divided, rates, shuffled
from torchtangent.linear.fit import Fit, Form
from torchtangent.linear.losses import check_labels, check_varies, find_loss
from torchtangent.linear.trajectory import Rule, Trajectory
from torchtangent.operators import Operator

_FEW = 64  # rows of the kernel that are looked at before


class SGD:
    """torch.optim.SGD (dampening 0) on a linearized network, for one target or many, in function space.

    It takes the steps that SGD in parameter space takes with the same batches. An epoch costs 2N² multiplications for
    each target, half of that without momentum (N counts samples times outputs).

    Args:
        K: The tangent kernel of the training samples, (N, N) for one output or (N, N, C, C); a tensor, an array on
            disk, an operator or features. A matrix with N·C rows will do for C outputs. The rows of an operator are
            computed anew in every epoch: where there is room, make it a tensor.
        y: For one output (N,), or (N, K) for K targets; for C outputs (N, C) or (N, C, K); classes are (N,) or (N, K).
        f0: The network's outputs at θ₀, (N,) or (N, C); without them they count as zero, which is the unbiased form.
        J0: Jθ₀, that is `tt.jacobian(model, x) @ θ₀`, shaped like f0. Weight decay needs it.
        loss: "bce" (labels 0 and 1), "cross-entropy" (classes), "mse", or "hinge" (labels -1 and 1): torch's, with the
            mean over samples and outputs.
        lr: Learning rate.
        momentum: As in torch.optim.SGD.
        nesterov: As there.
        weight_decay: As there, of the parameters themselves and not of their distance from θ₀.
        schedule: Of the learning rate: "linear" (to zero over the whole run), "cosine", "constant", or a function of
            the step, counted from 0, that gives a factor on lr, as `torch.optim.lr_scheduler.LambdaLR` takes it.
        device: Where to compute; by default where K is.

    >>> K = torch.tensor([[2.0, 1.0], [1.0, 2.0]])
    >>> fit = SGD(K, torch.tensor([1.0, -1.0]), loss="mse", lr=0.1).run(epochs=50, batch_size=2)
    >>> fit.predict(K)
    tensor([ 0.9948, -0.9948])
    >>> fit.train_loss[-1], fit.distance()
    (tensor(2.6561e-05), tensor(1.4069))
    """

    def __init__(
        self,
        K: Tensor | np.ndarray | Operator | Any,
        y: Any,
        *,
        f0: Tensor | None = None,
        J0: Tensor | None = None,
        loss: str = "bce",
        lr: float,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        schedule: Schedule = "constant",
        device: torch.device | str | None = None,
    ) -> None:
        for name, value in (("lr", lr), ("momentum", momentum), ("weight_decay", weight_decay)):
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} must be a finite number, zero or more, got {value}.")
        if nesterov and not momentum:
            raise ValueError("nesterov=True needs momentum, for example momentum=0.9.")
        if weight_decay and J0 is None:
            raise ValueError(
                "weight_decay draws θ to zero, not to θ₀, so it needs J0 = Jθ₀. Pass "
                "J0=tt.jacobian(model, x) @ dict(model.named_parameters())."
            )
        check_schedule(schedule)
        self._loss, self._lr, self._schedule = find_loss(loss), lr, schedule
        self._rule = Rule(momentum, nesterov, weight_decay)
        self._K, self._samples, outputs = _training_kernel(K, y, device)
        like = torch.empty(0, dtype=self._K.dtype, device=self._K.device)
        self._y, single = check_labels(y, self._loss, self._samples, outputs, like)
        check_varies(self._y, single)
        self._form = Form(outputs, single, f0 is not None, weight_decay > 0, like)
        self._f0 = self._form.column("f0", f0, self._samples)
        self._J0 = self._form.column("J0", J0, self._samples)

    @torch.no_grad()
    def run(
        self,
        *,
        epochs: int = 1,
        batch_size: int = 128,
        K_test: Tensor | np.ndarray | Operator | Any = None,
        y_test: Any = None,
        f0_test: Tensor | None = None,
        J0_test: Tensor | None = None,
        seed: int = 0,
        drop_last: bool = False,
        batches: Iterable[Tensor] | None = None,
        progress: Report | None = None,
    ) -> Fit:
        """Train from θ₀.

        Args:
            epochs: Passes over the samples.
            batch_size: Samples of a step.
            K_test: The kernel of M test samples with the training samples, (M, N) or (M, N, C, C).
            y_test: Their labels, in the form of y.
            f0_test: The network's outputs on them, if f0 was given.
            J0_test: Jθ₀ on them, with weight decay.
            seed: Of the order of the samples, drawn anew for each epoch; it is the same on every device.
            drop_last: Leave out the last batch of an epoch where it is smaller.
            batches: The samples of each step, instead of batch_size, seed and drop_last; `epochs` then says into how
                many parts of as many steps they are divided.
            progress: A function of (epochs done, epochs in all).

        Raises:
            FloatingPointError: When a loss is not finite at the end of an epoch.
        """
        if epochs < 1:
            raise ValueError(f"epochs must be at least 1, got {epochs}.")
        test = self._test(K_test, y_test, f0_test, J0_test)
        if batches is None:
            steps, plan = shuffled(self._samples, epochs, batch_size, seed, drop_last)
        else:
            steps, plan = divided(batches, epochs, self._samples)
        lr = rates(self._lr, self._schedule, steps)
        terms = 1 if self._loss.classes else self._form.outputs
        path = Trajectory(self._K, self._rule, self._f0, self._J0, self._form.outputs, self._y.shape[-1])
        curves, done = [], 0
        for epoch, order in enumerate(plan):
            path.follow(order, lr[done : done + len(order)], terms, self._gradient)
            done += len(order)
            curves.append((*self._measured(path.outputs(), self._y), *(test(path.c, path.a) if test else (None, None))))
            self._check_finite(curves[-1][0], epoch, done)
            if progress:
                progress(epoch + 1, epochs)
        train_loss, train_accuracy, test_loss, test_accuracy = map(self._form.curve, zip(*curves, strict=True))
        assert train_loss is not None
        return Fit(
            c=self._form.restore(path.c),
            a=path.a,
            train_loss=train_loss,
            train_accuracy=train_accuracy,
            test_loss=test_loss,
            test_accuracy=test_accuracy,
            form=self._form,
            quadratic=(path.c * path.image).sum(0, dtype=torch.float64),
            cross=(path.c * self._J0).sum(0, dtype=torch.float64),
        )

    def _gradient(self, f: Float[Tensor, "rows K"], samples: Int[Tensor, " B"]) -> Float[Tensor, "rows K"]:
        return self._loss.gradient(self._form.by_sample(f), self._y[samples]).view_as(f)

    def _measured(self, f: Float[Tensor, "rows K"], y: Shaped[Tensor, "M ..."]) -> tuple[Tensor, Tensor | None]:
        """Loss and accuracy of each target."""
        f = self._form.by_sample(f)
        return self._loss.mean(f, y), self._loss.accuracy(f, y)

    def _test(self, K: Any, y: Any, f0: Tensor | None, J0: Tensor | None) -> Callable[..., Any] | None:
        """(c, a) ↦ loss and accuracy on test samples, if there are any."""
        if K is None and y is None and f0 is None and J0 is None:
            return None
        if K is None or y is None:
            raise ValueError(
                "Test curves need both K_test and y_test. To predict, call predict() of what run() returns."
            )
        outputs, samples = self._form.elsewhere(K, f0, J0, len(self._f0), "_test")
        y, single = check_labels(y, self._loss, samples, self._form.outputs, self._form.like, "y_test")
        if single != self._form.single or y.shape[-1] != self._y.shape[-1]:
            raise ValueError(f"y has {self._y.shape[-1]} targets, y_test {y.shape[-1]}: they must be the same ones.")
        return lambda c, a: self._measured(outputs(c, a), y)

    def _check_finite(self, loss: Float[Tensor, " K"], epoch: int, step: int) -> None:
        """Refuse to go on with losses that are not finite."""
        bad = (~torch.isfinite(loss)).nonzero()[:, 0].tolist()
        if not bad:
            return
        if not bool(torch.isfinite(self._K @ torch.ones_like(self._f0)).all()):
            raise ValueError("K has NaN or infinity. Check the kernel before training with it.")
        advice = f"Lower lr, which is {self._lr:g}"
        if self._loss.name == "mse" and self._K.resident:
            bound = len(self._f0) / float(spectrum.top(self._K, 1, tol=1e-2).values[0])
            advice += f" (with full batches and no momentum it must be below {bound:.2g})"
        raise FloatingPointError(
            f"SGD diverged: at the end of epoch {epoch + 1}, after step {step}, the loss of {len(bad)} of {len(loss)} "
            f"targets (first: {bad[0]}) is not finite. {advice}."
        )


def _training_kernel(K: Any, y: Any, device: torch.device | str | None) -> tuple[Matrix, int, int]:
    """The kernel as a matrix, its samples and its outputs, which for a matrix follow from the number of labels."""
    if K.shape[0] != K.shape[1]:
        raise ValueError(f"K must be the kernel of the training samples with themselves, got shape {tuple(K.shape)}.")
    source = as_matrix(K, device)
    rows, samples = source.shape[0], K.shape[0] if len(K.shape) == 4 else len(y)
    if samples == 0 or rows % samples:
        raise ValueError(f"K of shape {tuple(K.shape)} and {len(y)} labels do not fit: a sample has one label.")
    few = torch.arange(min(rows, _FEW), device=source.device)
    block = source.rows(few)[:, few]
    if bool((block - block.T).norm() > 10 * torch.finfo(source.dtype).eps ** 0.5 * block.norm()):
        raise ValueError(
            "K is not symmetric, so it is not the kernel of the training samples with themselves. That of test samples "
            "goes into run(K_test=...)."
        )
    return source, samples, rows // samples
