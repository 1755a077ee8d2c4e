"""Where numbers come from: the code, the versions, the machine. No names of people, hosts or folders."""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import cache
from importlib.util import resolve_name
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch


def digest(data: Any) -> str:
    """A short hash of plain data, the same on every machine."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def sources(run: Callable[..., Any]) -> dict[str, str]:
    """The code of a part: the module that it stands in, and those of the same study that this one uses."""
    found: dict[str, ModuleType] = {}
    first = inspect.getmodule(run)
    left = [] if first is None else [first]
    while left:
        module = left.pop()
        if module.__name__ not in found:
            found[module.__name__] = module
            left += [m for m in _imported(module) if _study_of(m) == _study_of(module) != ""]
    return {name: _source(module) for name, module in sorted(found.items())}


def _source(module: ModuleType) -> str:
    try:
        return inspect.getsource(module)
    except OSError:  # of an empty file
        return ""


def _imported(module: ModuleType) -> Iterator[ModuleType]:
    """The modules that a module's import statements name."""
    for node in ast.walk(ast.parse(_source(module))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), module.__package__ or "")
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        yield from (sys.modules[name] for name in names if name in sys.modules)


def _study_of(module: ModuleType) -> str:
    """The package of a study that a module belongs to, or else its own package or folder; none for this library."""
    inside, _, rest = module.__name__.partition(".recipes.")
    if rest:
        return f"{inside}.recipes.{rest.split('.')[0]}"
    top = module.__name__.split(".")[0]
    if top == "torchtangent":
        return ""
    file = getattr(module, "__file__", None)  # none of what is built into Python
    return top if module.__package__ else "" if file is None else str(Path(file).parent)


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
