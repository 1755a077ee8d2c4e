"""One folder a paper. A folder with a `recipe.py` that defines `STUDY` is found, and run, without more."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from torchtangent.lab.study import Study


@cache
def registry() -> dict[str, Study]:
    """Every study, by key, in alphabetical order."""
    studies = {}
    for package in sorted(pkgutil.iter_modules(__path__), key=lambda module: module.name):
        if package.ispkg:
            study = importlib.import_module(f"{__name__}.{package.name}.recipe").STUDY
            if study.key in studies:
                raise ValueError(f"Two studies have the key {study.key!r}; that of {package.name} needs another.")
            studies[study.key] = study
    return studies
