"""What an optimizer warns of: most of it once, instead of at every step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torchtangent.notice import listed, warn


class Notices:
    """The warnings of an optimizer, which remember what they have said.

    Args:
        kind: The name of the optimizer.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._said: set[str] = set()

    def new(self, names: Iterable[str], topic: str) -> list[str]:
        """The names not yet mentioned under a topic; they count as mentioned from now on."""
        found = [name for name in names if f"{topic}: {name}" not in self._said]
        self._said.update(f"{topic}: {name}" for name in found)
        return found

    def first(self, topic: str) -> bool:
        """Whether a topic comes up for the first time."""
        return bool(self.new([""], topic))

    def ruleless(self, names: Mapping[str, str], total: int, fallback: str) -> None:
        """Some of the parameters are in layers (name → type of layer) without a rule."""
        if self.new(names, "unseen"):
            said = listed([f"{name} ({layer})" for name, layer in names.items()])
            warn(
                f"{self._kind} has no rule for {said}: {len(names)} of {total} parameters get the {fallback}. To leave "
                "them to another optimizer, choose the others with params=.",
            )

    def one_damping(self, names: Iterable[str]) -> None:
        """The parameters of a block are in groups with different dampings."""
        first, *_ = names = list(names)
        if self.new([first], "damping"):
            warn(f"{listed(names)} are one block, with one damping: that of {first} is taken.")

    def late(self, names: Iterable[str]) -> None:
        """Parameters that have gradients, but were unfrozen after the forward pass."""
        if late := self.new(names, "late"):
            warn(f"Not moved before the next step, as a backward pass came before they were unfrozen: {listed(late)}.")

    def no_gradients(self) -> None:
        """Nothing has a gradient."""
        if self.first("gradients"):
            warn(
                f"{self._kind}: step() found no gradients, so no parameter was changed. Call backward before it, on a "
                "loss of the model that it was made with (not of a copy)."
            )

    def skipped(self, what: str, count: int) -> None:
        """A step was not taken because of something that is not finite; `count` such steps so far."""
        if round_number(count):
            warn(
                f"{self._kind}: step skipped, {what} has NaN or infinity (skipped so far: {count}). Parameters are as "
                "before. If this goes on, the training has diverged: give a lower lr, a lower kl_clip or more damping."
            )


def round_number(count: int) -> bool:
    """Whether a count is 1, 10, 100, …: when to repeat a warning about something that keeps happening.

    >>> [count for count in range(1, 200) if round_number(count)]
    [1, 10, 100]
    """
    return str(count).rstrip("0") == "1"
