"""The origin of results: code, versions, machine; but no names of people, hosts or folders."""

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
from functools import cache, partial
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec, resolve_name
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from torchtangent import __version__


def digest(data: Any) -> str:
    """A short hash of plain data, the same on every machine."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


_LAB = "torchtangent.lab"
_MACHINERY = {f"{_LAB}.{name}" for name in ("claims", "context", "rules", "runner", "study", "style")}
"""Modules of the lab that recipes import, but that do not compute arrays."""


def sources(run: Callable[..., Any]) -> dict[str, str]:
    """The source code of a part: its module, and all modules of the same study and of the lab that this one uses.

    For a `functools.partial`, the arguments are part of it, too.
    """
    found: dict[str, ModuleType] = {}
    functions, left, given = [run], list[ModuleType](), list[str]()
    for function in functions:  # which grows
        if isinstance(function, partial):
            values = [*function.args, *function.keywords.values()]
            functions += [function.func, *filter(callable, values)]
            given += [*function.keywords, *(getattr(value, "__qualname__", repr(value)) for value in values)]
        elif module := inspect.getmodule(function):
            left.append(module)
    while left:
        module = left.pop()
        if module.__name__ not in found:
            found[module.__name__] = module
            left += [m for m in _imported(module) if _study_of(m) in (_study_of(module), _LAB) and _study_of(m)]
    code = {name: _source(module) for name, module in sorted(found.items())}
    return code | ({"arguments": repr(given)} if given else {})


def _source(module: ModuleType) -> str:
    try:
        return inspect.getsource(module)
    except OSError:  # of an empty file
        return ""


def _imported(module: ModuleType) -> Iterator[ModuleType]:
    """The modules named in the import statements of a module."""
    for name in _names(_source(module), module.__package__ or ""):
        if found := sys.modules.get(name) or _unread(name, module):
            yield found


@cache
def _names(source: str, package: str) -> list[str]:
    """The names in import statements: those of modules, or of something in them."""
    names: dict[str, None] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= dict.fromkeys(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package)
            names |= dict.fromkeys([base, *(f"{base}.{alias.name}" for alias in node.names)])
    return list(names)


def _unread(name: str, user: ModuleType) -> ModuleType | None:
    """A module of the same package or folder that has not been imported: it is not run, but its code can be read."""
    if name.split(".")[0] != user.__name__.split(".")[0] and (user.__package__ or "." in name):
        return None
    spec = _spec(name)
    return module_from_spec(spec) if spec and (spec.origin or "").endswith(".py") else None


def _spec(name: str) -> ModuleSpec | None:
    """The spec of a module, found without importing its parent packages."""
    if name in sys.modules:
        return sys.modules[name].__spec__
    package = name.rpartition(".")[0]
    if not package:
        return PathFinder.find_spec(name)
    inside = _spec(package)
    folders = inside.submodule_search_locations if inside else None
    return PathFinder.find_spec(name, folders) if folders else None


def _study_of(module: ModuleType) -> str:
    """The package of the study that a module belongs to, or else its own package or folder; for our own, the lab."""
    inside, _, rest = module.__name__.partition(".recipes.")
    if rest:
        return f"{inside}.recipes.{rest.split('.')[0]}"
    top = module.__name__.split(".")[0]
    if top == "torchtangent":
        return _LAB if module.__name__.startswith(f"{_LAB}.") and module.__name__ not in _MACHINERY else ""
    file = getattr(module, "__file__", None)  # none of what is built into Python
    return top if module.__package__ else "" if file is None else str(Path(file).parent)


def checksum(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@cache
def commit() -> str | None:
    """The commit of the checkout that this code runs from, with `+` if files differ from it.

    Outside a checkout, the value of the environment variable `TORCHTANGENT_COMMIT`, or None.
    """

    def git(*arguments: str) -> str | None:
        here = Path(__file__).parents[1]
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
    """The name of the processor, according to the system."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def describe(device: torch.device, jobs: int = 1) -> dict[str, Any]:
    """Versions, device and time, for the record of a part; up to `jobs` parts shared the device."""
    accelerator = torch.cuda.get_device_name(device) if device.type == "cuda" else processor()
    return {
        "commit": commit(),
        "torchtangent": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "device": f"{device.type}: {accelerator}" + (f", shared by up to {jobs} parts" if jobs > 1 else ""),
        "threads": torch.get_num_threads(),
        "finished": datetime.now(UTC).isoformat(" ", "milliseconds").replace("+00:00", " UTC"),
    }
