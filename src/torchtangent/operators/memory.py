"""Large tensors in main memory, in large pages.

The system hands memory out page by page when it is first written to, which for pages of 4 KiB takes many times as long
as the writing. NumPy asks for pages of 2 MiB, torch does not; so NumPy is asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

_LARGE = 1 << 22  # bytes from which on NumPy asks


def empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """`torch.empty`, with large pages."""
    size = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or size < _LARGE:
        return torch.empty(shape, dtype=dtype, device=device)
    return _numbers(np.empty, size, shape, dtype)


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """`torch.zeros`, with large pages, which the system gives out as zeros."""
    size = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or size < _LARGE:
        return torch.zeros(shape, dtype=dtype, device=device)
    return _numbers(np.zeros, size, shape, dtype)


def _numbers(make: Callable[..., np.ndarray], size: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    try:
        return torch.from_numpy(make(size, np.uint8)).view(dtype).view(shape)
    except MemoryError as error:
        raise torch.OutOfMemoryError(f"can't allocate memory: {size:,} bytes") from error
