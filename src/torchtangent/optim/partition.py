"""How each parameter is preconditioned, as decided by the layers that hold it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from torchtangent.jacobians.factors import LayerJacobian
from torchtangent.jacobians.rules import NoRule, is_linear, rule_of
from torchtangent.jacobians.together import merge
from torchtangent.optim.attention import MATRICES, projection_of
from torchtangent.optim.channels import ChannelsLayer
from torchtangent.optim.layer import Layer, Weight
from torchtangent.optim.matrix import MatrixLayer
from torchtangent.optim.recorded import Batch, LayerCall, LayerUse
from torchtangent.optim.vector import VectorLayer

RESTS = ("block", "diagonal", "plain")


@dataclass(eq=False)
class Partition:
    """Which parameters get a block, which a diagonal, and which are `unseen`: each is in exactly one of the three.

    Attributes:
        layers: The blocks: weights of linear maps (with their biases), norm layers.
        diagonal: Parameters preconditioned by the diagonal of their block.
        unseen: Parameters whose per-sample gradients are unknown, and why.
        ruleless: Those of them in a layer that has no rule, and the type of that layer.
        plain: Whether unseen parameters keep their gradient; else they get a diagonal made of mean gradients.
        more: Parameters whose gradient, when last checked, had a part that no layer recorded.
        modules: The layers to record, by path.
        homes: Where each recorded parameter stands: pairs (path of a layer, name in it).
        shapes: The shapes of all chosen parameters.
    """

    layers: list[Layer] = field(default_factory=list)
    diagonal: list[str] = field(default_factory=list)
    unseen: dict[str, str] = field(default_factory=dict)
    ruleless: dict[str, str] = field(default_factory=dict)
    plain: bool = False
    more: set[str] = field(default_factory=set)
    modules: dict[str, nn.Module] = field(default_factory=dict)
    homes: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    shapes: dict[str, torch.Size] = field(default_factory=dict)

    @classmethod
    def of(cls, model: nn.Module, names: Mapping[int, str], *, sua: bool, rest: str) -> Partition:
        """The partition for some parameters of a model; `names` maps their ids to their names."""
        partition = cls(plain=rest == "plain")
        places: Counter[str] = Counter()
        owner: dict[str, nn.Module] = {}
        for path, module in model.named_modules():
            for attribute, p in module._parameters.items():
                if p is None or id(p) not in names:
                    continue
                name = names[id(p)]
                places[name] += 1
                partition.shapes[name] = p.shape
                owner.setdefault(name, module)
                if place := _place(model, path, attribute):
                    partition.modules[place[0]] = model.get_submodule(place[0])
                    partition.homes.setdefault(name, []).append(place)
        for name, module in owner.items():
            home = partition.homes.get(name, [])
            if len(home) != places[name]:
                partition.ruleless[name] = _kind(module)
                partition.unseen[name] = f"no rule for {partition.ruleless[name]}"
            elif (kind := home[0][1]) in MATRICES or (kind == "weight" and _is_matrix(module)):
                bias = names.get(id(module._parameters.get("in_proj_bias" if kind == "in_proj_weight" else "bias")))
                joint = bias is not None and places[name] == places[bias] == 1
                partition.layers.append(_linear(module, partition.shapes[name], name, bias if joint else None, sua=sua))
        partition._add_rest(owner, places, rest)
        partition._forget_unused()
        return partition

    @property
    def blocks(self) -> list[tuple[str, ...]]:
        """The parameters of each block, and each one that has a diagonal; states are kept under the first of them."""
        return [*(layer.names for layer in self.layers), *((name,) for name in self.diagonal)]

    def demote(self, name: str, why: str) -> None:
        """Treat a parameter, and all that share its block, as unseen from now on."""
        names = next((layer.names for layer in self.layers if name in layer.names), (name,))
        self.layers = [layer for layer in self.layers if layer.names != names]
        self.diagonal = [other for other in self.diagonal if other not in names]
        self.unseen.update(dict.fromkeys(names, why))
        self.more -= set(names)
        self._forget_unused()

    def keep_unseen(self, unseen: Mapping[str, str]) -> None:
        """Demote the parameters that another partition had demoted."""
        for name, why in unseen.items():
            if name in self.homes:
                self.demote(name, why)

    def paths(self, names: list[str]) -> set[str]:
        """The paths of the recorded layers that hold these parameters."""
        return {path for name in names for path, _ in self.homes[name]}

    def jacobians(self, batch: Batch, welcome: Set[str] = frozenset()) -> dict[str, LayerJacobian]:
        """The factored per-sample gradients of the recorded parameters in one batch.

        Parameters of a layer whose rule does not apply here are demoted; if the layer is only `welcome`, left out.
        """
        found: dict[str, LayerJacobian] = {}
        by_path: dict[str, list[dict[str, LayerJacobian]]] = {}
        for path, uses in batch.uses.items():
            if path not in self.modules:
                continue
            try:
                by_path[path] = [use.factors(self.modules[path], batch.samples) for use in uses]
            except NoRule as why:
                if path in welcome:
                    continue
                for name, home in [(name, home) for name, home in self.homes.items() if path in dict(home)]:
                    self.demote(name, f"{path if len(home) > 1 else 'its layer'}: {why}")
        for name, home in list(self.homes.items()):
            pieces = [use[key] for path, key in home for use in by_path.get(path, []) if key in use]
            if len({(type(p), getattr(p, "order", ()), getattr(p, "groups", 1)) for p in pieces}) > 1:
                self.demote(name, "tied between layers of different kinds")
            elif len(pieces) > 1 and batch.samples > 1 and any(_of_anyone(u) for p, _ in home for u in batch.uses[p]):
                self.demote(name, "used several times, with samples in an order that is not known")
            elif pieces:
                found[name] = merge(pieces)
        return {name: jacobian for name, jacobian in found.items() if name not in self.unseen}

    def explain(self, kind: str, params: Mapping[str, Tensor]) -> str:
        """One line for each parameter."""
        said = {name: how for layer in self.layers for name, how in layer.explain(kind).items()}
        said.update(dict.fromkeys(self.diagonal, "diagonal"))
        said.update({name: f"{said[name]}, of a gradient that has more than the recorded part" for name in self.more})
        said.update({name: f"{self.fallback} ({why})" for name, why in self.unseen.items()})
        width = max(map(len, params))
        return "\n".join(f"{name:{width}}  {said.get(name, 'frozen')}" for name in params)

    @property
    def fallback(self) -> str:
        """How unseen parameters are preconditioned, in words."""
        return "plain gradient" if self.plain else "diagonal from mean gradients"

    def _add_rest(self, owner: Mapping[str, nn.Module], places: Mapping[str, int], rest: str) -> None:
        """Place the parameters that are no matrix of a linear map; those of one norm layer form one block."""
        joint = {name for layer in self.layers for name in layer.names}
        blocks: dict[str | int, list[str]] = {}
        for name, module in owner.items():
            if name in joint or name in self.unseen:
                continue
            if rest == "plain":
                self.unseen[name] = "rest='plain'"
            elif rest == "diagonal" or isinstance(module, nn.Embedding):  # rows × width is too large for a block
                self.diagonal.append(name)
            else:
                blocks.setdefault(name if places[name] > 1 else id(module), []).append(name)
        self.layers += [VectorLayer.of({name: self.shapes[name] for name in names}) for names in blocks.values()]

    def _forget_unused(self) -> None:
        """Drop the layers that hold none of the parameters to be recorded: they need no hooks."""
        self.homes = {name: home for name, home in self.homes.items() if name not in self.unseen}
        used = self.paths(list(self.homes))
        self.modules = {path: module for path, module in self.modules.items() if path in used}


def _kind(module: nn.Module) -> str:
    # The type of attention's output projection, which is never called: attention uses its weight.
    return "MultiheadAttention" if isinstance(module, NonDynamicallyQuantizableLinear) else type(module).__name__


def _is_matrix(module: nn.Module) -> bool:
    """Whether the weight of a layer is that of a linear map."""
    return is_linear(module) or isinstance(module, _ConvNd)


def _of_anyone(use: LayerUse) -> bool:
    """Whether the graph shows that the rows of a use may belong to any sample."""
    return isinstance(use, LayerCall) and use.stride.value == 0


def _linear(module: nn.Module, shape: torch.Size, name: str, bias: str | None, *, sua: bool) -> Layer:
    weight = Weight.of(module, shape, name, bias)
    taps = shape[2:].numel()
    if sua and taps > 1 and not isinstance(module, _ConvTransposeNd):
        return ChannelsLayer(weight, taps)
    return MatrixLayer(weight)


def _place(model: nn.Module, path: str, attribute: str) -> tuple[str, str] | None:
    """The path of the layer to record for a parameter, and the parameter's name in it; None if there is no rule."""
    if rule_of(model.get_submodule(path)) and attribute in ("weight", "bias"):
        return path, attribute
    return projection_of(model, path, attribute)
