"""Where numbers come from: the code, the versions, the machine. No names of people, hosts or folders."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch


def digest(data: Any) -> str:
    """A short hash of plain data, the same on every machine."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def checksum(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@cache
def commit() -> str | None:
    """The commit of the checkout this code runs from, `+` if files differ from it.

    Outside of one, what the environment variable `TORCHTANGENT_COMMIT` says, for machines that get a copy; or None.
    """

    def git(*arguments: str) -> str | None:
        here = Path(__file__).parent
        try:
            done = subprocess.run(
                ["git", *arguments], cwd=here, capture_output=True, text=True, timeout=10, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    if git("ls-files", "--error-unmatch", __file__) is None:
        return os.environ.get("TORCHTANGENT_COMMIT") or None
    sha = git("rev-parse", "--short=12", "HEAD")
    return sha and sha + ("+" if git("status", "--porcelain", "--", ".") else "")


@cache
def processor() -> str:
    """The processor's name as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def describe(device: torch.device, jobs: int = 1) -> dict[str, Any]:
    """Versions, device and time, for the record beside an array; `jobs` parts at most shared the device."""
    accelerator = torch.cuda.get_device_name(device) if device.type == "cuda" else processor()
    return {
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "device": f"{device.type}: {accelerator}" + (f", shared by up to {jobs} parts" if jobs > 1 else ""),
        "threads": torch.get_num_threads(),
        "finished": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
    }
