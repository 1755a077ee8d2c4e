"""Which parameter is preconditioned how: decided by the layers that hold it, and said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from torchtangent.jacobians.factors import LayerJacobian, merge
from torchtangent.jacobians.rules import RULES, NoRule
from torchtangent.optim.layer import Layer
from torchtangent.optim.recorder import Batch, factors


@dataclass(eq=False)
class Plan:
    """Every chosen parameter is in one of three places.

    Attributes:
        layers: Weights (with their biases) that get a Kronecker-factored block.
        diagonal: Parameters that get the diagonal of their block.
        plain: Parameters that keep their gradient, and why.
        modules: The layers to record, by their path.
        homes: For each recorded parameter the (path, attribute) where it stands.
    """

    layers: list[Layer] = field(default_factory=list)
    diagonal: list[str] = field(default_factory=list)
    plain: dict[str, str] = field(default_factory=dict)
    modules: dict[str, nn.Module] = field(default_factory=dict)
    homes: dict[str, list[tuple[str, str]]] = field(default_factory=dict)

    @classmethod
    def of(cls, model: nn.Module, names: Mapping[int, str], *, sua: bool, rest: str) -> Plan:
        """The plan for the parameters of a model that `names` (id → name) knows."""
        plan = cls()
        places: Counter[int] = Counter()
        owner: dict[str, nn.Module] = {}
        for path, module in model.named_modules():
            for attribute, p in module._parameters.items():
                if p is None or id(p) not in names:
                    continue
                places[id(p)] += 1
                name = names[id(p)]
                owner.setdefault(name, module)
                if type(module) in RULES and attribute in ("weight", "bias"):
                    plan.modules[path] = module
                    plan.homes.setdefault(name, []).append((path, attribute))
        tied = {name for key, name in names.items() if places[key] > 1}
        for name, module in owner.items():
            home = plan.homes.get(name, [])
            if len(home) != places[_key(names, name)]:
                plan.plain[name] = f"no rule for {type(module).__name__}"
            elif home[0][1] == "weight" and isinstance(module, nn.Linear | _ConvNd):
                bias = module._parameters.get("bias")
                with_bias = bias is not None and id(bias) in names and tied.isdisjoint((name, names[id(bias)]))
                plan.layers.append(Layer.of(module, name, names[id(bias)] if with_bias else None, sua=sua))
        joint = {name for layer in plan.layers for name in layer.names}
        for name in owner:
            if name in joint or name in plan.plain:
                continue
            if rest == "diagonal":
                plan.diagonal.append(name)
            else:
                plan.plain[name] = "rest='plain'"
        plan._forget_unused()
        return plan

    def demote(self, name: str, why: str) -> None:
        """A parameter, with what shares its block, keeps its plain gradient from now on."""
        names = next((layer.names for layer in self.layers if name in layer.names), [name])
        self.layers = [layer for layer in self.layers if layer.names != names]
        self.diagonal = [other for other in self.diagonal if other not in names]
        self.plain.update(dict.fromkeys(names, why))
        self._forget_unused()

    def paths(self, names: list[str]) -> set[str]:
        """The recorded layers that some parameters stand in."""
        return {path for name in names for path, _ in self.homes[name]}

    def jacobians(self, batch: Batch) -> dict[str, LayerJacobian]:
        """Per-sample gradients of the recorded parameters in one backward pass, factored."""
        found: dict[str, LayerJacobian] = {}
        by_path: dict[str, list[dict[str, LayerJacobian]]] = {}
        for path, uses in batch.uses.items():
            if path not in self.modules:
                continue
            try:
                by_path[path] = [factors(self.modules[path], use, batch.samples) for use in uses]
            except NoRule as why:
                for name in [name for name, home in self.homes.items() if path in dict(home)]:
                    self.demote(name, f"{path}: {why}")
        for name, home in self.homes.items():
            if name in self.plain:
                continue
            pieces = [use[attribute] for path, attribute in home for use in by_path.get(path, [])]
            if len({(type(p), getattr(p, "order", ())) for p in pieces}) > 1:
                self.demote(name, "tied between layers of different kinds")
            elif pieces:
                found[name] = merge(pieces)
        return {name: jacobian for name, jacobian in found.items() if name not in self.plain}

    def explain(self, kind: str, params: Mapping[str, Tensor]) -> str:
        """One line for each parameter."""
        said: dict[str, str] = {}
        for layer in self.layers:
            G, shape = layer.groups, layer.space.shapes[0]
            rows = shape[layer.order[0]] // (G if layer.order[0] == 0 else 1)
            columns = shape.numel() // (G * rows) + (layer.bias is not None)
            how = f"{kind}, {f'{G} groups of ' if G > 1 else ''}{rows} × {columns}"
            how += ", taps uncorrelated" if layer.sua else ""
            said[layer.weight] = how
            if layer.bias is not None:
                said[layer.bias] = f"{kind}, last column of {layer.weight}"
        said.update(dict.fromkeys(self.diagonal, "diagonal"))
        said.update({name: f"plain gradient ({why})" for name, why in self.plain.items()})
        width = max(map(len, params))
        return "\n".join(f"{name:{width}}  {said[name]}" for name in params)

    def _forget_unused(self) -> None:
        """Layers all of whose parameters are plain need no hooks."""
        self.homes = {name: home for name, home in self.homes.items() if name not in self.plain}
        used = self.paths(list(self.homes))
        self.modules = {path: module for path, module in self.modules.items() if path in used}


def _key(names: Mapping[int, str], name: str) -> int:
    return next(key for key, own in names.items() if own == name)
