"""When to measure: a set of steps that is fixed in advance."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from typing import Any, SupportsIndex

Steps = str | float | SupportsIndex | Iterable[float | SupportsIndex] | Callable[[int], bool]

_UNIT, _BASE = 5, 1.15


def schedule(steps: Steps = "log") -> Callable[[int], bool]:
    """A function that tells whether to measure at a step.

    Args:
        steps: "log", which is 0 and 5·⌊1.15ᵏ⌋ for k = 0, 1, …; a number n for every n-th step; a list of steps; or a
            function of the step, which is returned.

    Reference:
        The steps are those of George, Deep networks training and generalization, 2023, figure 6.2.

    >>> [step for step in range(58) if schedule("log")(step)]
    [0, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50]
    """
    if callable(steps):
        return steps
    if isinstance(steps, str):
        if steps != "log":
            raise ValueError(f"steps={steps!r} is not 'log', a number, the steps themselves or a function of the step.")
        return _logarithmic
    if isinstance(steps, Iterable):
        chosen = frozenset(map(_whole, steps))
        if not chosen or min(chosen) < 0:
            raise ValueError(f"steps should be some numbers from 0 on, got {sorted(chosen)}.")
        return chosen.__contains__
    every = _whole(steps)
    if every < 1:
        raise ValueError(f"steps={every}: a number n stands for every n-th step and is at least 1.")
    return lambda step: step % every == 0


def _whole(step: Any) -> int:
    try:
        return operator.index(step)
    except TypeError:
        raise TypeError(f"steps are counted in whole numbers, got {step!r}.") from None


def _logarithmic(step: int) -> bool:
    m, rest = divmod(step, _UNIT)
    if rest or m < 1:
        return step == 0
    k = math.ceil(math.log(m, _BASE))  # the first with 1.15ᵏ ≥ m
    return math.floor(_BASE**k) == m
