"""The command `claims`: what the runs say of every claim, as tables, JSON or Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from torchtangent.lab import ledger
from torchtangent.lab.arguments import (
    ScaleOption,
    StudyArgument,
    default_folders,
    folders,
    known,
    listed,
    no_results,
    runs_in,
    stop,
    studies,
)
from torchtangent.lab.claims import Finding, not_run
from torchtangent.lab.console import QUIET, claims_table, ledger_table, reasons_table, say, tally
from torchtangent.lab.judging import verdicts
from torchtangent.lab.study import SCALES, Scale, Study


def claims(
    study: StudyArgument = None,
    runs: Annotated[
        list[Path] | None,
        typer.Option(
            "--runs",
            callback=folders,
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

    With a study, every claim of it: the published value, ours, the verdict, at
    each scale that tested it. A claim counts with its verdict at the largest
    scale.
    """
    if into is not None and not as_markdown:
        raise typer.BadParameter("--into needs --markdown")
    if not_held and (study is None or as_json or as_markdown):
        raise typer.BadParameter("--not-held needs a study, and is for people: not with --json or --markdown")
    if as_markdown and study is not None:
        raise typer.BadParameter("--markdown is the table of all studies: leave the study out, or take --json")
    if as_json and as_markdown:
        raise typer.BadParameter("--json or --markdown, not both")
    wanted = studies(study)
    roots = runs or [Path("results")] if as_markdown else runs or default_folders()
    found = runs_in(roots)
    if as_markdown and not found:
        stop(f"no results in {listed(roots)}: say with --runs where they are")
    if not found:
        say(no_results(roots), "yellow", stderr=True)
    if study is None:
        found = known(found, "`torchtangent claims mine.py` shows one that is in a file of yours")
    findings = {item.key: list[Finding]() for item in wanted}
    for item in wanted:
        for run in found:
            if run.study == item.key and scale in (None, run.scale):
                findings[item.key] += verdicts(item, run)
    standings = {item.key: ledger.stand(item, findings[item.key]) for item in wanted}
    console = Console()
    if as_json:
        every = [finding for item in wanted for finding in _findings(item, standings[item.key], scale)]
        typer.echo(json.dumps([finding.as_json() for finding in every], indent=2, ensure_ascii=False))
    elif as_markdown:
        _put(ledger.markdown(ledger.summarize(standings)), into)
    elif study is not None:
        (mine,) = standings.values()
        console.print(claims_table(s for s in mine if s.verdict == "did not hold" or not not_held))
        console.print(tally([standing.verdict for standing in mine]), highlight=False)
    else:
        lines = ledger.summarize(standings)
        console.print(ledger_table(lines))
        if any(line.reasons for line in lines):
            console.print("", reasons_table(lines[: len(wanted)]))
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


def _findings(study: Study, standings: list[ledger.Standing], scale: ScaleOption | None) -> Iterator[Finding]:
    """The findings of the runs, claim by claim; for a claim without any, one that says that it was not run."""
    wanted: Scale = scale.value if scale else SCALES[0]
    for standing in standings:
        yield from standing.findings.values() or [not_run(standing.claim, study=study.key, scale=wanted)]
