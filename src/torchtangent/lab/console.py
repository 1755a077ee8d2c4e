"""What the command line draws: progress bars while a study runs, tables of entries and verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from torchtangent.lab.claims import Verdict, count, show
from torchtangent.lab.ledger import COLUMNS, Line, Standing
from torchtangent.lab.results import Record
from torchtangent.lab.runner import Listener
from torchtangent.lab.study import Part, Study

COLORS: dict[Verdict, str] = {
    "held": "green",
    "did not hold": "red",
    "not tested at this scale": "bright_black",
}


class ProgressListener(Listener):
    """A bar for each part that runs, a line for each one that is done; use it as a context manager."""

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
        self._task: TaskID | None = None

    def __enter__(self) -> ProgressListener:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def started(self, part: Part) -> None:
        self._task = self._progress.add_task(f"{self._study.key} · {part.name}", total=None)

    def stepped(self, part: Part, done: int, total: int | None) -> None:
        if self._task is not None:
            self._progress.update(self._task, completed=done, total=total)

    def finished(self, part: Part, record: Record, *, kept: bool) -> None:
        self._drop()
        how = "kept" if kept else f"{record.seconds:.1f} s"
        self._console.print(f"  [green]✓[/] {part.name} [bright_black]{how}[/]", highlight=False)

    def failed(self, part: Part, error: Exception) -> None:
        self._drop()
        text = escape(f"{type(error).__name__}: {error}")
        self._console.print(f"  [red]✗[/] {part.name} [red]{text}[/]", highlight=False)

    def passed_over(self, part: Part, error: Exception) -> None:
        self._drop()
        self._console.print(f"  [yellow]–[/] {part.name} [bright_black]{escape(str(error))}[/]", highlight=False)

    def _drop(self) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._task = None


def entries_table(studies: Iterable[Study]) -> Table:
    """Every study's entries: identifier, title, number of claims, parts."""
    table = Table(box=None, pad_edge=False, header_style="bright_black")
    for column in ("study", "entry", "what", "claims", "parts"):
        table.add_column(column, justify="right" if column == "claims" else "left")
    for study in studies:
        for i, entry in enumerate(study.entries):
            parts = ", ".join(entry.parts) + (" (long)" if study.is_long(entry) else "")
            claims = str(len(study.claims_of(entry)))
            table.add_row(study.key if i == 0 else "", entry.id, entry.title, claims, parts)
    return table


def ledger_table(lines: Iterable[Line]) -> Table:
    """How many claims of each study have which verdict."""
    table = Table(box=None, pad_edge=False, header_style="bright_black")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in (COLUMNS[0], COLUMNS[-1]) else "right")
    for line in lines:
        table.add_row(*map(escape, line.cells))
    return table


def claims_table(standings: Iterable[Standing]) -> Table:
    """Every claim, with a line for each scale that tested it."""
    table = Table(box=None, pad_edge=False, header_style="bright_black", show_lines=False)
    for column in ("entry", "claim", "published", "scale", "measured", "verdict"):
        table.add_column(column, no_wrap=column in ("entry", "scale"), ratio={"claim": 3, "measured": 2}.get(column))
    for standing in standings:
        claim = standing.claim
        words = [escape(text) for text in (claim.id, claim.statement, show(claim.published))]
        for scale, finding in standing.tested.items():
            verdict = f"[{COLORS[finding.verdict]}]{finding.verdict}[/]"
            table.add_row(*words, scale, escape(show(finding.measured)), verdict)
            words = ["", "", ""]
        if not standing.tested:
            table.add_row(*words, "–", "–", f"[{COLORS[standing.verdict]}]not tested ({escape(standing.reason)})[/]")
    return table


def tally(verdicts: Sequence[Verdict]) -> str:
    """The counts in one line."""
    parts = [f"[{COLORS[verdict]}]{number} {verdict}[/]" for verdict, number in count(verdicts).items()]
    return f"{len(verdicts)} claims: " + ", ".join(parts)
