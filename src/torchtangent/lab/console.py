"""What the command line shows: messages, progress bars, tables of entries and verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from torchtangent.lab.claims import UNTESTED, Finding, Verdict, count, digits, short, show
from torchtangent.lab.data import DataError
from torchtangent.lab.ledger import COLUMNS, Line, Standing, count_reasons
from torchtangent.lab.results import Record
from torchtangent.lab.runner import Listener, NeedFailed
from torchtangent.lab.study import Part, Study

COLORS: dict[Verdict, str] = {
    "held": "green",
    "did not hold": "red",
    UNTESTED: "bright_black",
}
QUIET = "bright_black"  # the style of secondary information


def say(text: str, style: str = "", *, stderr: bool = False) -> None:
    """Print a line as it is, without markup; the terminal wraps it, so that a path or command can be copied."""
    Console(stderr=stderr).print(Text(text, style), soft_wrap=True)


def say_broken(findings: Iterable[Finding]) -> bool:
    """Name the claims whose own code failed; returns whether there are any."""
    broken = [finding for finding in findings if finding.broken]
    for finding in broken:
        text = escape(f"{finding.id}, {finding.name!r}: {finding.reason}")
        Console().print(f"  [red]✗[/] claim {text}", highlight=False, soft_wrap=True)
    return bool(broken)


def say_verdicts(findings: Sequence[Finding]) -> None:
    """Print how many claims have each verdict, and why others have none."""
    Console().print(tally([finding.verdict for finding in findings]), highlight=False)
    if why := count_reasons(finding.reason for finding in findings):
        say(f"why not tested: {why}", QUIET)


class ProgressListener(Listener):
    """Shows a bar for each running part and a line for each finished one; to be used as a context manager."""

    def __init__(self, console: Console, study: Study):
        self._console = console
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._study = study
        self._tasks: dict[str, TaskID] = {}
        self._said: dict[str, str] = {}  # messages about data, and the part that gave each first
        self._blocked: list[str] = []

    def __enter__(self) -> ProgressListener:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
        if self._blocked:
            text = f"not begun, because a part they need failed: {', '.join(self._blocked)}"
            self._say("red", "✗", f"[bright_black]{escape(text)}[/]")

    def started(self, part: Part) -> None:
        self._tasks[part.name] = self._progress.add_task(escape(f"{self._study.key} · {part.name}"), total=None)

    def stepped(self, part: Part, done: int, total: int | None) -> None:
        self._progress.update(self._tasks[part.name], completed=done, total=total)

    def finished(self, part: Part, record: Record, *, kept: bool) -> None:
        self._drop(part)
        how = "kept" if kept else f"{record.seconds:.1f} s"
        if kept and any("not checked" in said for said in record.data.values()):
            how += ", from data that no published checksum vouches for"
        self._say("green", "✓", f"{escape(part.name)} [bright_black]{how}[/]")

    def failed(self, part: Part, error: Exception) -> None:
        self._drop(part)
        if isinstance(error, NeedFailed):
            self._blocked.append(part.name)
            return
        text = str(error) if isinstance(error, DataError) else f"{type(error).__name__}: {error}"
        if isinstance(error, DataError) and self._said.setdefault(text, part.name) != part.name:
            text = f"needs the same files as {self._said[text]}"
        self._say("red", "✗", f"{escape(part.name)} [red]{escape(text)}[/]")

    def passed_over(self, part: Part, error: Exception) -> None:
        self._drop(part)
        self._say("yellow", "–", f"{escape(part.name)} [bright_black]{escape(str(error))}[/]")

    def _say(self, color: str, mark: str, text: str) -> None:
        self._console.print(f"  [{color}]{mark}[/] {text}", highlight=False, soft_wrap=True)

    def _drop(self, part: Part) -> None:
        if part.name in self._tasks:
            self._progress.remove_task(self._tasks.pop(part.name))


def _table() -> Table:
    return Table(box=None, pad_edge=False, header_style="bright_black")


def entries_table(study: Study) -> Table:
    """A study's entries: identifier, number of claims, whether it is long, title."""
    table = _table()
    for column in ("entry", "claims", "", "what"):
        table.add_column(column, justify="right" if column == "claims" else "left", no_wrap=column != "what")
    for entry in study.entries:
        long = "long" if study.is_long(entry) else ""
        table.add_row(escape(entry.id), str(len(study.claims_of(entry))), long, escape(entry.title))
    return table


def ledger_table(lines: Iterable[Line]) -> Table:
    """The number of claims with each verdict, for each study; why some have none is a table of its own."""
    table = _table()
    for column in COLUMNS[:-1]:
        table.add_column(column, justify="left" if column == COLUMNS[0] else "right")
    for line in lines:
        table.add_row(*map(escape, line.cells[:-1]))
    return table


def reasons_table(lines: Iterable[Line]) -> Table:
    """Why claims were not tested, for each study that has such claims."""
    table = _table()
    table.add_column(COLUMNS[0], no_wrap=True)
    table.add_column(COLUMNS[-1])
    for line in lines:
        if line.reasons:
            table.add_row(escape(line.name), escape(line.reasons))
    return table


def claims_table(standings: Iterable[Standing]) -> Table:
    """Every claim with its published value and rule, then a line for each scale; it suits narrow terminals."""
    table = _table()
    table.add_column("entry", no_wrap=True)
    table.add_column("claim")
    for standing in standings:
        claim = standing.claim
        table.add_row(escape(claim.id), escape(claim.statement))
        table.add_row("", f"[bright_black]published[/]  {escape(show(claim.published))}")
        table.add_row("", f"[bright_black]holds if[/]  {escape(str(claim.rule))}")
        if claim.note:
            table.add_row("", f"[bright_black]{escape(claim.note)}[/]")
        for scale, finding in standing.tested.items():
            verdict = f"[{COLORS[finding.verdict]}]{finding.verdict}[/]"
            measured = show(finding.measured, digits(claim.rule, finding))
            table.add_row("", f"[bright_black]{scale} scale[/]  {verdict}  {escape(measured)}")
        if not standing.tested:
            table.add_row("", f"[{COLORS[standing.verdict]}]not tested ({escape(standing.reason)})[/]")
    return table


def tally(verdicts: Sequence[Verdict]) -> str:
    """The counts in one line."""
    parts = [f"[{COLORS[verdict]}]{number} {short(verdict)}[/]" for verdict, number in count(verdicts).items()]
    return f"{len(verdicts)} claim{'' if len(verdicts) == 1 else 's'}: " + ", ".join(parts)
