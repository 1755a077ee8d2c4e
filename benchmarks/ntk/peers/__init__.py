"""The libraries and the settings of each that are tried; one adapter each, in the module of its name.

An adapter has `DISTRIBUTIONS` (whose versions to report), `prepare(data, **setting)`, which does what is not
measured and returns the function that computes the kernel, and `unpack`, which makes an array (N, N, C, C)
of what that returns. `data` is what `Case.save` wrote.
"""

import sys
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

Setting = dict[str, Any]


@dataclass(frozen=True)
class Library:
    """Settings to try, the fastest is the library's best; `python` is the interpreter that has the library."""

    title: str
    settings: tuple[Setting, ...] = ({},)
    python: str = sys.executable


def _neural_tangents() -> tuple[Setting, ...]:
    """Each implementation, whole and in tiles, and without vmap; what takes too long is given up early."""
    ways = ("STRUCTURED_DERIVATIVES", "JACOBIAN_CONTRACTION")
    tiled = [
        {"implementation": way, "vmap_axes": 0, "batch": batch} for way, batch in product(ways, (None, 500, 100, 24))
    ]
    others = [{"implementation": way, "vmap_axes": 0, "batch": None} for way in ("AUTO", "NTK_VECTOR_PRODUCTS")]
    return (*tiled, *others, *({"implementation": way, "vmap_axes": None, "batch": None} for way in ways))


LIBRARIES = {
    "torchtangent": Library("torchtangent"),
    "torch_func": Library("torch.func", tuple({"batch": n} for n in (None, 256, 64, 16, 4))),
    "nngeometry": Library(
        "nngeometry",
        tuple({"batch": n, "conv": conv} for conv, n in product(("unfold", "conv"), (None, 500, 100, 24))),
    ),
    "neural_tangents": Library(
        "neural-tangents",
        _neural_tangents(),
        python=str(Path(__file__).parents[3] / ".bench-nt-venv/bin/python"),
    ),
}
OURS = "torchtangent"
