"""Warnings that an optimizer gives once, not at every step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torchtangent.notice import listed, warn


class Notices:
    """What was already said."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def new(self, names: Iterable[str], topic: str) -> list[str]:
        """Those names that nothing was said about under a topic, which from now on count as named."""
        found = [name for name in names if f"{topic}: {name}" not in self._said]
        self._said.update(f"{topic}: {name}" for name in found)
        return found

    def ruleless(self, kind: str, names: Mapping[str, str], total: int, fallback: str) -> None:
        """That of some of all parameters, in layers of some kinds, no sample's gradient is known."""
        if self.new(names, "unseen"):
            said = listed([f"{name} ({layer})" for name, layer in names.items()])
            warn(
                f"{kind} has no rule for {said}: {len(names)} of {total} parameters get the {fallback}. To leave them "
                "to another optimizer, choose the others with params=.",
            )


def round_number(count: int) -> bool:
    """Whether a count is 1, 10, 100, …: often enough to say something that happens again and again.

    >>> [count for count in range(1, 200) if round_number(count)]
    [1, 10, 100]
    """
    return str(count).rstrip("0") == "1"
