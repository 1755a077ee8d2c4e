"""What is saved of an optimizer beside its groups and states, and whether a saved state fits an optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from torchtangent.optim.damping import Adaptive
from torchtangent.optim.method import Method
from torchtangent.optim.options import Settings


def options_of(settings: Settings, method: Method, adaptive: Adaptive | None) -> dict[str, Any]:
    """The options that later steps depend on and that no group holds, as plain values."""
    shared = {name: value for name, value in vars(settings).items() if name != "scaler"}
    how = None if adaptive is None else {k: v for k, v in asdict(adaptive).items() if k != "start"}
    return {**shared, **method.options(), "adaptive damping": how}


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """How far an optimizer has come, as plain values. What has a default may be missing from older states.

    Attributes:
        kind: The name of the optimizer.
        options: Its options.
        steps: Number of steps taken.
        skipped: Number of steps not taken.
        clipped: Number of steps that were shortened.
        unseen: Parameters whose per-sample gradients are unknown, and why.
        thin: Blocks cheaper to precondition sample by sample than as a matrix.
        due: Blocks to decompose as soon as samples go through them.
        rates: Learning rates of the groups at the last step.
        blocks: The parameters of each block that has a state.
    """

    kind: str
    options: dict[str, Any]
    steps: int
    skipped: int
    clipped: int = 0
    unseen: dict[str, str]
    thin: list[str] = field(default_factory=list)
    due: list[str] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    blocks: dict[str, list[str]]

    @classmethod
    def of(cls, state_dict: Mapping[str, Any], kind: str, options: Mapping[str, Any]) -> Checkpoint:
        """The progress in a saved state, which must be that of the same kind of optimizer with the same options."""
        found = state_dict.get("progress", {})
        if found.get("kind") != kind:
            whose = f"it is one of {found['kind']}" if found else "it has no 'progress'"
            raise ValueError(
                f"This is no state of {kind}: {whose}. Save it with state_dict() of that kind of optimizer."
            )
        saved = found.get("options", {})
        names = [name for name, value in options.items() if saved.get(name) != value]
        if names:
            then, now = (", ".join(f"{name}={known.get(name)!r}" for name in names) for known in (saved, options))
            raise ValueError(
                f"The state was saved with {then}; this {kind} has {now}. Make it with the options of then (lr, "
                "damping, momentum and weight_decay are restored)."
            )
        return cls(**{each.name: found[each.name] for each in fields(cls) if each.name in found})

    def check_blocks(self, blocks: Mapping[str, Sequence[str]]) -> None:
        """Refuse a state in which parameters form other blocks than these."""
        for key, names in self.blocks.items():
            if list(blocks.get(key, names)) != list(names):
                raise ValueError(
                    f"The state was saved with a block of {', '.join(names)}; here it is one of "
                    f"{', '.join(blocks[key])}. Choose and freeze the same parameters before loading."
                )
