"""The knob between lazy and rich training: f₀ + α(f − f₀)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves

from torchtangent.jacobians.call import eagerly
from torchtangent.jacobians.inputs import Output, tensor_of
from torchtangent.jacobians.modes import is_random, unwrapped
from torchtangent.linear.frozen import Frozen, check_reached, duplicate
from torchtangent.linear.linearize import Linearized


def lazy(model: nn.Module, alpha: float, bias: bool = True, *, output: Output = None) -> Lazy:
    """The network scaled around its current function, f₀ + α(f − f₀): the larger α, the less its weights have to move.

    With the learning rate `learning_rate(eta)` = η/α², the first step in function space does not depend on α, while
    the weights move by O(1/α); as α → ∞, training follows the linearized network (Chizat, Oyallon and Bach, *On lazy
    training in differentiable programming*, 2019). The model itself is trained; f₀ is a frozen copy of it.

    Because of the difference f − f₀, float32 loses as many digits as α has.

    Args:
        model: Any module that returns the same output when it is called twice. Whenever it is called, BatchNorm has to
            be in eval mode, and dropout off.
        alpha: A positive number; 1 is the network itself.
        bias: Whether to add f₀; without it the function is α(f − f₀), which is zero at the start.
        output: Which tensor of the model's result to use: a callable, a key or attribute name, or None for the result
            itself or its `logits`.

    >>> import torch
    >>> from torch import nn
    >>> model, x = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)), torch.randn(5, 2)
    >>> slow = lazy(model, alpha=100.0)
    >>> torch.equal(slow(x), model(x))
    True
    >>> optimizer = torch.optim.SGD(slow.parameters(), lr=slow.learning_rate(0.1))
    >>> [name for name, _ in slow.named_parameters()]
    ['0.weight', '0.bias', '2.weight', '2.bias']
    """
    if not isinstance(alpha, Real) or not 0 < alpha < math.inf:
        raise ValueError(f"alpha should be a positive, finite number, got {alpha!r}.")
    model = unwrapped(model)
    if isinstance(model, Linearized):
        raise ValueError("The model is linearized already: α would only rescale it. Give lazy the network itself.")
    if isinstance(model, Lazy):
        raise ValueError("The model is lazy already. Give lazy the network itself.")
    return Lazy(model, alpha, bias, output)


class Lazy(nn.Module):
    """f₀ + α(f − f₀), made by `lazy`.

    Its parameters are those of the model, with the same names. The state dict has the model's entries, and those of f₀
    under `theta0.`.

    Move and convert this module and not the model, whose f₀ would stay behind. The first call in each mode runs f₀
    twice, to check that the outputs agree; make it before using `torch.func`.

    Args:
        model: f, which is trained.
        alpha: α.
        bias: Whether to add f₀.
        output: Which tensor of the model's result to use.
    """

    theta0: nn.Module

    def __init__(self, model: nn.Module, alpha: float, bias: bool = True, output: Output = None) -> None:
        training, frozen = model.training, Frozen(duplicate(model), output)
        self.__model = (model,)  # in a tuple, or it would be registered once more; it holds the mode
        super().__init__()
        self.__frozen = frozen
        # The same dicts, so that the model's own entries have their names here, and moving them moves the model.
        for name in ("_parameters", "_buffers", "_non_persistent_buffers_set"):
            vars(self)[name] = vars(model)[name]
        self._modules.update(model._modules)
        self.__frozen.join(self)
        self._rest()
        self.__alpha, self.__bias = float(alpha), bias
        self.__checked: set[tuple[bool, ...]] = set()  # the modes of all modules in which two calls agreed
        self.training = training

    @property
    def training(self) -> bool:
        """The mode of the model: setting one sets the other."""
        return self.__model[0].training

    @training.setter
    def training(self, mode: bool) -> None:
        self.__model[0].training = mode

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """The scaled output for the model's own arguments."""
        with self._same_modes():
            self._check_repeats(args, kwargs)
            f = tensor_of(self.__model[0](*args, **kwargs), self.__frozen.output)
            f0 = self.__frozen.value(args, kwargs, {})
        scaled = self.__alpha * (f - f0)
        return f0 + scaled if self.__bias else scaled

    def learning_rate(self, eta: float) -> float:
        """η/α², with which the outputs move as fast as those of the network itself do with η."""
        return eta / self.__alpha**2

    def train(self, mode: bool = True) -> Lazy:
        """Set the mode of the model. f₀ runs in the modes of f, and is in eval mode between calls."""
        self.__model[0].train(mode)
        super().train(mode)
        self._rest()
        return self

    @contextmanager
    def _same_modes(self) -> Iterator[None]:
        """A context in which f₀ is in the modes of f."""
        self._check_modes()
        try:
            for module, twin in zip(self.__model[0].modules(), self.theta0.modules(), strict=True):
                twin.training = module.training
            yield
        finally:
            self._rest()

    def _rest(self) -> None:
        """Put f₀ in eval mode, where it stays between calls."""
        for module in self.theta0.modules():
            module.training = False

    def _check_modes(self) -> None:
        """Raise where f − f₀ would be noise, which α amplifies."""
        for path, module in self.__model[0].named_modules():
            where = f"{type(module).__name__} '{path}'" if path else type(module).__name__
            if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
                raise ValueError(
                    f"{where} normalizes with the statistics of each batch, and α = {self.__alpha:g} would amplify "
                    "their noise. Put it in eval mode, with running statistics."
                )
            if module.training and is_random(module):
                raise ValueError(
                    f"{where} is active (training mode): f and f₀ would draw different numbers, and "
                    f"α = {self.__alpha:g} would amplify the difference. Put it in eval mode."
                )

    @eagerly
    @torch.no_grad()
    def _check_repeats(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise where two calls with the same arguments differ, so that f − f₀ is not the effect of the weights."""
        modes = tuple(module.training for module in self.theta0.modules())
        if modes in self.__checked:
            return
        with torch.enable_grad():  # for `check_reached`, and for models that differentiate in their forward
            first = self.__frozen.value(args, kwargs, {})
            check_reached(first, tree_leaves((args, kwargs)))
            one = first.detach().clone()
            two = self.__frozen.value(args, kwargs, {}).detach()
        if (one - two).float().norm() > 100 * torch.finfo(one.dtype).eps * one.float().norm():  # more than rounding
            raise ValueError(
                "The model gives two outputs when it is called twice with the same arguments, and "
                f"α = {self.__alpha:g} would amplify the difference. If it writes to its input, let it write to a "
                "copy; if it draws random numbers or updates a state, put it in eval mode."
            )
        self.__checked.add(modes)
