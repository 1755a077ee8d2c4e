"""Computing in the dtype of the operands, even where the user has switched on autocast."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar, cast

import torch

Function = TypeVar("Function", bound=Callable[..., Any])


@contextmanager
def no_autocast() -> Iterator[None]:
    """A context in which products have the dtype of their operands."""
    on = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    if not on:
        yield
        return
    with ExitStack() as stack:
        for kind in on:
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def without_autocast(function: Function) -> Function:
    """The function with autocast switched off inside.

    Entering a context takes several microseconds, asking whether autocast is on a quarter of one: so ask first.
    """
    is_on = torch.is_autocast_enabled

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not (is_on("cpu") or is_on("cuda")):
            return function(*args, **kwargs)
        with no_autocast():
            return function(*args, **kwargs)

    return cast(Function, call)
