"""What comes out of training in function space: coefficients, curves, predictions, and the parameters themselves."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.jacobians.jacobian import Jacobian
from torchtangent.linear.points import Terms
from torchtangent.operators import Operator
from torchtangent.operators.space import Vector


@final
@dataclass(frozen=True, eq=False)
class Fit:
    """A trained linearized network, θ = (1 + a)θ₀ + Jᵀc. Made by `SGD.run`.

    Attributes:
        c: Its coefficients, in the form of the outputs: (N,) or (N, C), with a last axis for many targets.
        a: What weight decay did to θ₀; 0 without it.
        train_loss: On all training samples at the end of each epoch, (epochs,) or (epochs, K).
        train_accuracy: Likewise; None for "mse", which is a regression.
        test_loss: Likewise, if there were test samples with labels.
        test_accuracy: Likewise.
        test_outputs: Of the test samples in the end, if there were any, in the form of the targets.
        terms: What outputs consist of; it and the following are for the methods.
        quadratic: cᵀKc of each target.
        cross: cᵀJθ₀.
    """

    c: Float[Tensor, "N ..."]
    a: float
    train_loss: Float[Tensor, "epochs ..."]
    train_accuracy: Float[Tensor, "epochs ..."] | None
    test_loss: Float[Tensor, "epochs ..."] | None
    test_accuracy: Float[Tensor, "epochs ..."] | None
    test_outputs: Float[Tensor, "M ..."] | None = field(repr=False)
    terms: Terms = field(repr=False)
    quadratic: Float[Tensor, " K"] = field(repr=False)
    cross: Float[Tensor, " K"] = field(repr=False)

    @torch.no_grad()
    def predict(
        self, K: Tensor | np.ndarray | Operator | Any, *, f0: Any = None, J0: Any = None
    ) -> Float[Tensor, "M ..."]:
        """The outputs f₀ + Kc + a·Jθ₀ for other samples, in the form of the targets.

        Args:
            K: Their kernel with the training samples, (M, N) or (M, N, C, C).
            f0: The network's outputs on them, if f0 was given in training.
            J0: Jθ₀ on them, with weight decay.
        """
        points = self.terms.at(K, f0, J0, self.c, suffix="")
        return self.terms.form.restore(points.outputs(self._columns(), self.a))

    def distance(self, theta0_norm: float | None = None) -> Float[Tensor, "..."]:
        """‖θ − θ₀‖ for each target; its square is cᵀKc + 2a cᵀJθ₀ + a²‖θ₀‖².

        Args:
            theta0_norm: ‖θ₀‖ over the parameters of the kernel, which is needed after weight decay.
        """
        if self.a and theta0_norm is None:
            raise ValueError("After weight decay the distance depends on ‖θ₀‖: pass theta0_norm.")
        square = self.quadratic + 2 * self.a * self.cross + (self.a * (theta0_norm or 0.0)) ** 2
        return self.terms.form.each(square.clamp(min=0).sqrt().to(self.c.dtype))

    def to_parameters(
        self, jacobian: Jacobian, theta0: Vector | None = None, target: int | None = None
    ) -> dict[str, Tensor]:
        """The parameters θ = (1 + a)θ₀ + Jᵀc by name, as `load_state_dict(…, strict=False)` takes them.

        Args:
            jacobian: `tt.jacobian(model, x)` of the training samples, for the parameters of the kernel.
            theta0: θ₀; by default the present parameters of that model.
            target: Which one, if there are many.
        """
        c = self._columns()
        if target is None and self.terms.form.targets is not None:
            raise ValueError(f"There are {c.shape[1]} targets. Say which one's parameters, for example target=0.")
        outputs = jacobian.shape[:-1]
        if math.prod(outputs) != len(c):
            raise ValueError(
                f"The Jacobian has outputs {outputs}, but c has {len(c)} coefficients. Pass the Jacobian of the "
                "training samples."
            )
        params = {name: p.detach() for name, p in jacobian._capture.params.items()}
        start, _ = jacobian.space.flatten(params if theta0 is None else theta0)
        change = jacobian.T @ c[:, target or 0].to(next(iter(params.values()))).reshape(outputs)
        return jacobian.space.split((1 + self.a) * start[:, 0].to(change) + change)

    def _columns(self) -> Float[Tensor, "rows K"]:
        return self.c.reshape(-1, len(self.quadratic))
