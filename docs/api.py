"""Writes docs/api.md, every public name in a line: `python docs/api.py`. A test tells when the page is behind."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torchtangent as tt
from torchtangent import linear, operators, probe

PAGE = Path(__file__).with_name("api.md")
SECTIONS = {  # title → module, name in front of its names
    "Functions and classes": (tt, "tt"),
    "Networks made by tt.linearize and tt.lazy": (linear, "torchtangent.linear"),
    "Operators": (operators, "tt.operators"),
    "Spectra": (tt.spectrum, "tt.spectrum"),
    "Alignment": (tt.alignment, "tt.alignment"),
    "Predictions of kernels": (tt.predict, "tt.predict"),
    "Training in function space": (tt.dual, "tt.dual"),
    "Random features": (tt.sketch, "tt.sketch"),
    "Complexity": (tt.complexity, "tt.complexity"),
    "Anisotropy": (tt.anisotropy, "tt.anisotropy"),
    "Optimizers": (tt.optim, "tt.optim"),
}
METHODS = (  # classes that are listed with all of theirs
    tt.Jacobian,
    tt.Operator,
    tt.TangentProbe,
    linear.Lazy,
    linear.Linearized,
    tt.spectrum.Density,
    tt.spectrum.Eigenpairs,
    tt.dual.Fit,
    tt.dual.SGD,
    tt.sketch.Features,
    tt.complexity.Trajectory,
    tt.optim.EKFAC,
    operators.Basis,
    operators.Space,
)
SYMBOLS = {"__call__": "(…)", "__matmul__": "@"}  # methods that have no name


def page() -> str:
    """The whole page."""
    lines = [
        "# All public names",
        "",
        "Made by `python docs/api.py` from the docstrings; `help(name)` has all of each, with arguments and examples.",
    ]
    for title, (module, prefix) in SECTIONS.items():
        lines += ["", f"## {title}", "", "| name | what it is |", "|---|---|"]
        for name in sorted(module.__all__, key=str.lower):
            thing = getattr(module, name)
            if callable(thing) and (module is tt or thing is not getattr(tt, name, None)):
                lines += [f"| `{prefix}.{name}` | {summary(thing)} |", *methods(thing)]
    lines += ["", "## Measures of the probe", "", "| key | what it is |", "|---|---|"]
    ours = {name: one.of for name, one in probe.MEASURES.items() if one.of.__module__.startswith("torchtangent.")}
    lines += [f"| `{name}` | {summary(measure)} |" for name, measure in sorted(ours.items())]
    return "\n".join(lines) + "\n"


def methods(thing: Any) -> Iterator[str]:
    """A line for each public method and property of the classes that one works with."""
    if thing not in METHODS:
        return
    ours = [vars(kind) for kind in inspect.getmro(thing) if kind.__module__.startswith("torchtangent")]
    for name, value in {name: value for own in reversed(ours) for name, value in own.items()}.items():
        if name in SYMBOLS or (not name.startswith("_") and (callable(value) or isinstance(value, property))):
            said = SYMBOLS.get(name) or f".{name}{'' if isinstance(value, property) else '()'}"
            if inspect.getdoc(value):
                yield f"| · `{said}` | {summary(value)} |"


def summary(thing: Any) -> str:
    """The first sentence of a docstring."""
    text = " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())
    return re.split(r"(?<=[.])\s(?=[A-Z`])", text)[0].replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
