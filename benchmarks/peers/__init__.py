"""One adapter per library. An adapter is a module with `DISTRIBUTION` (its name on PyPI) and `BUILDERS`."""

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor

from benchmarks.cases import Problem
from benchmarks.machine import memory_bytes

LIBRARIES = ("torchtangent", "nngeometry", "curvlinops", "backpack", "torch_func")
QUANTITIES = ("diagonal", "kfac", "ekfac", "block", "implicit")
DAMPING = 1e-3
TOLERANCE = 1e-3  # of conjugate gradients: relative residual
BATCHES = (None, 256, 128, 64, 32, 16, 8)  # sizes that most libraries try, from all samples at once on


@dataclass(frozen=True)
class Built:
    """A Fisher matrix as a library represents it: what it can do, on vectors in its own format.

    `pack` makes the library's vector from a flat tensor (parameters in `named_parameters()` order) and
    `unpack` goes back; both stay outside the measured time.
    """

    mv: Callable[[Any], Any] | None = None
    solve: Callable[[Any], Any] | None = None
    trace: Callable[[], Any] | None = None
    diag: Callable[[], Tensor] | None = None
    pack: Callable[[Tensor], Any] = lambda flat: flat
    unpack: Callable[[Any], Tensor] = lambda v: v


@dataclass(frozen=True)
class Builder:
    """`prepare(problem)` does what is not measured and returns the function that builds the matrix."""

    prepare: Callable[..., Callable[[], Built]]
    batches: tuple[int | None, ...] = (None,)  # batch sizes to try: the fastest is the library's best
    options: tuple[dict[str, Any], ...] = field(default=({},))  # other settings to try
    lazy: bool = False  # nothing is computed before the first product
    differs: str = ""  # where the library's convention is not ours, so that values are not comparable


def load(library: str) -> tuple[dict[str, Builder], str]:
    """The builders of a library and its version.

    Raises:
        ImportError: when the library is not installed or does not import; the message is the reason.
    """
    adapter = importlib.import_module(f"benchmarks.peers.{library}")
    try:
        found = version(adapter.DISTRIBUTION)
    except PackageNotFoundError as error:
        raise ImportError(f"{adapter.DISTRIBUTION} is not installed") from error
    return adapter.BUILDERS, found


def load_all(libraries: Iterable[str]) -> tuple[dict[str, dict[str, Builder]], dict[str, str]]:
    """The builders of the libraries that import, and for the others the reason, which is printed."""
    found, missing = {}, {}
    for library in libraries:
        try:
            found[library] = load(library)[0]
        except Exception as error:
            missing[library] = reason(error)
            print(f"{library} is not measured: {missing[library]}")
    return found, missing


def reason(error: Exception) -> str:
    """What went wrong, in a line."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def diagonal_of(values: Tensor) -> Built:
    """A diagonal matrix for libraries that return its entries and leave the algebra to the user."""
    return Built(
        mv=lambda v: values * v,
        solve=lambda v: v / (values + DAMPING),
        trace=lambda: values.sum(),
        diag=lambda: values,
    )


def flatten(tensors: Any) -> Tensor:
    """Tensors in parameter order as one flat vector."""
    return torch.cat([t.reshape(-1) for t in tensors])


def splitter(problem: Problem) -> Callable[[Tensor], list[Tensor]]:
    """The inverse of `flatten` for the problem's parameters."""
    shapes = [p.shape for p in problem.model.parameters()]
    sizes = [s.numel() for s in shapes]
    return lambda flat: [t.view(s) for t, s in zip(flat.split(sizes), shapes, strict=True)]


def refuse_large_blocks(problem: Problem, copies: int) -> None:
    """Keeps a library that forms dense blocks, and copies of the largest, from taking the machine down.

    Raises:
        MemoryError: when they would take most of the machine's memory.
    """
    sizes = [sum(p.numel() for p in m.parameters(recurse=False)) for m in problem.model.modules()]
    needed = 4 * (sum(n**2 for n in sizes) + copies * max(sizes) ** 2)
    if needed > 0.8 * memory_bytes():
        raise MemoryError(f"dense blocks would take {needed / 2**30:,.0f} GiB")
