"""One folder a paper. A folder with a `recipe.py` that defines `STUDY` is found, and run, without more.

So are studies of other packages, which name theirs as an entry point of the group `torchtangent.studies`. A study in a
file of one's own is there once `load` has read it.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

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


_files: dict[str, str] = {}  # the names of files that studies were loaded from, by key


def load(path: Path) -> Study:
    """The study that a file defines as `STUDY`; from now on the registry has it.

    The file is imported as Python would run it: modules beside it are found.

    Raises:
        ValueError: There is no such file, it cannot be imported, it defines no study, or another one has its key.
    """
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    study = getattr(_module(path.resolve()), "STUDY", None)
    if not isinstance(study, Study):
        raise ValueError(f"{path} defines no study: it should say STUDY = Study(...)")
    if registry().setdefault(study.key, study) is not study:
        raise ValueError(f"another study has the key {study.key!r}: choose another for that in {path}")
    _files[study.key] = path.name
    return study


def _module(path: Path) -> ModuleType:
    """A file as a module that other processes, which run parts of it, can import, too."""
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(path.stem)
    except (Exception, SystemExit) as error:
        said = f"{path.name} cannot be loaded: {type(error).__name__}: {error}"
        raise ValueError(f"{said} (python {path.name} shows where)") from error
    if Path(getattr(module, "__file__", None) or "").resolve() != path:
        raise ValueError(f"there is another module {path.stem!r}, which Python finds first: rename {path.name}")
    return module


def called(study: Study) -> str:
    """What a study is called on the command line: its key, or the file that it was loaded from."""
    return _files.get(study.key, study.key)
