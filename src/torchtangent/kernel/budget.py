"""How much memory a computation may use, and what happens when it runs out."""

from __future__ import annotations

import os

import torch

from torchtangent.notice import warn
from torchtangent.operators.memory import main_memory

MEMORY = "TORCHTANGENT_MEMORY"  # environment variable: the fraction of the machine's memory to use
FRACTION = {"cpu": 0.5, "cuda": 0.9}  # the fraction if neither the user nor the environment sets one


def default_budget(device: torch.device) -> int:
    """Bytes to stay within: a fixed fraction of the machine's memory, which the environment can set.

    By default, torchrun's processes on a machine share that of its main memory; what is set is for each of them.
    """
    cuda = device.type == "cuda"
    total = torch.cuda.get_device_properties(device).total_memory if cuda else main_memory()
    said = os.environ.get(MEMORY)
    try:
        fraction = FRACTION.get(device.type, 0.5) if said is None else float(said)
    except ValueError:
        fraction = 0.0
    if not 0 < fraction <= 1:
        raise ValueError(f"{MEMORY}={said} in the environment is not a fraction of the memory, such as 0.4.")
    processes = 1 if cuda or said is not None else int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    return int(fraction * total / processes)


def halve(error: RuntimeError, size: int, what: str) -> int:
    """Half the size after an out-of-memory error, with a warning; any other error is raised again."""
    out_of_memory = isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
    if not out_of_memory or size <= 1:
        raise error
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    warn(f"Memory ran out with {size} {what}; going on with {size // 2}.")
    return size // 2
