"""The command line: list, reproduce, judge, report, claims."""

from __future__ import annotations

import json
from collections.abc import Iterator
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, NoReturn

try:
    import typer
    from rich.console import Console
    from rich.markup import escape
except ModuleNotFoundError as error:
    raise SystemExit(f"The lab needs {error.name}: pip install 'torchtangent[lab]'") from error

import torch

from torchtangent.lab import ledger
from torchtangent.lab import report as page
from torchtangent.lab.claims import Finding, not_run
from torchtangent.lab.console import (
    QUIET,
    ProgressListener,
    claims_table,
    entries_table,
    ledger_table,
    say,
    say_broken,
    say_unknown,
    say_verdicts,
    tally,
)
from torchtangent.lab.data import ENVIRONMENT
from torchtangent.lab.judging import rejudge, verdicts
from torchtangent.lab.ledger import Standing
from torchtangent.lab.recipes import load, registry
from torchtangent.lab.results import Busy, Run, find_runs
from torchtangent.lab.runner import reproduce as run_study
from torchtangent.lab.study import SCALES, Scale, Study

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    help="""Reproduce published studies of linearized networks and see, claim by claim, what held.

    [bold]torchtangent list[/]  shows what there is.
    [bold]torchtangent reproduce --all[/]  runs everything small enough for two cores and a few minutes.
    [bold]torchtangent report[/]  makes one HTML page of the results.
    [bold]torchtangent claims[/]  counts the verdicts; with a study, prints them.""",
)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"torchtangent {version('torchtangent')}, torch {torch.__version__}")
        raise typer.Exit()


@app.callback()
def options(
    asked: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the versions and exit.")
    ] = False,
) -> None:
    """Options before a command."""


class ScaleOption(StrEnum):
    """The scales that a user can choose."""

    smoke = "smoke"
    paper = "paper"


RunsArgument = Annotated[
    list[Path] | None,
    typer.Argument(
        exists=True, file_okay=False, help="Folders with runs. Default: runs, and for a report results, too."
    ),
]
StudyArgument = Annotated[
    str | None,
    typer.Argument(metavar="STUDY", help="A study, such as george2023, or a file with one of your own: mine.py."),
]
RecipeOption = Annotated[
    list[Path] | None,
    typer.Option("--recipe", metavar="FILE", help="A file with a study of your own; may be given several times."),
]


def _studies(key: str | None) -> list[Study]:
    """One study, or all of them."""
    if key is None:
        return list(registry().values())
    if key.endswith(".py"):
        return _loaded([Path(key)])
    if key not in registry():
        known = ", ".join(registry())
        raise typer.BadParameter(f"no study {key!r}; there are: {known}. One of your own is named by its file, mine.py")
    return [registry()[key]]


def _loaded(paths: list[Path]) -> list[Study]:
    """The studies in the user's own files."""
    try:
        return [load(path) for path in paths]
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _roots() -> list[Path]:
    """The existing default folders with runs: the user's own, and that of a checkout."""
    return [root for root in (Path("runs"), Path("results")) if root.is_dir()] or [Path("runs")]


def _found(roots: list[Path]) -> list[Run]:
    """Every run below these folders; prints a warning if there are several of one study and scale."""
    found = list(dict.fromkeys(run for root in roots for run in find_runs(root)))
    places: dict[tuple[str, str], list[Path]] = {}
    for run in found:
        places.setdefault((run.study, run.scale), []).append(run.folder)
    for (study, scale), folders in places.items():
        if len(folders) > 1:
            say(f"{study} was run at {scale} scale in several places: {_listed(folders)}", "yellow", stderr=True)
    return found


def _listed(paths: list[Path]) -> str:
    return ", ".join(map(str, paths))


def _stop(message: str) -> NoReturn:
    """Print an error and exit with code 1."""
    say(message, "red", stderr=True)
    raise typer.Exit(1)


def _check_entries(study: Study, names: list[str]) -> None:
    """Refuse names of entries that the study does not have."""
    for name in names:
        try:
            study.find(name)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error


