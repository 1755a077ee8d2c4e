"""Where the time of our optimizers' steps goes: some of their functions, wrapped to be timed."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

WATCHED = {  # name → where in torchtangent.optim: a function, or a method of a class and of all that derive from it
    "covariances": "layer:Layer.moments",
    "decomposition": "replicas:Replicas.divide",
    "scalings": "layer:Layer.project",
    "preconditioning": "replay:Replay.solve",
    "update": "preconditioned:move",
}


class Pieces:
    """Seconds by name, each without those of the pieces inside it."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._seconds: dict[str, float] = {}
        self._inside: list[float] = []  # for every piece that is running, the seconds of the pieces in it

    def add(self, name: str, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function and add its time to a name."""
        self._inside.append(0.0)
        start = self._now()
        try:
            return run(*args, **kwargs)
        finally:
            total, inner = self._now() - start, self._inside.pop()
            self._seconds[name] = self._seconds.get(name, 0.0) + total - inner
            if self._inside:
                self._inside[-1] += total

    def take(self) -> dict[str, float]:
        """The seconds so far; counting starts again."""
        found, self._seconds = self._seconds, {}
        return found

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While this is open the watched functions add their time."""
        before = []
        for name, place in WATCHED.items():
            found = list(_find(place))
            if not found:
                warnings.warn(f"torchtangent.optim has no {place}: its time counts as the rest", stacklevel=3)
            for owner, attribute, function in found:
                before.append((owner, attribute, function))
                setattr(owner, attribute, self._wrapped(name, function))
        try:
            yield
        finally:
            for owner, attribute, function in before:
                setattr(owner, attribute, function)

    def _wrapped(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            return self.add(name, function, *args, **kwargs)

        return watched


def _find(place: str) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """Every module or class that holds the function, with its name there."""
    module, _, path = place.partition(":")
    owner: Any = importlib.import_module(f"torchtangent.optim.{module}")
    kind, _, attribute = path.rpartition(".")
    owners = [owner] if not kind else _family(getattr(owner, kind)) if hasattr(owner, kind) else []
    for each in owners:
        if attribute in vars(each):
            yield each, attribute, vars(each)[attribute]


def _family(kind: type) -> list[type]:
    """A class and all that derive from it."""
    return [kind, *(each for child in kind.__subclasses__() for each in _family(child))]
