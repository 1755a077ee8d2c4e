"""The command line: list, reproduce, judge, report, claims."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Annotated

try:
    import typer
    from rich.console import Console
    from rich.markup import escape
except ModuleNotFoundError as error:
    raise SystemExit(f"The lab needs {error.name}: pip install 'torchtangent[lab]'") from error

import torch

from torchtangent.lab import recipes
from torchtangent.lab import report as page
from torchtangent.lab.arguments import (
    RecipeOption,
    ScaleOption,
    StudyArgument,
    check_device,
    check_entries,
    default_folders,
    folders,
    loaded,
    needed,
    stop,
    studies,
)
from torchtangent.lab.claims import Finding
from torchtangent.lab.console import QUIET, ProgressListener, entries_table, say, say_broken, say_verdicts
from torchtangent.lab.data import ENVIRONMENT
from torchtangent.lab.judging import rejudge
from torchtangent.lab.listing import claims
from torchtangent.lab.results import Busy
from torchtangent.lab.runner import reproduce as run_study

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


RunsArgument = Annotated[
    list[Path] | None,
    typer.Argument(callback=folders, help="Folders with runs. Default: runs, and for a report results, too."),
]


@app.command("list")
def list_(study: StudyArgument = None) -> None:
    """Show the studies and their entries: figures, tables and theorems by their identifiers.

    Those that are long run at smoke scale only with --long or when --only
    names them.
    """
    shown = studies(study)
    console = Console()
    for item in shown:
        title, reference = escape(item.title), escape(item.reference)
        console.print(f"[bold]{item.key}[/]  {title}\n[bright_black]{reference}[/]", highlight=False)
        console.print(entries_table(item), "")
    if any(item.is_long(entry) for item in shown for entry in item.entries):
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
        typer.Option("--only", metavar="ENTRY", help="One entry, such as Fig3.6; may be given several times."),
    ] = None,
    long: Annotated[bool, typer.Option("--long", help="Also what does not fit into the quick report.")] = False,
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

    What is already there and was made by the same configuration and code is
    kept, so an interrupted run goes on where it was. The exit code is 0 when
    everything ran, whatever the verdicts; 1 when a part or the measure of a
    claim failed; 2 when the command itself was wrong.

    [bold]torchtangent reproduce --all[/]
    [bold]torchtangent reproduce george2023 --only Fig3.6[/]
    [bold]torchtangent reproduce george2023 --scale paper --device cuda --data DIR[/]
    [bold]torchtangent reproduce mine.py[/]  where mine.py is yours and defines STUDY
    """
    if (study is None) == (not all_):
        raise typer.BadParameter("name one study, or say --all")
    if only and study is None:
        raise typer.BadParameter("--only needs a study")
    wanted = studies(study)
    check_entries(wanted[0], only or [])
    check_device(device)
    console = Console()
    findings: list[Finding] = []
    others = 0  # claims of entries that were not asked for, but can be judged
    failed = False
    for item in wanted:
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
            stop(str(error))
        except OSError as error:
            stop(f"nothing can be written to {out} ({error}): choose another folder with --out")
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
    where = "" if out in default_folders() else f" {out}"
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
    loaded(recipe)
    roots = runs or default_folders()
    needed(roots)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        page.write(roots, out, lambda study: say(f"drawing {study.key} …"))
    except OSError as error:
        stop(f"{out} cannot be written ({error}): choose another file with --out")
    say(f"{out} ({out.stat().st_size / 1024:.0f} KiB)")


@app.command()
def judge(runs: RunsArgument = None, recipe: RecipeOption = None) -> None:
    """Judge the claims again from the arrays that are there; nothing is computed anew.

    The verdicts in the folders of the runs are written again; runs to which
    only a link leads are left as they are.
    """
    loaded(recipe)
    findings: list[Finding] = []
    roots = runs or [Path("runs")]
    for run in needed(roots):
        place = run.folder.resolve()
        if not any(place.is_relative_to(root.resolve()) for root in roots):
            say(f"left as it is, since only a link leads there: {place}", "yellow", stderr=True)
            continue
        say(f"judging {run.folder}", QUIET)
        try:
            findings += rejudge(recipes.registry()[run.study], run)
        except Busy as error:
            stop(str(error))
        except OSError as error:
            stop(f"{run.folder} cannot be written ({error}): judge a copy, or let `torchtangent claims` print verdicts")
    broken = say_broken(findings)
    say_verdicts(findings)
    if broken:
        raise typer.Exit(1)


app.command()(claims)


def main() -> None:
    """The `torchtangent` command."""
    app(prog_name="torchtangent")


if __name__ == "__main__":
    main()
