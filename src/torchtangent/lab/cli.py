"""The command line: list, reproduce, report, claims."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

try:
    import typer
    from rich.console import Console
except ModuleNotFoundError as error:
    raise SystemExit(f"The lab needs {error.name}: pip install 'torchtangent[lab]'") from error

from torchtangent.lab import report as page
from torchtangent.lab.claims import Finding, not_run
from torchtangent.lab.console import ProgressListener, claims_table, entries_table, tally
from torchtangent.lab.data import ENVIRONMENT
from torchtangent.lab.recipes import registry
from torchtangent.lab.results import find_runs
from torchtangent.lab.runner import rejudge
from torchtangent.lab.runner import reproduce as run_study
from torchtangent.lab.study import SCALES, Study

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    help="""Reproduce published studies of linearized networks and see, claim by claim, what held.

    [bold]torchtangent list[/]  shows what there is.
    [bold]torchtangent reproduce --all[/]  runs everything small enough for two cores and a few minutes.
    [bold]torchtangent report[/]  makes one HTML page of the results.
    [bold]torchtangent claims[/]  prints the verdicts.""",
)


class ScaleOption(StrEnum):
    """The two scales a user chooses from."""

    smoke = "smoke"
    paper = "paper"


StudyArgument = Annotated[str | None, typer.Argument(metavar="[STUDY]", help="A study, such as george2023.")]


def _studies(key: str | None) -> list[Study]:
    """One study, or all of them."""
    if key is None:
        return list(registry().values())
    if key not in registry():
        raise typer.BadParameter(f"no study {key!r}; there are: {', '.join(registry())}")
    return [registry()[key]]


@app.command("list")
def list_(study: StudyArgument = None) -> None:
    """Show the studies and their entries: figures, tables and theorems by their identifiers."""
    studies = _studies(study)
    console = Console()
    console.print(entries_table(studies))
    for item in studies:
        console.print(f"\n[bold]{item.key}[/]  {item.title}\n[bright_black]{item.reference}[/]", highlight=False)


@app.command()
def reproduce(
    study: StudyArgument = None,
    all_: Annotated[bool, typer.Option("--all", help="Every study.")] = False,
    scale: Annotated[
        ScaleOption,
        typer.Option(help=("smoke: small and on data that needs no download. paper: as published, wants a GPU.")),
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
    out: Annotated[Path, typer.Option("--out", help="The folder that holds all runs.")] = Path("runs"),
    device: Annotated[str, typer.Option(help="Where torch computes: cpu, cuda, cuda:1.")] = "cpu",
    data: Annotated[
        Path | None,
        typer.Option(envvar=ENVIRONMENT, help="The folder with the official files of data sets."),
    ] = None,
) -> None:
    """Run a study, part by part, and judge its claims.

    What is already there and was made by the same configuration and code is kept, so an interrupted run
    goes on where it was. The exit code is 0 when everything ran, whatever the verdicts; 1 when a part failed;
    2 when the command itself was wrong.

    [bold]torchtangent reproduce --all[/]
    [bold]torchtangent reproduce george2023 --only Fig3.6[/]
    [bold]torchtangent reproduce george2023 --scale paper --device cuda --data DIR[/]
    """
    if (study is None) == (not all_):
        raise typer.BadParameter("name one study, or say --all")
    studies = _studies(study)
    if only:
        if study is None:
            raise typer.BadParameter("--only needs a study")
        for name in only:
            try:
                studies[0].find(name)
            except ValueError as error:
                raise typer.BadParameter(str(error)) from error
    console = Console()
    findings: list[Finding] = []
    failed = False
    for item in studies:
        console.print(f"[bold]{item.key}[/] {item.title} [bright_black]({scale.value} scale)[/]", highlight=False)
        with ProgressListener(console, item) as listener:
            outcome = run_study(
                item,
                scale.value,
                out,
                only=only or (),
                long=long or scale is ScaleOption.paper,
                fresh=fresh,
                reuse=reuse,
                device=device,
                data_root=data,
                listener=listener,
            )
        failed |= bool(outcome.failed)
        findings += outcome.findings
    console.print(tally(findings), highlight=False)
    console.print(f"[bright_black]torchtangent report {out}  makes the page[/]", highlight=False)
    if failed:
        raise typer.Exit(1)


@app.command()
def report(
    runs: Annotated[list[Path] | None, typer.Argument(help="Folders with runs.")] = None,
    out: Annotated[Path, typer.Option("--out", help="The page to write.")] = Path("report/index.html"),
) -> None:
    """Make one self-contained HTML page of the results: verdicts, figures, how to remake them."""
    try:
        page.write(runs or [Path("runs")], out)
    except FileNotFoundError as error:
        Console(stderr=True).print(f"[red]{error}[/]")
        raise typer.Exit(1) from error
    Console().print(f"{out} ({out.stat().st_size / 1024:.0f} KiB)", highlight=False)


@app.command()
def judge(
    runs: Annotated[list[Path] | None, typer.Argument(help="Folders with runs.")] = None,
) -> None:
    """Judge the claims again from the arrays that are there; nothing is computed anew."""
    findings: list[Finding] = []
    for run in (run for root in runs or [Path("runs")] for run in find_runs(root)):
        if run.study in registry():
            findings += rejudge(registry()[run.study], run)
    Console().print(tally(findings), highlight=False)


@app.command()
def claims(
    study: StudyArgument = None,
    runs: Annotated[Path, typer.Option("--runs", help="The folder that holds all runs.")] = Path("runs"),
    scale: Annotated[ScaleOption | None, typer.Option(help="Only this scale.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for another program.")] = False,
) -> None:
    """Print the ledger: every claim, the published value, ours, the verdict."""
    findings: list[Finding] = []
    found = list(find_runs(runs)) if runs.exists() else []
    for item in _studies(study):
        for name in [scale.value] if scale else SCALES:
            mine = [run for run in found if (run.study, run.scale) == (item.key, name)]
            findings += [finding for run in mine for finding in run.read_claims()]
        if not any(finding.study == item.key for finding in findings):
            wanted = scale.value if scale else SCALES[0]
            findings += [not_run(claim, study=item.key, scale=wanted) for claim in item.claims]
    if as_json:
        typer.echo(json.dumps([finding.as_json() for finding in findings], indent=2, ensure_ascii=False))
        return
    console = Console()
    console.print(claims_table(findings))
    console.print(tally(findings), highlight=False)


def main() -> None:
    """The `torchtangent` command."""
    app()
