"""Resident memory of this process. Needs nothing but Python, so that every environment can import it."""

import contextlib
import resource
from pathlib import Path

_STATUS = Path("/proc/self/status")


def resident() -> float:
    """Resident megabytes now; the peak so far where the system does not say."""
    return _read("VmRSS")


def high_water() -> float:
    """Peak resident megabytes so far, or since `forget_peak`.

    Linux hands `ru_maxrss` down from the process that started this one, so the kernel's own mark is read
    where there is one.
    """
    return _read("VmHWM")


def forget_peak() -> None:
    """Sets the peak to what is resident now, where the system allows it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _read(key: str) -> float:
    if _STATUS.exists():
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(key))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
