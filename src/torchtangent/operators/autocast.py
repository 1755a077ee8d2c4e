"""Numbers as precise as they were given, whatever the user switched on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

Function = TypeVar("Function", bound=Callable[..., Any])


def without_autocast(function: Function) -> Function:
    """The function with autocast off inside of it.

    To look whether it is on takes a quarter of a microsecond, to enter a context several: that is done where it is.
    """
    is_on = torch.is_autocast_enabled

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not (is_on("cpu") or is_on("cuda")):
            return function(*args, **kwargs)
        with torch.autocast("cpu" if is_on("cpu") else "cuda", enabled=False):
            return call(*args, **kwargs)

    return cast(Function, call)
