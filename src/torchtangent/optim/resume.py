"""Whether a saved state belongs to an optimizer like this one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from torchtangent.optim.damping import Adaptive
from torchtangent.optim.method import Method
from torchtangent.optim.options import Settings


def options_of(settings: Settings, method: Method, adaptive: Adaptive | None) -> dict[str, Any]:
    """What the next steps depend on and no group holds, as plain values."""
    shared = {name: value for name, value in vars(settings).items() if name != "scaler"}
    how = None if adaptive is None else {k: v for k, v in asdict(adaptive).items() if k != "start"}
    return {**shared, **method.options(), "adaptive damping": how}


def check_state(kind: str, state_dict: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The progress in a state of the same kind of optimizer with the same options."""
    progress = state_dict.get("progress", {})
    if progress.get("kind") != kind:
        whose = f"it is one of {progress['kind']}" if progress else "it has no 'progress'"
        raise ValueError(f"This is no state of {kind}: {whose}. Save it with state_dict() of that kind of optimizer.")
    saved = progress.get("options", {})
    names = [name for name, value in options.items() if saved.get(name) != value]
    if names:
        then, now = (", ".join(f"{name}={known.get(name)!r}" for name in names) for known in (saved, options))
        raise ValueError(
            f"The state was saved with {then}; this {kind} has {now}. Make it with the options of then (lr, damping, "
            "momentum and weight_decay are restored)."
        )
    return dict(progress)


def checked_blocks(saved: Mapping[str, list[str]], blocks: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """The saved blocks, if parameters that have a block here have the same one there."""
    for key, names in saved.items():
        if list(blocks.get(key, names)) != list(names):
            raise ValueError(
                f"The state was saved with a block of {', '.join(names)}; here it is one of {', '.join(blocks[key])}. "
                "Choose and freeze the same parameters before loading."
            )
    return {key: tuple(names) for key, names in saved.items()}
