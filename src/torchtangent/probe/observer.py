"""Takes the measures of a model, and keeps what later ones are compared with."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np
from torch import Tensor

from torchtangent.complexity.fixed import check_layout, layout
from torchtangent.jacobians.modes import in_eval
from torchtangent.notice import TangentWarning
from torchtangent.probe.measures import MEASURES, Missing
from torchtangent.probe.state import State, Undefined, View

Numbers = dict[str, float | list[float] | None]

_START = ("params", "kernel", "activity", "feature_norm", "complexity")  # what later states are compared with
_BEFORE = ("params", "feature_norm", "complexity")


class Observer:
    """Measures a model on its probe sets. All measures are taken once at the start, to fail early if they fail.

    Args:
        views: The probe sets, by the prefix of their keys.
        measures: The names of the measures.

    Attributes:
        notes: Measures that this model does not have, and why.
    """

    def __init__(self, views: Mapping[str, View], measures: list[str]) -> None:
        self.notes: dict[str, str] = {}
        self._views, self._measures = views, measures
        self._keys: dict[str, list[str]] = {}  # the keys of each measure
        self._layout = layout(views[""].params)
        states = {prefix: State(view) for prefix, view in views.items()}
        _, finite = self._take(states)
        if not finite:
            raise ValueError("The network has NaN or infinity at the start: there is nothing to compare with later.")
        self._start = {prefix: state.forget(*_START) for prefix, state in states.items()}
        self._before = self._start[""]

    def now(self) -> tuple[Numbers, bool]:
        """All measures of the model as it is now, and whether the network is finite."""
        check_layout(self._layout, self._views[""].params)
        states = {prefix: State(view, self._start[prefix], self._before) for prefix, view in self._views.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TangentWarning)  # given at the start already
            numbers, finite = self._take(states)
        if finite:
            self._before = states[""].forget(*_BEFORE)
        return numbers, finite

    def identity(self) -> dict[str, Any]:
        """What is measured, and on which samples."""
        samples = {f"{prefix}x": view.samples.fingerprint() for prefix, view in self._views.items()}
        return {"measures": sorted(self._measures), "parameters": self._layout, **samples}

    def state_dict(self) -> dict[str, Any]:
        """The states at the start and at the last record, as tensors."""
        return {
            "identity": self.identity(),
            "start": {prefix: state.saved() for prefix, state in self._start.items()},
            "before": self._before.saved(),
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Continue from a saved state, which must have the same samples and measures."""
        own, other = self.identity(), saved.get("identity", {})
        different = [key for key in {**own, **other} if own.get(key) != other.get(key)]
        if different:
            raise ValueError(
                f"The saved state is that of another probe: its {' and '.join(different)} differ. Make this one with "
                "what that one had, and keep the samples of a probe set (a random choice of them needs a seed)."
            )
        self._start = {prefix: State.restored(saved["start"][prefix]) for prefix in self._views}
        self._before = State.restored(saved["before"])

    def _take(self, states: Mapping[str, State]) -> tuple[Numbers, bool]:
        """All measures of these states, and whether everything was finite."""
        numbers: Numbers = {}
        for prefix, state in states.items():
            with in_eval(state.view.model, state.view.names):
                for name in self._measures:
                    if MEASURES[name].held_out or not prefix:
                        numbers |= self._measure(prefix, name, state)
        return numbers, all(state.finite for state in states.values())

    def _measure(self, prefix: str, name: str, state: State) -> Numbers:
        """One measure by its keys: None if the model does not have it, NaN if it is undefined now."""
        key = prefix + name
        try:
            values = MEASURES[name].of(state)
        except Missing as reason:
            self.notes[name] = str(reason)
            return {key: None}
        except Undefined:
            return dict.fromkeys(self._keys.get(key, [key]), math.nan)
        parts = values if isinstance(values, Mapping) else {"": values}
        found: Numbers = {f"{key}/{part}" if part else key: _plain(value, name) for part, value in parts.items()}
        self._keys[key] = list(found)
        return found


def _plain(value: Any, name: str) -> float | list[float]:
    """The value of a measure as a float, or a list of them."""
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, Tensor | np.ndarray):
        return value.tolist()
    raise TypeError(
        f"Measure {name!r} gave a {type(value).__name__}. It should give a number, a tensor, or a dict of them by name."
    )
