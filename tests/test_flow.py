"""The house has one direction: nothing imports to its right, and the library needs little."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import torchtangent

ROOT = Path(torchtangent.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

# A room may import from itself and from rooms of a smaller number, never from another of its own.
ORDER = {
    "axes": 0,
    "notice": 0,
    "progress": 0,
    "operators": 1,
    "jacobians": 2,
    "kernel": 3,
    "curvature": 3,
    "spectrum": 4,
    "alignment": 5,
    "linear": 5,
    "anisotropy": 5,
    "complexity": 5,
    "optim": 5,
    "probe": 6,
    "": 7,  # torchtangent/__init__.py: the public names
    "lab": 8,
    "__main__": 9,
}
LIBRARY = {"torch", "numpy", "safetensors", "jaxtyping", "torchtangent"}
LAZY = {"scipy"}  # only where it is used, or for a type checker


def room(path: Path) -> str:
    """The first part of a file's place in the package; empty for the package's own `__init__`."""
    first = path.relative_to(ROOT).parts[0]
    return "" if first == "__init__.py" else first.removesuffix(".py")


def imports(path: Path) -> Iterator[tuple[str, int, bool]]:
    """Every imported module by its full name, its line, and whether importing the file leaves it alone."""

    def walk(node: ast.AST, inside: bool) -> Iterator[tuple[str, int, bool]]:
        for child in ast.iter_child_nodes(node):
            function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            for_types = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            deeper = inside or function or for_types
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield alias.name, child.lineno, inside
            elif isinstance(child, ast.ImportFrom):
                base = child.module or ""
                if child.level:
                    parents = path.relative_to(ROOT.parent).with_suffix("").parts[: -child.level]
                    base = ".".join([*parents, *([base] if base else [])])
                yield base, child.lineno, inside
                if base == "torchtangent":
                    for alias in child.names:
                        yield f"torchtangent.{alias.name}", child.lineno, inside
            else:
                yield from walk(child, deeper)

    yield from walk(ast.parse(path.read_text(encoding="utf-8")), False)


@pytest.mark.parametrize("path", FILES, ids=[str(f.relative_to(ROOT)) for f in FILES])
def test_imports_go_one_way(path: Path) -> None:
    own = room(path)
    assert own in ORDER, f"{own} has no place in the order of the house: give it one here and in the design"
    for name, line, _ in imports(path):
        parts = name.split(".")
        if parts[0] != "torchtangent" or len(parts) == 1:
            continue
        other = parts[1]
        if other not in ORDER:  # a public name, imported from the package itself
            other = ""
        if own == other:
            continue
        assert ORDER[other] < ORDER[own], f"line {line}: {own or 'the package'} imports {name}, to its right"


@pytest.mark.parametrize("path", [f for f in FILES if room(f) != "lab"], ids=lambda path: str(path.relative_to(ROOT)))
def test_the_library_needs_little(path: Path) -> None:
    """Outside the lab: torch, numpy, safetensors, jaxtyping; scipy inside the functions that need it."""
    for name, line, inside in imports(path):
        package = name.split(".")[0]
        if package in sys.stdlib_module_names or package in LIBRARY:
            continue
        assert package in LAZY, f"line {line}: {name} is no dependency of the library"
        assert inside, f"line {line}: import {name} inside the function that needs it"


def test_the_reader_of_imports_sees_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every form of an import is read, or the tests above could not fail."""
    package = tmp_path / "torchtangent"
    (package / "operators").mkdir(parents=True)
    file = package / "operators" / "dense.py"
    file.write_text(
        "import torchtangent.lab.data\nfrom ..curvature import fisher\nfrom torchtangent import kernel\n"
        "def f():\n    import scipy.sparse\n",
        encoding="utf-8",
    )
    monkeypatch.setattr(sys.modules[__name__], "ROOT", package)
    found = {(name, inside) for name, _, inside in imports(file)}
    assert ("torchtangent.lab.data", False) in found
    assert ("torchtangent.curvature", False) in found
    assert ("torchtangent.kernel", False) in found
    assert ("scipy.sparse", True) in found


def test_the_files_named_in_the_guide_are_there() -> None:
    guide = (ROOT.parents[1] / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"`(\w+\.py)`", guide)) - {"mine.py"}
    assert named <= {
        path.name
        for folder in ("src", "tests", "docs", "benchmarks")
        for path in (ROOT.parents[1] / folder).rglob("*.py")
    }
