"""What is said to users: warnings that point at a line of their own code, names in sentences, wrong choices."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable

_said: set[tuple[str, str, int]] = set()  # warnings, and the lines that they were about
_LIBRARIES = ("torchtangent", "torch", "contextlib", "functools", "jaxtyping", "beartype")


class TangentWarning(UserWarning):
    """The category of every warning of this library, to be filtered by."""


def warn(message: str, category: type[Warning] = TangentWarning) -> None:
    """`warnings.warn` with the first frame that is not in this library, or in one that calls it back."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in _LIBRARIES:
        level, frame = level + 1, frame.f_back
    said = message, frame.f_code.co_filename, frame.f_lineno
    action = _action(message, category, frame.f_globals.get("__name__", ""), frame.f_lineno)
    if said in _said and action in ("default", "module", "once"):
        return
    if action != "ignore":
        _said.add(said)
    warnings.warn(message, category, stacklevel=level)


def _action(message: str, category: type[Warning], module: str, line: int) -> str:
    """What Python is to do. Where it is to say it once for a line, it forgets that wherever warnings are caught."""
    for action, text, kind, where, number in warnings.filters:
        if (
            issubclass(category, kind)
            and (text is None or text.match(message))
            and (where is None or where.match(module))
            and number in (0, line)
        ):
            return action
    return "default"


def listed(names: list[str], most: int = 6) -> str:
    """Names in a sentence, the first few of many.

    >>> listed(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def check_choice(what: str, value: object, valid: Iterable[str]) -> None:
    """Closed choices are strings, checked, with the valid ones named."""
    if value not in (known := tuple(valid)):
        raise ValueError(f"{what}={value!r} is not known. Choose one of {', '.join(map(repr, known))}.")
