"""The scale by which a `torch.amp.GradScaler` multiplied the loss."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor
from torch.optim import Optimizer

from torchtangent.jacobians.inputs import wide


class Scales(NamedTuple):
    """The scales of one step.

    Attributes:
        gradients: The factor by which gradients are too large; None if they are not.
        cotangents: The factor by which recorded cotangents are too large.
        searching: Whether a GradScaler is at work, so that an overflow now and then is normal.
    """

    gradients: Tensor | None = None
    cotangents: float | Tensor = 1.0
    searching: bool = False

    def readable(self, grad: Tensor) -> Tensor:
        """A gradient without the scale, dense, in float32 or wider."""
        grad = wide(grad.to_dense() if grad.is_sparse else grad)
        return grad if self.gradients is None else grad / self.gradients.to(grad.device)


@contextmanager
def scales(optimizer: Optimizer, scaler: Any) -> Iterator[Scales]:
    """The scales of this step, from what `scaler.step(optimizer)` set on the optimizer, or from the given scaler."""
    try:
        yield _scales(optimizer, scaler)
    except BaseException:
        # After an error the scaler does not clean up, and would multiply the next scale by this one.
        for name in ("grad_scale", "found_inf"):
            optimizer.__dict__.pop(name, None)
        raise


def _scales(optimizer: Optimizer, scaler: Any) -> Scales:
    """`scaler.step` passes its scale as `grad_scale`, which is None if `scaler.unscale_` has divided by it already."""
    called = "found_inf" in optimizer.__dict__
    scale = optimizer.__dict__.get("grad_scale")
    if called and scale is not None:
        return Scales(scale, scale, searching=True)
    if scaler is not None:
        return Scales(None, float(scaler.get_scale()), searching=scaler.is_enabled())
    if called:
        raise RuntimeError(
            "scaler.unscale_(opt) was called, so the scale of what the layers recorded is not known here. Tell the "
            "optimizer: opt = EKFAC(model, ..., scaler=scaler)."
        )
    return Scales()