def _check_device(device: str) -> None:
    """Refuse a device that torch does not have."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        said = str(error).splitlines()[0]
        raise typer.BadParameter(f"--device {device}: {said}. --device cpu is always there") from error


@app.command("list")
def list_(study: StudyArgument = None) -> None:
    """Show the studies and their entries: figures, tables and theorems by their identifiers.

    Those that are long run at smoke scale only with --long or when --only names them.
    """
    studies = _studies(study)
    console = Console()
    for item in studies:
        title, reference = escape(item.title), escape(item.reference)
        console.print(f"[bold]{item.key}[/]  {title}\n[bright_black]{reference}[/]", highlight=False)
        console.print(entries_table(item), "")
    if any(item.is_long(entry) for item in studies for entry in item.entries):
        say("long: at smoke scale only with --long, or where --only names it", QUIET)


@app.command()
def reproduce(
    study: StudyArgument = None,
    all_: Annotated[bool, typer.Option("--all", help="Every study.")] = False,
    scale: Annotated[
        ScaleOption,
        typer.Option(
            help="smoke: small and on data that needs no download. paper: the published size, or what one GPU allows."
        ),
    ] = ScaleOption.smoke,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="ENTRY", help=("One entry, such as Fig3.6; may be given several times.")),
    ] = None,
    long: Annotated[bool, typer.Option("--long", help=("Also what does not fit into the quick report."))] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Compute again what is already there.")] = False,
    reuse: Annotated[
        bool,
        typer.Option("--reuse", help="Keep also what an earlier version of the recipe's code computed."),
    ] = False,
    out: Annotated[Path, typer.Option("--out", file_okay=False, help="The folder that holds all runs.")] = Path("runs"),
    jobs: Annotated[
        int, typer.Option(min=1, help="Parts to run side by side; the first starts after some seconds.")
    ] = 1,
    device: Annotated[str, typer.Option(help="Where torch computes: cpu, cuda, cuda:1.")] = "cpu",
    data: Annotated[
        Path | None,
        typer.Option(envvar=ENVIRONMENT, help="The folder with the official files of data sets."),
    ] = None,
) -> None:
    """Run a study, part by part, and judge its claims.

    What is already there and was made by the same configuration and code is kept, so an interrupted run
    goes on where it was. The exit code is 0 when everything ran, whatever the verdicts; 1 when a part or the
    measure of a claim failed; 2 when the command itself was wrong.

    [bold]torchtangent reproduce --all[/]
    [bold]torchtangent reproduce george2023 --only Fig3.6[/]
    [bold]torchtangent reproduce george2023 --scale paper --device cuda --data DIR[/]
    [bold]torchtangent reproduce mine.py[/]  where mine.py is yours and defines STUDY
    """
    if (study is None) == (not all_):
        raise typer.BadParameter("name one study, or say --all")
    if only and study is None:
        raise typer.BadParameter("--only needs a study")
    studies = _studies(study)
    _check_entries(studies[0], only or [])
    _check_device(device)
    console = Console()
    findings: list[Finding] = []
    others = 0  # claims of entries that were not asked for, but can be judged
    failed = False
    for item in studies:
        title = escape(item.title)
        console.print(f"[bold]{item.key}[/] {title} [bright_black]({scale.value} scale)[/]", highlight=False)
        try:
            with ProgressListener(console, item) as listener:
                outcome = run_study(
                    item,
                    scale.value,
                    out,
                    only=only or (),
                    long=long or scale is ScaleOption.paper,
                    fresh=fresh,
                    reuse=reuse,
                    jobs=jobs,
                    device=device,
                    data_root=data,
                    listener=listener,
                )
        except KeyboardInterrupt as error:
            say("interrupted; run the same command to resume")
            raise typer.Exit(130) from error
        except Busy as error:
            _stop(str(error))
        failed |= bool(outcome.failed) | say_broken(outcome.findings)
        for name in outcome.failed:
            if (trace := outcome.run.failed(name)).exists():
                say(f"  traceback of {name}: {trace}", QUIET)
        findings += outcome.asked
        tested = [finding for finding in outcome.findings if finding.verdict in ("held", "did not hold")]
        others += sum(finding not in outcome.asked for finding in tested)
    say_verdicts(findings)
    if others:
        say(f"{others} claims of other entries can be judged by what is there: the report has them, too", QUIET)
    where = "" if out in _roots() else f" {out}"
    own = f" --recipe {study}" if study and study.endswith(".py") else ""
    say(f"next: torchtangent report{where}{own} (each claim at the largest scale that tested it)", QUIET)
    if failed:
        raise typer.Exit(1)


@app.command()
def report(
    runs: RunsArgument = None,
    out: Annotated[Path, typer.Option("--out", dir_okay=False, help="The page to write.")] = Path("report/index.html"),
    recipe: RecipeOption = None,
) -> None:
    """Make one self-contained HTML page of the results: verdicts, figures, how to remake them."""
    _loaded(recipe or [])
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise typer.BadParameter(f"--out {out}: {error}") from error
    try:
        say_unknown(_found(runs or _roots()), registry())
        page.write(runs or _roots(), out, lambda study: say(f"drawing {study.key} …"))
    except FileNotFoundError as error:
        _stop(str(error))
    say(f"{out} ({out.stat().st_size / 1024:.0f} KiB)")


@app.command()
def judge(
    runs: RunsArgument = None,
    recipe: RecipeOption = None,
) -> None:
    """Judge the claims again from the arrays that are there; nothing is computed anew."""
    findings: list[Finding] = []
    _loaded(recipe or [])
    roots = runs or [Path("runs")]
    found = _found(roots)
    if not found:
        _stop(f"no results in {_listed(roots)}")
    say_unknown(found, registry())
    for run in found:
        if run.study in registry():
            try:
                findings += rejudge(registry()[run.study], run)
            except Busy as error:
                _stop(str(error))
    say_verdicts(findings)
    if say_broken(findings):
        raise typer.Exit(1)


@app.command()
def claims(
    study: StudyArgument = None,
    runs: Annotated[
        list[Path] | None,
        typer.Option(
            "--runs",
            exists=True,
            file_okay=False,
            help="A folder with runs; may be given several times. Default: runs and results.",
        ),
    ] = None,
    scale: Annotated[ScaleOption | None, typer.Option(help="Only this scale.")] = None,
    not_held: Annotated[bool, typer.Option("--not-held", help="Of a study only the claims that did not hold.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Every claim as JSON, for another program.")] = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="The table as Markdown; of results, unless --runs says otherwise.")
    ] = False,
    into: Annotated[
        Path | None, typer.Option("--into", help="With --markdown: the file in which to replace the table.")
    ] = None,
) -> None:
    """Print the ledger: how many claims held, did not hold, were not tested, and why.

    With a study, every claim of it: the published value, ours, the verdict, at each scale that tested it. A claim
    counts with its verdict at the largest scale.
    """
    if into is not None and not as_markdown:
        raise typer.BadParameter("--into needs --markdown")
    if not_held and (study is None or as_json or as_markdown):
        raise typer.BadParameter("--not-held needs a study, and is for people: not with --json or --markdown")
    if as_markdown and study is not None:
        raise typer.BadParameter("--markdown is the table of all studies: leave the study out, or take --json")
    if as_json and as_markdown:
        raise typer.BadParameter("--json or --markdown, not both")
    roots = runs or [Path("results")] if as_markdown else runs or _roots()
    found = [run for run in _found(roots) if scale is None or run.scale == scale.value]
    if as_markdown and not found:
        _stop(f"no results in {_listed(roots)}: say with --runs where they are")
    standings = {
        item.key: ledger.stand(item, [f for run in found if run.study == item.key for f in verdicts(item, run)])
        for item in _studies(study)
    }
    console = Console()
    if as_json:
        listed = [
            finding.as_json() for key in standings for finding in _findings(registry()[key], standings[key], scale)
        ]
        typer.echo(json.dumps(listed, indent=2, ensure_ascii=False))
    elif as_markdown:
        _put(ledger.markdown(ledger.summarize(standings)), into)
    elif study is not None:
        (mine,) = standings.values()
        console.print(claims_table(s for s in mine if s.verdict == "did not hold" or not not_held))
        console.print(tally([standing.verdict for standing in mine]), highlight=False)
    else:
        console.print(ledger_table(ledger.summarize(standings)))
        say("torchtangent claims STUDY  lists a study's claims", QUIET)


def _put(table: str, into: Path | None) -> None:
    """Print a table, or replace the one in a file by it."""
    if into is None:
        typer.echo(table)
        return
    try:
        into.write_text(ledger.put(table, into.read_text(encoding="utf-8")), encoding="utf-8")
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{into}: {error}") from error


def _findings(study: Study, standings: list[Standing], scale: ScaleOption | None) -> Iterator[Finding]:
    """The findings of the runs, claim by claim; for a claim without any, one that says that it was not run."""
    wanted: Scale = scale.value if scale else SCALES[0]
    for standing in standings:
        yield from standing.findings.values() or [not_run(standing.claim, study=study.key, scale=wanted)]


def main() -> None:
    """The `torchtangent` command."""
    app(prog_name="torchtangent")


if __name__ == "__main__":
    main()
