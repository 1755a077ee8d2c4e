"""A network whose weights are constants (buffers), and can be replaced by other tensors for the time of a call."""

from __future__ import annotations

import copy
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from torchtangent.jacobians.call import alone
from torchtangent.jacobians.graph import Graph
from torchtangent.jacobians.inputs import Output, tensor_of
from torchtangent.notice import listed

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Tangent = dict[str, Tensor]


class Frozen:
    """A network whose parameters are turned into buffers: they move between devices and are saved, but not trained.

    Args:
        network: The network, which is changed in place.
        output: Which tensor of its result is f(x).

    Attributes:
        places: For each weight, by its first name, the modules and attributes that hold it (several if it is tied).
    """

    def __init__(self, network: nn.Module, output: Output = None) -> None:
        self.network, self.output = network, output
        names = {id(p): name for name, p in network.named_parameters()}
        self.places: dict[str, list[tuple[nn.Module, str]]] = {name: [] for name in names.values()}
        constants = {id(p): p.detach() for p in network.parameters()}
        for module in network.modules():
            for attribute, p in list(module._parameters.items()):
                if p is not None:
                    self.places[names[id(p)]].append((module, attribute))
                    del module._parameters[attribute]
                    module._buffers[attribute] = constants[id(p)]

    def weight(self, name: str) -> Tensor:
        """The frozen value of a weight."""
        module, attribute = self.places[name][0]
        return module.get_buffer(attribute)

    def leaves(self, names: Iterable[str]) -> Tangent:
        """The values of some weights as leaves, to differentiate with respect to them."""
        if torch._C._functorch.peek_interpreter_stack() is not None:
            raise RuntimeError(
                "A linearized network can be used inside torch.func only in forward mode, and after a first call "
                "outside of it, which finds out whether forward mode works. Make that call before; if it warns of "
                "reverse passes, and for derivatives with respect to the inputs, use torch.autograd instead."
            )
        return {name: self.weight(name).detach().requires_grad_() for name in names}

    def join(self, owner: nn.Module) -> None:
        """Register the network as the submodule `theta0` of a module, to be moved, copied and saved with it."""
        if hasattr(owner, "theta0"):
            raise ValueError("The model has a part called 'theta0', the name that the frozen weights get. Rename it.")
        owner.add_module("theta0", self.network)

    def check_names(self, kind: type[nn.Module]) -> None:
        """Refuse parts that have the names of what a module of this kind has itself."""
        for name in dict.fromkeys(name.partition(".")[0] for name in self.places):
            if hasattr(kind, name):
                raise ValueError(f"The model has a part called {name!r}, as {kind.__name__} has itself. Rename it.")

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        """f(x); only inside `at`."""
        return tensor_of(self.network(*args, **kwargs), self.output)

    def value(self, args: Args, kwargs: Kwargs, weights: Tangent) -> Tensor:
        """f(x) with some weights replaced."""
        with self.at(weights):
            return self(*args, **kwargs)

    @contextmanager
    def at(self, values: Mapping[str, Tensor]) -> Iterator[None]:
        """A context in which the network has parameters: these values, and its own weights for all others."""
        try:
            for name, places in self.places.items():
                for module, attribute in places:
                    value = values[name] if name in values else module._buffers[attribute]
                    module._parameters[attribute] = value  # type: ignore[assignment]
            yield
        finally:
            for places in self.places.values():
                for module, attribute in places:
                    module._parameters.pop(attribute, None)


def check_reached(f: Tensor, known: Iterable[Any]) -> None:
    """Refuse outputs that depend on parameters not among, or behind, the `known` tensors.

    A copy of a model has copies of the parameters that are attributes of its modules, but still uses the original of
    any other.
    """
    known = [t for t in known if isinstance(t, Tensor)]
    held = {id(t) for t in known}
    strays = [leaf for leaf in Graph(f, known).leaves if isinstance(leaf, nn.Parameter) and id(leaf) not in held]
    if strays:
        shapes = ", ".join(str(tuple(t.shape)) for t in strays[:3])
        raise ValueError(
            f"The model uses parameters (of shape {shapes}) that it reaches in other ways than as attributes of its "
            "modules: in a list, through a closure or a hook. A copy of the model would not follow them. Make them "
            "attributes (nn.ParameterList, or self.name in a method)."
        )


def duplicate(model: nn.Module) -> nn.Module:
    """A deep copy, even of a model that holds tensors with a graph (as from `weight_norm`, or cached activations)."""
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        raise TypeError(
            "The model is scripted or traced: its weights are fixed in it. Pass the model that it is made of."
        )
    with alone():  # in another thread the parameters may be replaced for a while
        own = (t for module in model.modules() for t in vars(module).values() if isinstance(t, Tensor))
        return copy.deepcopy(model, {id(t): t.detach().clone() for t in own if not t.is_leaf})


def load(network: nn.Module, at: Mapping[str, Any] | str | os.PathLike[str]) -> None:
    """Load a state dict, or the contents of a safetensors file, into a network.

    Buffers may be missing: the network then keeps its own. For a tied weight, one of its names is enough.
    """
    if isinstance(at, str | os.PathLike):
        path = os.fspath(at)
        try:
            at = load_file(path)
        except SafetensorError as error:
            raise ValueError(
                f"'{path}' is not a safetensors file ({error}). Other checkpoints are not opened here, since "
                "unpickling can run code: pass at=torch.load(path, weights_only=True), or the state dict inside it."
            ) from error
    if not isinstance(at, Mapping):
        raise TypeError(f"at= should be a state dict or the path of a safetensors file, got a {type(at).__name__}.")
    names: dict[int, list[str]] = defaultdict(list)
    for name, p in network.named_parameters(remove_duplicate=False):
        names[id(p)].append(name)
    missing = [same[0] for same in names.values() if not any(name in at for name in same)]
    known = network.state_dict()
    unexpected = [name for name in at if name not in known]
    if missing or unexpected:
        raise ValueError(f"at= does not fit {type(network).__name__}: {_differences(missing, unexpected, at)}")
    network.load_state_dict(at, strict=False)


def _differences(missing: list[str], unexpected: list[Any], at: Mapping[Any, Any]) -> str:
    """Some of the names that do not fit, and advice."""
    wrong = [f"missing {name}" for name in missing] + [f"unexpected {name}" for name in unexpected]
    names = listed(wrong)
    if nested := [repr(key) for key, value in at.items() if isinstance(value, Mapping)]:
        return f"{names}. It holds other mappings ({', '.join(nested)}): pass the one that is the model's state dict."
    given = [str(key) for key in at]
    for name in given if missing else []:
        prefix = name.removesuffix(missing[0])
        if prefix.endswith(".") and all(other.startswith(prefix) for other in given):
            return f"{names}. Its names begin with '{prefix}', those of the model do not: remove it from them."
    return f"{names}. Pass what the model's state_dict() returns."
