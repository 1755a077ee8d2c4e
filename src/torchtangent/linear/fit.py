"""What comes out of training in function space: coefficients, curves, predictions, and the parameters themselves."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from torchtangent.jacobians.jacobian import Jacobian
from torchtangent.kernel.matrix import as_matrix
from torchtangent.operators import Operator
from torchtangent.operators.space import Vector


@final
@dataclass(frozen=True, eq=False)
class Form:
    """What outputs consist of: f₀ + Kc + a·Jθ₀, with C rows for each sample and a column for each target.

    Attributes:
        outputs: C.
        single: Whether there is one target, without an axis of its own.
        biased: Whether there is an f₀.
        decayed: Whether a may differ from zero.
        like: An empty tensor of the dtype and on the device of the training kernel.
    """

    outputs: int
    single: bool
    biased: bool
    decayed: bool
    like: Tensor

    def by_sample(self, f: Float[Tensor, "rows K"]) -> Float[Tensor, "N C K"]:
        """Rows as samples and their outputs."""
        return f.view(-1, self.outputs, f.shape[-1])

    def restore(self, f: Float[Tensor, "rows K"]) -> Float[Tensor, "N ..."]:
        """In the form of the targets."""
        shaped = f if self.outputs == 1 else self.by_sample(f)
        return shaped[..., 0] if self.single else shaped

    def curve(self, values: tuple[Tensor | None, ...]) -> Float[Tensor, "epochs ..."] | None:
        """What was measured after each epoch, if it was."""
        found = [v[0] if self.single else v for v in values if v is not None]
        return torch.stack(found) if found else None

    def column(self, name: str, values: Tensor | None, samples: int) -> Float[Tensor, "rows 1"]:
        """f₀ or Jθ₀ as a column; zeros if there is none."""
        if values is None:
            return self.like.new_zeros(samples * self.outputs, 1)
        if values.numel() != samples * self.outputs or len(values) != samples:
            raise ValueError(
                f"{name} must have a value for each sample and output, ({samples}, {self.outputs}); got shape "
                f"{tuple(values.shape)}."
            )
        return values.detach().to(self.like).reshape(-1, 1)

    def elsewhere(
        self, K: Any, f0: Tensor | None, J0: Tensor | None, rows: int, suffix: str = ""
    ) -> tuple[Callable[[Tensor, float], Float[Tensor, "rows K"]], int]:
        """(c, a) ↦ the outputs for other samples, and how many these are."""
        source = as_matrix(K, self.like.device)
        if source.shape[1] != rows or source.shape[0] % self.outputs:
            raise ValueError(
                f"K{suffix} must be the kernel of other samples with the training samples, with {rows} columns "
                f"(samples × outputs) and {self.outputs} rows for each sample; got shape {tuple(K.shape)}."
            )
        if self.biased and f0 is None:
            raise ValueError(
                f"Training had an f0, so f0{suffix}, the network's outputs on the other samples, is needed."
            )
        if f0 is not None and not self.biased:
            raise ValueError(f"f0{suffix} is given, but training had no f0: its outputs are J(θ − θ₀) alone.")
        if self.decayed and J0 is None:
            raise ValueError(f"Training had weight decay, so J0{suffix}, Jθ₀ on the other samples, is needed.")
        samples = source.shape[0] // self.outputs
        offset, slope = self.column(f"f0{suffix}", f0, samples), self.column(f"J0{suffix}", J0, samples)
        return lambda c, a: (source @ c.to(source.dtype)).to(self.like) + (offset + a * slope), samples


@final
@dataclass(frozen=True, eq=False)
class Fit:
    """A trained linearized network, θ = (1 + a)θ₀ + Jᵀc. Made by `SGD.run`.

    Attributes:
        c: Its coefficients, in the form of the outputs: (N,) or (N, C), with a last axis for many targets.
        a: What weight decay did to θ₀; 0 without it.
        train_loss: On all training samples at the end of each epoch, (epochs,) or (epochs, K).
        train_accuracy: Likewise; None for "mse", which is a regression.
        test_loss: Likewise, if there were test samples.
        test_accuracy: Likewise.
        form: What outputs consist of; it and the following are for the methods.
        quadratic: cᵀKc of each target.
        cross: cᵀJθ₀.
    """

    c: Float[Tensor, "N ..."]
    a: float
    train_loss: Float[Tensor, "epochs ..."]
    train_accuracy: Float[Tensor, "epochs ..."] | None
    test_loss: Float[Tensor, "epochs ..."] | None
    test_accuracy: Float[Tensor, "epochs ..."] | None
    form: Form = field(repr=False)
    quadratic: Float[Tensor, " K"] = field(repr=False)
    cross: Float[Tensor, " K"] = field(repr=False)

    @torch.no_grad()
    def predict(
        self, K: Tensor | np.ndarray | Operator | Any, *, f0: Tensor | None = None, J0: Tensor | None = None
    ) -> Float[Tensor, "M ..."]:
        """The outputs f₀ + Kc + a·Jθ₀ for other samples, in the form of the targets.

        Args:
            K: Their kernel with the training samples, (M, N) or (M, N, C, C).
            f0: The network's outputs on them, if f0 was given in training.
            J0: Jθ₀ on them, with weight decay.
        """
        c = self._columns()
        outputs, _ = self.form.elsewhere(K, f0, J0, len(c))
        return self.form.restore(outputs(c, self.a))

    def distance(self, theta0_norm: float | None = None) -> Float[Tensor, "..."]:
        """‖θ − θ₀‖ for each target; its square is cᵀKc + 2a cᵀJθ₀ + a²‖θ₀‖².

        Args:
            theta0_norm: ‖θ₀‖ over the parameters of the kernel, which is needed after weight decay.
        """
        if self.a and theta0_norm is None:
            raise ValueError("After weight decay the distance depends on ‖θ₀‖: pass theta0_norm.")
        square = self.quadratic + 2 * self.a * self.cross + (self.a * (theta0_norm or 0.0)) ** 2
        distance = square.clamp(min=0).sqrt().to(self.c.dtype)
        return distance[0] if self.form.single else distance

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
        if target is None and not self.form.single:
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
