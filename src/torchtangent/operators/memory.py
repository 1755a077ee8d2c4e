"""Large tensors in main memory, in large pages; and a word before one that does not fit.

The system hands memory out page by page when it is first written to, which for pages of 4 KiB takes many times as long
as the writing. NumPy asks for pages of 2 MiB, torch does not; so NumPy is asked.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torchtangent.notice import dtype_name

_LARGE = 1 << 22  # bytes from which on NumPy asks
_WORTH = 1 << 30  # bytes from which on it is worth a look whether there are so many


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


def require(what: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, advice: str) -> None:
    """Refuse what is larger than the memory that is free: on a CPU the system would kill the process without a word."""
    size = math.prod(shape) * dtype.itemsize
    if size >= _WORTH and size > (free := _free(device)):
        sizes, numbers = " × ".join(f"{n:,}" for n in shape), dtype_name(dtype)
        wanted, there = (f"{number / 2**30:.1f} GiB" for number in (size, free))
        raise MemoryError(f"{what} ({sizes}, {numbers}) takes {wanted}, and {there} are free on {device}. {advice}")


def _free(device: torch.device) -> int:
    """Bytes that may still be allocated."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    about = Path("/proc/meminfo")
    if about.exists():
        lines = (line.split() for line in about.read_text().splitlines())
        for name, number, *_ in lines:
            if name == "MemAvailable:":
                return int(number) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _numbers(make: Callable[..., np.ndarray], size: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    try:
        return torch.from_numpy(make(size, np.uint8)).view(dtype).view(shape)
    except MemoryError as error:
        raise torch.OutOfMemoryError(f"can't allocate memory: {size:,} bytes") from error
