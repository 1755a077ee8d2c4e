"""How far training has come, told by its loss: lazy and rich training are compared where they have come equally far."""

from __future__ import annotations

FACTOR = 0.96
"""From one level of the loss to the next."""


class Progress:
    """Says when the training loss first falls to the next of the levels ℓ₀·0.96ᵏ.

    Args:
        start: ℓ₀, the loss of the zero function: ln 10 for ten classes, ln 2 for two.
        smoothing: γ of the running mean ℓ ← γℓ + (1 − γ)·(loss of a batch), which begins at ℓ₀; with 0 the losses of
            batches count as they are.

    Attributes:
        passed: How many levels were passed.

    >>> progress = Progress(1.0)
    >>> [progress.reached(loss) for loss in (0.97, 0.95, 0.99, 0.9)], progress.passed
    ([False, True, False, True], 2)
    """

    def __init__(self, start: float, smoothing: float = 0.0) -> None:
        self._start = self._loss = start
        self._smoothing = smoothing
        self.passed = 0

    @property
    def level(self) -> float:
        """The level that was passed last; ℓ₀ before the first."""
        return self._start * FACTOR**self.passed

    def reached(self, loss: float) -> bool:
        """Take the loss of a batch into account; whether it brought training to another level, or past several."""
        self._loss = self._smoothing * self._loss + (1 - self._smoothing) * loss
        before = self.passed
        while 0 < self._loss <= self._start * FACTOR ** (self.passed + 1):
            self.passed += 1
        return self.passed > before
