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
            study = importlib.import_module(f"{__name__}.{package.name}.recipe").STUDY
            found[study.key] = study
    for point in entry_points(group="torchtangent.studies"):
        try:
            study = point.load()
            if not isinstance(study, Study):
                raise TypeError(f"it is a {type(study).__name__}, not a Study")
            if found.setdefault(study.key, study) is not study:
                raise ValueError(f"another study has the key {study.key!r}, choose another")
        except Exception as error:  # of someone else: the other studies are none the worse for it
            warn(f"The study {point.value} cannot be loaded and is left out: {type(error).__name__}: {error}")
    return found
