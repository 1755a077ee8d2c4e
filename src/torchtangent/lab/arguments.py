"""What a user types on the command line: the arguments that commands share, and the checks of them."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import torch
import typer

from torchtangent.lab import recipes
from torchtangent.lab.console import say
from torchtangent.lab.results import Run, find_runs
from torchtangent.lab.study import Study


class ScaleOption(StrEnum):
    """The scales that a user can choose."""

    smoke = "smoke"
    paper = "paper"


def folders(paths: list[Path] | None) -> list[Path] | None:
    """Refuse what is no folder, and say where its name belongs."""
    for path in paths or []:
        if path.is_dir():
            continue
        if path.suffix == ".py":
            raise typer.BadParameter(f"{path} is the file of a study, not a folder with runs: say --recipe {path}")
        if str(path) in recipes.registry():
            raise typer.BadParameter(f"{path} is a study, not a folder with runs: name one, such as runs/{path}")
        if path.exists():
            raise typer.BadParameter(f"{path} is a file, not a folder with runs")
        raise typer.BadParameter(f"there is no folder {path}. Runs are where `torchtangent reproduce --out` put them")
    return paths


StudyArgument = Annotated[
    str | None,
    typer.Argument(metavar="STUDY", help="A study, such as george2023, or a file with one of your own: mine.py."),
]
RecipeOption = Annotated[
    list[Path] | None,
    typer.Option("--recipe", metavar="FILE", help="A file with a study of your own; may be given several times."),
]


def studies(key: str | None) -> list[Study]:
    """One study, or all of them."""
    every = recipes.registry()
    if key is None:
        return list(every.values())
    if key.endswith(".py"):
        return loaded([Path(key)])
    if key not in every:
        own = f"Is it the file {key}.py?" if Path(f"{key}.py").is_file() else "One of your own is named by its file"
        raise typer.BadParameter(f"no study {key!r}; there are: {', '.join(every)}. {own}")
    return [every[key]]


def loaded(paths: list[Path] | None) -> list[Study]:
    """The studies in the user's own files."""
    try:
        return [recipes.load(path) for path in paths or []]
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def check_entries(study: Study, names: list[str]) -> None:
    """Refuse names of entries that the study does not have."""
    for name in names:
        try:
            study.find(name)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error


def check_device(device: str) -> None:
    """Refuse a device that torch does not have."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        said = str(error).splitlines()[0]
        raise typer.BadParameter(f"--device {device}: {said}. --device cpu is always there") from error


def default_folders() -> list[Path]:
    """The existing default folders with runs: the user's own, and that of a checkout."""
    return [root for root in (Path("runs"), Path("results")) if root.is_dir()] or [Path("runs")]


def runs_in(roots: list[Path]) -> list[Run]:
    """Every run below these folders; prints a warning if there are several of one study and scale."""
    found = list(dict.fromkeys(run for root in roots for run in find_runs(root)))
    places: dict[tuple[str, str], list[Path]] = {}
    for run in found:
        places.setdefault((run.study, run.scale), []).append(run.folder)
    for (study, scale), paths in places.items():
        if len(paths) > 1:
            say(f"{study} was run at {scale} scale in several places: {listed(paths)}", "yellow", stderr=True)
    return found


def known(runs: list[Run], hint: str = "Name its file with --recipe") -> list[Run]:
    """Those of known studies; prints a warning, with what to do, that names the others."""
    studies = recipes.registry()
    if unknown := dict.fromkeys(run.study for run in runs if run.study not in studies):
        names = ", ".join(unknown)
        say(f"left out, since no such study is known: {names}. {hint}", "yellow", stderr=True)
    return [run for run in runs if run.study in studies]


def needed(roots: list[Path]) -> list[Run]:
    """The runs of known studies below these folders; without any, the command ends with exit code 1."""
    found = runs_in(roots)
    if not found:
        stop(no_results(roots))
    if not (left := known(found)):
        raise typer.Exit(1)
    return left


def no_results(roots: list[Path]) -> str:
    """What to do where there are no runs."""
    return f"no results in {listed(roots)}: make some with `torchtangent reproduce`, or name the folder that has them"


def listed(paths: list[Path]) -> str:
    """Paths for a sentence."""
    return ", ".join(map(str, paths))


def stop(message: str) -> NoReturn:
    """Print an error and exit with code 1."""
    say(message, "red", stderr=True)
    raise typer.Exit(1)
