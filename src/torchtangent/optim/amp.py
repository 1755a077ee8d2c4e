"""What a `torch.amp.GradScaler` did to the loss before it was differentiated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor
from torch.optim import Optimizer

from torchtangent.jacobians.inputs import wide


class Scales(NamedTuple):
    """By what gradients (None: by nothing) and recorded cotangents are too large, and whether overflow is expected."""

    gradients: Tensor | None = None
    cotangents: float | Tensor = 1.0
    searching: bool = False

    def readable(self, grad: Tensor) -> Tensor:
        """A gradient without the scale, dense, never below float32."""
        grad = wide(grad.to_dense() if grad.is_sparse else grad)
        return grad if self.gradients is None else grad / self.gradients.to(grad.device)


@contextmanager
def scales(optimizer: Optimizer, scaler: Any) -> Iterator[Scales]:
    """The scales of this step, from what `scaler.step(optimizer)` wrote on the optimizer, or from a known scaler."""
    try:
        yield _scales(optimizer, scaler)
    except BaseException:
        # The scaler does not come to clean up after an error, and would multiply the next scale by this one.
        for name in ("grad_scale", "found_inf"):
            optimizer.__dict__.pop(name, None)
        raise


def _scales(optimizer: Optimizer, scaler: Any) -> Scales:
    """`scaler.step` hands its scale over as `grad_scale`: None if `scaler.unscale_` has already divided by it."""
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
