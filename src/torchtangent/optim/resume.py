"""What is saved of an optimizer beside its groups and states, and whether it belongs to one like this."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from torchtangent.optim.damping import Adaptive
from torchtangent.optim.method import Method
from torchtangent.optim.options import Settings


def options_of(settings: Settings, method: Method, adaptive: Adaptive | None) -> dict[str, Any]:
    """What the next steps depend on and no group holds, as plain values."""
    shared = {name: value for name, value in vars(settings).items() if name != "scaler"}
    how = None if adaptive is None else {k: v for k, v in asdict(adaptive).items() if k != "start"}
    return {**shared, **method.options(), "adaptive damping": how}


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far an optimizer is, as plain values; states of earlier versions may lack what has a default.

    Attributes:
        kind: Of the optimizer.
        options: What it was made with.
        steps: Steps taken.
        skipped: Steps not taken.
        clipped: Steps that were shortened.
        unseen: Parameters of which no sample's gradient is known, and why.
        thin: Blocks whose samples make less work than their gradient.
        due: Blocks to decompose when samples next go through them.
        rates: Of the groups, in the last step.
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
    def of(cls, state_dict: Mapping[str, Any], kind: str, options: Mapping[str, Any]) -> Progress:
        """What is saved in a state, if it is one of the same kind of optimizer with the same options."""
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
        """Parameters that have a block here should have the same one there."""
        for key, names in self.blocks.items():
            if list(blocks.get(key, names)) != list(names):
                raise ValueError(
                    f"The state was saved with a block of {', '.join(names)}; here it is one of "
                    f"{', '.join(blocks[key])}. Choose and freeze the same parameters before loading."
                )
