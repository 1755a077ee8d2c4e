"""Path norms: sums over all paths through a network, from one forward pass with the weights |w|^p."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from torchtangent.jacobians.call import Network, undisturbed

_DRAWS = 4  # random cotangents with which to look for negative coefficients
_ROUNDING = 1e-12  # of the largest number: how far below zero a convolution by transforms may be


def path_norms(network: Network, x: Tensor) -> dict[str, float]:
    """(Σ over paths of ∏ |w|^p)^{1/p} for p = 1 and 2, in float64; x is a single sample.

    Networks that subtract are refused.
    """
    wide, ones = network.of(copy.deepcopy(network.model).double()), torch.ones_like(x).double()
    sums = {p: float(_run(wide, ones, p).sum()) for p in (1, 2)}
    _check_signs(wide, ones)
    return {f"path_{p}": total ** (1 / p) for p, total in sums.items()}


def _run(network: Network, x: Tensor, p: int) -> Tensor:
    """The outputs with weights |w|^p."""
    with undisturbed():
        return network(x, {id(w): w.detach().abs() ** p for w in network.model.parameters()})


def _check_signs(network: Network, x: Tensor) -> None:
    """Refuse a network with negative coefficients between its layers, for which a run at |w|^p is no sum over paths."""
    for seed in range(_DRAWS):
        signs = _Signs(torch.Generator(x.device).manual_seed(seed))
        start = network.model.register_forward_pre_hook(lambda _, args: (args[0].requires_grad_().clone(), *args[1:]))
        with start, signs:
            f = _run(network, x, 1)
        if f.requires_grad:
            torch.autograd.backward(f, torch.ones_like(f))
        if signs.negative:
            raise ValueError(
                f"The path norms are not defined for a network that subtracts: {signs.negative[0]}, and with weights "
                "|w| paths would cancel instead of adding up. Where a layer comes right before or after, let its "
                "weights have the sign."
            )


class _Signs(TorchFunctionMode):
    """Notes every operation whose result, or whose gradient in the backward pass, is negative.

    Hooks replace the cotangent of each result by a random one, with entries of very different sizes, so that a negative
    coefficient shows in the gradient of its operand even among positive ones.
    """

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.generator = generator
        self.negative: list[str] = []

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        for t in found if isinstance(found, tuple | list) else (found,):
            if isinstance(t, Tensor) and t.requires_grad:
                self._watch(t, f"'{getattr(func, '__name__', func)}'")
        return found

    def _watch(self, t: Tensor, name: str) -> None:
        def look(slope: Tensor) -> Tensor:
            if _is_negative(slope):
                self.negative.append(f"what {name} gives is subtracted, or weighed below zero")
            return 1e6 ** torch.rand(slope.shape, generator=self.generator, dtype=slope.dtype, device=slope.device)

        if _is_negative(t.detach()):
            self.negative.append(f"{name} gives negative values")
        t.register_hook(look)


def _is_negative(t: Tensor) -> bool:
    return bool(t.min() < -_ROUNDING * t.abs().max()) if t.numel() else False
