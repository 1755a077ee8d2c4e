"""The result of training in function space: coefficients, curves, predictions, and the parameters themselves."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.jacobians.call import float32_products
from torchtangent.jacobians.jacobian import Jacobian
from torchtangent.linear.points import Terms
from torchtangent.operators import Operator
from torchtangent.operators.space import Vector

_CURVES = ("train_loss", "train_accuracy", "test_loss", "test_accuracy")


@final
@dataclass(frozen=True, eq=False, repr=False)
class Fit:
    """A trained linearized network, θ = (1 + a)θ₀ + Jᵀc. Made by `SGD.run`.

    Attributes:
        c: The coefficients, shaped like the outputs: (N,) or (N, C), with a last axis if there are many targets.
        a: The change of the factor on θ₀ by weight decay; 0 without it.
        train_loss: The loss on all training samples at the end of each epoch, (epochs,) or (epochs, K).
        train_accuracy: The accuracy on them; None for "mse", which is a regression.
        test_loss: The loss on the test samples, if there were any with labels.
        test_accuracy: The accuracy on them.
        test_outputs: The final outputs on the test samples, if there were any, in the form of the targets.
        terms: Which terms the outputs have; this and the following are for the methods.
        quadratic: cᵀKc for each target.
        cross: cᵀJθ₀ for each target.
    """

    c: Float[Tensor, "N ..."]
    a: float
    train_loss: Float[Tensor, "epochs ..."]
    train_accuracy: Float[Tensor, "epochs ..."] | None
    test_loss: Float[Tensor, "epochs ..."] | None
    test_accuracy: Float[Tensor, "epochs ..."] | None
    test_outputs: Float[Tensor, "M ..."] | None
    terms: Terms
    quadratic: Float[Tensor, " K"]
    cross: Float[Tensor, " K"]

    @torch.no_grad()
    def predict(
        self, K: Tensor | np.ndarray | Operator | Any, *, f0: Any = None, J0: Any = None
    ) -> Float[Tensor, "M ..."]:
        """The outputs f₀ + Kc + a·Jθ₀ on other samples, in the form of the targets.

        Args:
            K: The kernel between these samples and the training samples, (M, N) or (M, N, C, C).
            f0: The network's outputs on these samples, if f0 was given in training.
            J0: Jθ₀ on these samples, if there was weight decay.
        """
        points = self.terms.at(K, f0, J0, self.c, suffix="")
        return self.terms.form.restore(points.outputs(self._columns(), self.a))

    def distance(self, theta0_norm: float | Tensor | None = None) -> Float[Tensor, "..."]:
        """‖θ − θ₀‖ for each target; its square is cᵀKc + 2a cᵀJθ₀ + a²‖θ₀‖².

        Args:
            theta0_norm: ‖θ₀‖ over the parameters of the kernel; needed after weight decay.
        """
        if self.a and theta0_norm is None:
            raise ValueError("After weight decay the distance depends on ‖θ₀‖: pass theta0_norm.")
        norm = theta0_norm.detach().to(self.quadratic) if isinstance(theta0_norm, Tensor) else theta0_norm or 0.0
        square = self.quadratic + 2 * self.a * self.cross + (self.a * norm) ** 2
        return self.terms.form.each(square.clamp(min=0).sqrt().to(self.c.dtype))

    def to_parameters(
        self, jacobian: Jacobian, theta0: Vector | None = None, target: int | None = None
    ) -> dict[str, Tensor]:
        """The parameters θ = (1 + a)θ₀ + Jᵀc by name, ready for `load_state_dict(…, strict=False)`.

        Args:
            jacobian: `tt.jacobian(model, x)` on the training samples, for the parameters of the kernel.
            theta0: θ₀; by default the current parameters of that model.
            target: The index of the target, if there are many.
        """
        form, outputs, target = self.terms.form, jacobian.shape[:-1], self._index(target)
        if math.prod(outputs) != form.rows:
            raise ValueError(
                f"The Jacobian has outputs {outputs}, but c has {form.rows} coefficients. Pass the Jacobian of the "
                "training samples."
            )
        params = {name: p.detach() for name, p in jacobian._capture.params.items()}
        start, _ = jacobian.space.flatten(params if theta0 is None else theta0)
        with float32_products():
            change = jacobian.T @ self._columns()[:, target].to(next(iter(params.values()))).reshape(outputs)
        self._check_change(change, target)
        return jacobian.space.split((1 + self.a) * start[:, 0].to(change) + change)

    def __repr__(self) -> str:
        form, epochs = self.terms.form, len(self.train_loss)
        curves = {name: getattr(self, name) for name in _CURVES}
        ends = ", ".join(f"{name} {float(curve[-1].mean()):.4g}" for name, curve in curves.items() if curve is not None)
        mean = "" if form.targets is None else f", the mean of {form.targets} targets"
        return f"Fit(c of shape {tuple(self.c.shape)}; after {epochs} epoch{'s' * (epochs > 1)} {ends}{mean})"

    def _index(self, target: int | None) -> int:
        """The column of a target."""
        targets = self.terms.form.targets
        if target is None and targets is not None:
            raise ValueError(f"There are {targets} targets. Say which one's parameters, for example target=0.")
        if target is not None and not 0 <= target < (targets or 1):
            raise ValueError(f"There is no target={target}; the last one is target={(targets or 1) - 1}.")
        return target or 0

    def _check_change(self, change: Float[Tensor, " P"], target: int) -> None:
        """Refuse a Jacobian whose kernel is not K: ‖Jᵀc‖² has to be cᵀKc."""
        found, expected = float(change.double().square().sum()), float(self.quadratic[target])
        precision = max(torch.finfo(dtype).eps for dtype in (change.dtype, self.c.dtype))
        if not abs(found - expected) <= 10 * precision**0.5 * max(found, expected):
            raise ValueError(
                f"K was not the kernel of this Jacobian: ‖Jᵀc‖² is {found:.4g}, but cᵀKc was {expected:.4g}. Pass that "
                "of the training samples in their order, with the same params= and at the same weights. If K was an "
                "approximation, no parameters have its outputs; θ₀ + J.T @ fit.c comes close."
            )

    def _columns(self) -> Float[Tensor, "rows K"]:
        return self.c.reshape(-1, len(self.quadratic))
