"""A probe as a callback of a training framework, which is imported only on demand."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchtangent.probe.probe import TangentProbe


def lightning(probe: TangentProbe) -> Any:
    """A `Callback` that logs before training and after every optimizer step, on the first rank.

    The state of the probe is part of Lightning's checkpoints, so that a resumed run continues where it was.
    """

    class ProbeCallback(_first_of("lightning.pytorch", "pytorch_lightning").Callback):  # type: ignore[misc]
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            if trainer.is_global_zero:
                probe.log(trainer.global_step)

        def on_train_batch_end(self, trainer: Any, pl_module: Any, *batch: Any) -> None:
            self.on_train_start(trainer, pl_module)

        def state_dict(self) -> dict[str, Any]:
            return probe.state_dict()

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            probe.load_state_dict(state_dict)

    return ProbeCallback()


def huggingface(probe: TangentProbe) -> Any:
    """A `TrainerCallback` that logs before training and after every optimizer step, on the first rank."""

    class ProbeCallback(_first_of("transformers").TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            if state.is_world_process_zero:
                probe.log(state.global_step)

        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            self.on_train_begin(args, state, control)

    return ProbeCallback()


def _first_of(*names: str) -> ModuleType:
    """The first of these modules that is installed."""
    for name in names:
        try:
            return import_module(name)
        except ModuleNotFoundError as error:
            missing = error
    raise ImportError(
        f"This callback needs {' or '.join(names)}. Install it, or call probe.log(step) in the loop."
    ) from missing
