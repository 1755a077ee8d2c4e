"""How much memory there is to work with, and what happens when it runs out."""

from __future__ import annotations

import os

import torch

from torchtangent.notice import warn

MEMORY = "TORCHTANGENT_MEMORY"  # the environment's word on how much of the machine's memory is ours
FRACTION = {"cpu": 0.5, "cuda": 0.9}  # of the machine's memory, if neither user nor environment say how much


def default_budget(device: torch.device) -> int:
    """Bytes: a fixed fraction of the machine's, or what the environment says."""
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
    else:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    said = os.environ.get(MEMORY)
    try:
        fraction = FRACTION.get(device.type, 0.5) if said is None else float(said)
    except ValueError:
        fraction = 0.0
    if not 0 < fraction <= 1:
        raise ValueError(f"{MEMORY}={said} in the environment is not a fraction of the memory, such as 0.4.")
    return int(fraction * total)


def halve(error: RuntimeError, size: int, what: str) -> int:
    """Half the size after an out-of-memory error, and say so; other errors go on."""
    lack = isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
    if not lack or size <= 1:
        raise error
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    warn(f"Memory ran out with {size} {what}; going on with {size // 2}.")
    return size // 2
