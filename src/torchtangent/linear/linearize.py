"""A network's linearization as a plain trainable module."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from torchtangent.jacobians.faithful import Unfaithful
from torchtangent.jacobians.inputs import Output
from torchtangent.jacobians.modes import check_autograd, check_modes, unwrapped
from torchtangent.jacobians.select import Params, select
from torchtangent.linear.frozen import Frozen, duplicate, load
from torchtangent.linear.reverse import needs_gradient
from torchtangent.linear.tangent import Way, autocast_dtype, choose, unfused, unmix
from torchtangent.notice import warn

_TRIALS = 4  # calls after which a way is kept although gradients were zero and nothing could be compared


def linearize(
    model: nn.Module,
    at: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    bias: bool = True,
    *,
    params: Params = None,
    output: Output = None,
) -> Linearized:
    """The first-order expansion of a network around a point of its parameter space, f(θ₀) + J(θ − θ₀).

    It is a module like any other: call it like the model, and train it with any optimizer. The model is copied, and not
    changed. The copy stays in eval mode, so BatchNorm uses its running statistics and dropout is off, whatever the mode
    of the model. A new model has no statistics yet, only means of 0 and variances of 1: run some batches through it in
    training mode first.

    Its Jacobian and kernel are the model's at θ₀, wherever θ is: `tt.ntk(model, x)` computes it faster. The Fisher
    matrix depends on θ through the outputs; as `KFAC` or `EKFAC` it is that of a module without layers: diagonal.

    J(θ − θ₀) is computed in forward mode; a training step costs about 5/3 of one of the network. If forward mode fails,
    and for inputs that require a gradient, reverse mode is used instead, exact but slower, and a `TangentWarning` says
    so.

    Args:
        model: Any module; θ₀ are its current weights.
        at: Another θ₀: a state dict of the model, or the path of a safetensors file with one. Buffers (running
            statistics) are loaded too, if it has any.
        bias: Whether to add f(θ₀); without it the function is J(θ − θ₀), which is zero at the start.
        params: Which parameters move (see `select`), among those with `requires_grad`. All others are constants.
        output: Which tensor of the model's result to use: a callable, a key or attribute name, or None for the result
            itself or its `logits`.

    Returns:
        A `Linearized`, at θ = θ₀.

    >>> import torch, torchtangent as tt
    >>> from torch import nn
    >>> model, x = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)), torch.randn(5, 2)
    >>> lin = linearize(model)
    >>> torch.allclose(lin(x), model(x))
    True
    >>> torch.optim.SGD(lin.parameters(), lr=1.0).step(lambda: lin(x).square().sum().backward())
    >>> torch.allclose(lin(x), model(x) + tt.jacobian(model, x) @ lin.displacement(), atol=1e-5)
    True
    """
    model = unwrapped(model)
    if isinstance(model, Linearized):
        raise ValueError("The model is linearized already: it is linear in its parameters, and its own expansion.")
    network = duplicate(model)
    check_autograd(network)
    if at is not None:
        load(network, at)
    network.eval()
    check_modes(network)
    return Linearized(network, list(select(network, params)), bias, output)


class Linearized(nn.Module):
    """f(θ₀) + J(θ − θ₀), made by `linearize`.

    Its parameters θ have the names of the model's; constant ones are left out. The state dict has them under these
    names, and θ₀ with all buffers under `theta0.`, so that it holds the whole function.

    The first call takes longer, for it compares forward with reverse mode; make it before using `torch.func`.

    Args:
        network: The network to linearize, in eval mode. It is frozen in place.
        names: The parameters that move.
        bias: Whether to add f(θ₀).
        output: Which tensor of the network's result to use.
    """

    theta0: nn.Module

    def __init__(self, network: nn.Module, names: list[str], bias: bool = True, output: Output = None) -> None:
        super().__init__()
        unmix(network)
        self.__names, self.__bias = names, bias
        self.__frozen = Frozen(network, output)
        self.__ways: dict[tuple[bool, torch.dtype | None], Way] = {}  # by (inputs require grad, autocast dtype)
        self.__trials: Counter[tuple[bool, torch.dtype | None]] = Counter()
        self.__attention = _warn_unfused(network, nn.MultiheadAttention)
        self.__recurrent = _warn_unfused(network, nn.RNNBase)
        self.__frozen.check_names(type(self))
        for name in names:
            *path, attribute = name.split(".")
            holder: nn.Module = self
            for part in path:
                if part not in holder._modules:
                    holder.add_module(part, nn.Module())
                holder = holder.get_submodule(part)
            holder.register_parameter(attribute, nn.Parameter(self.__frozen.weight(name).clone()))
        self.__frozen.join(self)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """The linearized output for the model's own arguments."""
        if torch.is_inference_mode_enabled():  # which silently disables forward mode
            with torch.inference_mode(False), torch.no_grad():
                args, kwargs = tree_map_only(Tensor, torch.clone, (args, kwargs))
                return self(*args, **kwargs)
        with unfused(self.__attention, self.__recurrent):
            kind = needs_gradient(args, kwargs), autocast_dtype(self.__frozen.weight(self.__names[0]))
            way = self.__ways.get(kind)
            if way is None:
                way, shown = choose(self.__frozen, self.__names, args, kwargs)
                self.__trials[kind] += 1
                if shown or self.__trials[kind] == _TRIALS:
                    self.__ways[kind] = way
            try:
                f, w = way(self.__frozen, self.displacement(), args, kwargs)
            except Unfaithful:
                way = self.__ways[kind] = choose(self.__frozen, self.__names, args, kwargs, forward=False)[0]
                f, w = way(self.__frozen, self.displacement(), args, kwargs)
        return f + w if self.__bias else w

    def displacement(self) -> dict[str, Tensor]:
        """θ − θ₀, by name."""
        return {name: attrgetter(name)(self) - self.__frozen.weight(name) for name in self.__names}

    def train(self, mode: bool = True) -> Linearized:
        """Set the mode of this module; the network inside stays in eval mode."""
        super().train(mode)
        self.theta0.eval()
        return self

    def _apply(self, fn: Callable, recurse: bool = True) -> Linearized:
        self.__ways, self.__trials = {}, Counter()  # another device or dtype may have other kernels
        return super()._apply(fn, recurse)


def _warn_unfused(network: nn.Module, kind: type[nn.Module]) -> bool:
    """Warn if a network has layers of this kind, whose fused kernels will be off; returns whether it has."""
    found = next((name for name, module in network.named_modules() if isinstance(module, kind)), None)
    if found is not None:
        warn(
            f"{type(network.get_submodule(found)).__name__} '{found}' runs without its fused kernels inside the "
            "linearization (exact, but slower): they have no forward mode.",
        )
    return found is not None
