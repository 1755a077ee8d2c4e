"""One folder a paper. A folder with a `recipe.py` that defines `STUDY` is found, and run, without more.

So are studies of other packages, which name theirs as an entry point of the group `torchtangent.studies`.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from importlib.metadata import entry_points

from torchtangent.lab.study import Study
from torchtangent.notice import warn


@cache
def registry() -> dict[str, Study]:
    """Every study, by key, in alphabetical order."""
    found: dict[str, Study] = {}
    for package in sorted(pkgutil.iter_modules(__path__), key=lambda module: module.name):
        if package.ispkg:
            found[package.name] = importlib.import_module(f"{__name__}.{package.name}.recipe").STUDY
    for point in entry_points(group="torchtangent.studies"):
        try:
            found[point.value] = point.load()
        except Exception as error:  # of someone else: the other studies are none the worse for it
            warn(f"The study {point.value} cannot be loaded and is left out: {type(error).__name__}: {error}")
    studies: dict[str, Study] = {}
    for name, study in found.items():
        if studies.setdefault(study.key, study) is not study:
            raise ValueError(f"Two studies have the key {study.key!r}; that of {name} needs another.")
    return studies
