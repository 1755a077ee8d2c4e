"""Main memory: how much there is, large tensors in large pages, and a word before one that does not fit.

The system hands memory out page by page when it is first written to, which for pages of 4 KiB takes many times as long
as the writing. NumPy asks for pages of 2 MiB, torch does not; so NumPy is asked.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torchtangent.notice import dtype_name

_PAGE = os.sysconf("SC_PAGE_SIZE")
_LARGE = 1 << 22  # bytes from which on NumPy asks
_WORTH = 1 << 30  # bytes from which on it is worth a look whether there are so many
_CONTAINERS = (  # files that say how much a container may have and has, and the word for copies of files in it
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current", "inactive_file"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


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


def main_memory() -> int:
    """Bytes of main memory: the machine's or, in a container that is given less, the container's."""
    return min([_PAGE * os.sysconf("SC_PHYS_PAGES"), *(limit for limit, *_ in _containers())])


def _free(device: torch.device) -> int:
    """Bytes that may still be allocated."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return min([_available(), *(limit - _used(now, files) for limit, now, files in _containers())])


def _available() -> int:
    """Bytes of the machine that are free, or would be made free."""
    about = Path("/proc/meminfo")
    lines = about.read_text().splitlines() if about.exists() else ()
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), main_memory())


def _containers() -> Iterator[tuple[int, Path, str]]:
    """The bytes that a container may have, and the files that tell how many it has."""
    for folder, most, now, files in _CONTAINERS:
        limit = folder / most
        if limit.exists() and (said := limit.read_text().strip()) != "max":
            yield int(said), folder / now, files


def _used(now: Path, files: str) -> int:
    """The bytes that a container has, without copies of files, which make room if needed."""
    kinds = now.parent / "memory.stat"
    if not now.exists() or not kinds.exists():
        return 0
    lines = (line.split() for line in kinds.read_text().splitlines())
    return int(now.read_text()) - next((int(size) for kind, size in lines if kind == files), 0)


def _numbers(make: Callable[..., np.ndarray], size: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    try:
        return torch.from_numpy(make(size, np.uint8)).view(dtype).view(shape)
    except MemoryError as error:
        raise torch.OutOfMemoryError(f"can't allocate memory: {size:,} bytes") from error
