"""Numbers as precise as they were given, whatever the user switched on."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar, cast

import torch

Function = TypeVar("Function", bound=Callable[..., Any])


@contextmanager
def no_autocast() -> Iterator[None]:
    """Inside of it products are in the dtype of what is multiplied."""
    with ExitStack() as stack:
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def without_autocast(function: Function) -> Function:
    """The function with autocast off inside of it.

    To look whether it is on takes a quarter of a microsecond, to enter a context several: that is done where it is.
    """
    is_on = torch.is_autocast_enabled

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not (is_on("cpu") or is_on("cuda")):
            return function(*args, **kwargs)
        with no_autocast():
            return function(*args, **kwargs)

    return cast(Function, call)
