"""The machine that figures came from."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

THREADS = 2

PACKAGES = (
    "torch",
    "numpy",
    "torchtangent",
    "nngeometry",
    "curvlinops-for-pytorch",
    "backpack-for-pytorch",
    "opt-einsum",
)


def describe() -> dict[str, Any]:
    """Processor, memory, threads, load at the start, and versions."""
    return {
        "cpu": _processor(),
        "cores": os.cpu_count(),
        "threads": THREADS,
        "memory_gib": round(memory_bytes() / 2**30, 1),
        "load_at_start": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "blas": "mkl" if torch.backends.mkl.is_available() else "other",
        "capability": torch.backends.cpu.get_cpu_capability(),
    }


def memory_bytes() -> int:
    """The machine's physical memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        if names:
            return names[0]
    return platform.processor()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
