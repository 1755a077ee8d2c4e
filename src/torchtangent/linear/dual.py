"""SGD of a linearized network in function space: the same trajectory, from its kernel alone.

The gradients of f₀ + J(θ − θ₀) are combinations of the rows of J, so minibatch SGD always has θ = (1 + a)θ₀ + Jᵀc,
and the outputs are f = f₀ + Kc + a·Jθ₀ with the tangent kernel K = JJᵀ. A step needs rows of K but not the network, and
any number of targets can be trained at once, as columns of c.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from torchtangent import spectrum
from torchtangent.kernel.matrix import as_square
from torchtangent.linear.batches import Schedule, check_count, check_schedule, divided, rates, shuffled
from torchtangent.linear.fit import Fit
from torchtangent.linear.labels import check_varies, read_labels
from torchtangent.linear.losses import find_loss
from torchtangent.linear.points import Points, Terms, at_start
from torchtangent.linear.trajectory import Trajectory, UpdateRule
from torchtangent.operators import Operator
from torchtangent.operators.autocast import without_autocast
from torchtangent.progress import Progress, Report
from torchtangent.spectrum.checks import check_some_rows

__all__ = ["SGD", "Fit"]

_Measured = tuple[Float[Tensor, " K"], Float[Tensor, " K"] | None]  # loss and accuracy of each target


class SGD:
    """torch.optim.SGD (dampening 0) on a linearized network, for one target or many, in function space.

    Given the same batches, it takes the same steps as SGD in parameter space. An epoch costs 2N² multiplications per
    target, half of that without momentum (here N counts samples times outputs).

    Args:
        K: The tangent kernel of the training samples, (N, N) for one output or (N, N, C, C) for C: a tensor, an array
            on disk, an operator or features. For C outputs it may also be a matrix with N·C rows. The rows of an
            operator are recomputed in every epoch: if there is memory for it, pass a tensor.
        y: The targets. For one output (N,), or (N, K) for K targets; for C outputs (N, C) or (N, C, K); classes are
            (N,) or (N, K). Classes (N, T) of T positions would be read as T targets: for a network with outputs
            (N, T, C), take one position at a time.
        f0: The network's outputs at θ₀, (N,) or (N, C), with a last axis (K,) if they differ between targets. Zero by
            default: the linearization without its constant term.
        J0: Jθ₀, that is `tt.jacobian(model, x) @ θ₀`, shaped like f0. Needed with weight decay.
        loss: "bce" (labels 0 and 1), "cross-entropy" (classes), "mse", or "hinge" (labels -1 and 1), as in torch, with
            the mean over samples and outputs.
        lr: The learning rate.
        momentum: As in torch.optim.SGD.
        nesterov: As in torch.optim.SGD.
        weight_decay: As in torch.optim.SGD: it pulls θ towards zero, not towards θ₀.
        schedule: The schedule of the learning rate: "constant", "linear" (to zero over the whole run), "cosine", or a
            function from the step, counted from 0, to a factor on lr, as in `torch.optim.lr_scheduler.LambdaLR`.
        device: The device to compute on; by default that of K.

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
        f0: Any = None,
        J0: Any = None,
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
        self._rule = UpdateRule(momentum, nesterov, weight_decay)
        self._K = as_square(K, device)
        check_some_rows(self._K)
        self._y, self._form = read_labels(y, self._loss, K.shape, self._K)
        if self._loss.classes and np.ndim(f0) == 3 and self._form.targets == np.shape(f0)[1]:
            raise ValueError(
                f"f0 has outputs for each of {np.shape(f0)[1]} positions, and the columns of y would be as many "
                "targets among the classes of all positions together. Take one position at a time."
            )
        if self._loss.correct:
            check_varies(self._y, self._form)
        self._terms = Terms(self._form, biased=f0 is not None, decayed=weight_decay > 0)
        self._f0 = at_start(f0, self._form, self._K, "f0")
        self._J0 = at_start(J0, self._form, self._K, "J0")

    def __repr__(self) -> str:
        form = self._form
        return f"SGD(loss={self._loss.name!r}, lr={self._lr:g}, {form.samples} samples, {form.outputs} outputs)"

    @without_autocast
    @torch.no_grad()
    def run(
        self,
        *,
        epochs: int = 1,
        batch_size: int = 128,
        K_test: Tensor | np.ndarray | Operator | Any = None,
        y_test: Any = None,
        f0_test: Any = None,
        J0_test: Any = None,
        seed: int = 0,
        drop_last: bool = False,
        batches: Iterable[Tensor] | None = None,
        progress: bool | Report | None = None,
    ) -> Fit:
        """Train from θ₀.

        Args:
            epochs: The number of passes over the samples.
            batch_size: The number of samples per step.
            K_test: The kernel between M test samples and the training samples, (M, N) or (M, N, C, C).
            y_test: The labels of the test samples, in the form of y, for test curves.
            f0_test: The network's outputs on the test samples, if f0 was given.
            J0_test: Jθ₀ on the test samples, if there is weight decay.
            seed: The seed of the order of samples, which is drawn anew for each epoch and is the same on every device.
            drop_last: Whether to leave out the last batch of an epoch if it is smaller than the others.
            batches: The samples of each step, instead of batch_size, seed and drop_last. They are divided into
                `epochs` parts with equally many steps.
            progress: Whether to show a line with rate and end time: True, False, None (default: on terminals only), or
                a function of (epochs done, epochs in total).

        Raises:
            FloatingPointError: If a loss is not finite at the end of an epoch.
        """
        check_count(epochs, "epochs")
        test, labels = self._test(K_test, y_test, f0_test, J0_test)
        if batches is None:
            steps, drawn = shuffled(self._form.samples, epochs, batch_size, seed, drop_last)
        else:
            steps, drawn = divided(batches, epochs, self._form.samples)
        lr = rates(self._lr, self._schedule, steps)
        losses = 1 if self._loss.classes else self._form.outputs  # terms of the loss per sample
        trajectory = Trajectory(self._K, self._rule, self._f0, self._J0, self._form.outputs, self._y.shape[-1])
        trained, tested, done = list[_Measured](), list[_Measured](), 0
        with Progress(epochs, progress, "training", "epochs") as bar:
            for epoch, order in enumerate(drawn):
                trajectory.follow(order, lr[done : done + len(order)], losses, self._gradient)
                done += len(order)
                trained.append(self._measured(trajectory.outputs(), self._y))
                self._check_finite(trained[-1][0], epoch, done)
                if test and labels is not None:
                    tested.append(self._measured(test.outputs(trajectory.c, trajectory.a), labels))
                bar.add(1)
        return Fit(
            c=self._form.restore(trajectory.c),
            a=trajectory.a,
            train_loss=self._form.each(torch.stack([loss for loss, _ in trained])),
            train_accuracy=self._curve(accuracy for _, accuracy in trained),
            test_loss=self._curve(loss for loss, _ in tested),
            test_accuracy=self._curve(accuracy for _, accuracy in tested),
            test_outputs=self._form.restore(test.outputs(trajectory.c, trajectory.a)) if test else None,
            terms=self._terms,
            quadratic=(trajectory.c * trajectory.image).sum(0, dtype=torch.float64),
            cross=(trajectory.c * self._J0).sum(0, dtype=torch.float64),
        )

    def _gradient(self, f: Float[Tensor, "rows K"], samples: Int[Tensor, " B"]) -> Float[Tensor, "rows K"]:
        return self._loss.gradient(self._form.by_sample(f), self._y[samples]).reshape(f.shape)

    def _measured(self, f: Float[Tensor, "rows K"], y: Shaped[Tensor, "M ..."]) -> _Measured:
        """Loss and accuracy of each target."""
        f = self._form.by_sample(f)
        return self._loss.mean(f, y), self._loss.accuracy(f, y)

    def _curve(self, measured: Iterable[Float[Tensor, " K"] | None]) -> Float[Tensor, "epochs ..."] | None:
        """Measurements after each epoch as one tensor; None if there are none."""
        found = [values for values in measured if values is not None]
        return self._form.each(torch.stack(found)) if found else None

    def _test(self, K: Any, y: Any, f0: Any, J0: Any) -> tuple[Points | None, Shaped[Tensor, "M ..."] | None]:
        """The test samples and their labels; None for what was not given."""
        if K is None:
            if not (y is None and f0 is None and J0 is None):
                raise ValueError("y_test, f0_test and J0_test belong to K_test, which is missing.")
            return None, None
        points, C = self._terms.at(K, f0, J0, self._f0), self._form.outputs
        if y is None:
            return points, None
        samples = points.K.shape[0] // C
        labels, _ = read_labels(y, self._loss, (samples, samples, C, C), self._f0, "y_test")
        if labels.shape[-1] != self._y.shape[-1]:
            raise ValueError(
                f"y has {self._y.shape[-1]} targets, y_test {labels.shape[-1]}: they must be the same ones."
            )
        return points, labels

    def _check_finite(self, loss: Float[Tensor, " K"], epoch: int, step: int) -> None:
        """Stop if the losses of some targets are not finite."""
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


def __dir__() -> list[str]:
    """The public names, without what this module imports."""
    return __all__
