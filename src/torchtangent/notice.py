"""Messages to users: warnings that point at a line of their own code, names, errors for unknown choices."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable

import torch

_said: set[tuple[str, str, int]] = set()  # warnings, with the file and line that they pointed at
_LIBRARIES = ("torchtangent", "torch", "contextlib", "functools", "jaxtyping", "beartype")


class TangentWarning(UserWarning):
    """The category of this library's warnings, by which to filter them."""


class NotFinite(ValueError):
    """Outputs, gradients or sums of their products have NaN or infinity."""


class Overflow(NotFinite):
    """Gradients are finite, but sums of their products exceed the range of their dtype."""


def warn(message: str, category: type[Warning] = TangentWarning) -> None:
    """`warnings.warn` that points at the nearest frame outside this library and those that call back into it."""
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
    """The action of Python's filters. Repetitions are counted here, as `catch_warnings` resets Python's own count."""
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
    """Names for a sentence: the first few, and how many more.

    >>> listed(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype without `torch.`.

    >>> dtype_name(torch.float32)
    'float32'
    """
    return str(dtype).removeprefix("torch.")


def check_choice(what: str, value: object, valid: Iterable[str]) -> None:
    """Refuse a value that is not among the valid ones; the error names them."""
    if value not in (known := tuple(valid)):
        raise ValueError(f"{what}={value!r} is not known. Choose one of {', '.join(map(repr, known))}.")
