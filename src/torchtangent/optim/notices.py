"""Warnings that an optimizer gives once instead of at every step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torchtangent.notice import listed, warn


class Notices:
    """Remembers which warnings were given."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def new(self, names: Iterable[str], topic: str) -> list[str]:
        """The names not yet mentioned under a topic; they count as mentioned from now on."""
        found = [name for name in names if f"{topic}: {name}" not in self._said]
        self._said.update(f"{topic}: {name}" for name in found)
        return found

    def ruleless(self, kind: str, names: Mapping[str, str], total: int, fallback: str) -> None:
        """Warn about parameters whose layers (name → type of layer) have no rule."""
        if self.new(names, "unseen"):
            said = listed([f"{name} ({layer})" for name, layer in names.items()])
            warn(
                f"{kind} has no rule for {said}: {len(names)} of {total} parameters get the {fallback}. To leave them "
                "to another optimizer, choose the others with params=.",
            )


def round_number(count: int) -> bool:
    """Whether a count is 1, 10, 100, …: when to repeat a warning about something that keeps happening.

    >>> [count for count in range(1, 200) if round_number(count)]
    [1, 10, 100]
    """
    return str(count).rstrip("0") == "1"
