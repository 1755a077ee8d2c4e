"""Parameter groups: the forms in which a user may give them, and their checks."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from torchtangent.jacobians.select import select


def as_groups(params: Any) -> list[dict[str, Any]]:
    """Parameter groups, from groups or from what belongs in a single one."""
    if params is None or isinstance(params, str | Tensor) or callable(params):
        return [{"params": params}]
    found = list(params)
    return found if found and isinstance(found[0], dict) else [{"params": found}]


def as_tensors(model: nn.Module, params: Any) -> Any:
    """The parameters of a group, which may be given by patterns or a predicate."""
    if params is None or isinstance(params, str) or (callable(params) and not isinstance(params, Tensor)):
        return list(select(model, params).values())
    found: list[Any] = [params] if isinstance(params, Tensor) else list(params)
    return list(select(model, found).values()) if found and all(isinstance(p, str) for p in found) else found


def by_name(groups: Iterable[dict[str, Any]], names: Mapping[int, str]) -> dict[str, dict[str, Any]]:
    """The group of each parameter by its name; `names` maps the id of a parameter to its name."""
    return {names[id(p)]: group for group in groups for p in group["params"]}


def check_group(group: Mapping[str, Any], names: Mapping[int, str], shared: Collection[str]) -> None:
    """Refuse a group with invalid numbers, with an option that all groups share, or with parameters not in `names`."""
    for what in shared:
        if what in group:
            raise ValueError(
                f"{what} holds for all parameters: give it to the optimizer, not to a group. Groups have lr, damping, "
                "momentum and weight_decay."
            )
    for what in ("lr", "damping"):
        if not 0 < float(group[what]) < math.inf:
            raise ValueError(f"{what}={group[what]}: it should be positive, and finite.")
    if not 0 <= group["momentum"] < 1:
        raise ValueError(f"momentum={group['momentum']}: it should be in [0, 1).")
    if not 0 <= group["weight_decay"] < math.inf:
        raise ValueError(f"weight_decay={group['weight_decay']}: it should be finite and not negative.")
    for i, p in enumerate(group["params"]):
        if id(p) not in names:
            raise ValueError(
                f"Parameter {i} of the group, of shape {tuple(p.shape)}, is not in the model: its layer's inputs would "
                "never be seen. Pass the model that holds it."
            )
