"""What the command line draws: progress bars while a study runs, tables of entries and verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from torchtangent.lab.claims import Finding, Verdict, count, show
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


def claims_table(findings: Sequence[Finding]) -> Table:
    """The ledger."""
    table = Table(box=None, pad_edge=False, header_style="bright_black", show_lines=False)
    for column in ("entry", "claim", "published", "measured", "verdict"):
        table.add_column(column, no_wrap=column == "entry", ratio={"claim": 3, "measured": 2}.get(column))
    for finding in findings:
        verdict = f"[{COLORS[finding.verdict]}]{finding.verdict}[/]"
        if finding.reason:
            verdict += f" [bright_black]({escape(finding.reason)})[/]"
        cells = (finding.id, finding.statement, show(finding.published), show(finding.measured))
        table.add_row(*map(escape, cells), verdict)
    return table


def tally(findings: Sequence[Finding]) -> str:
    """The counts in one line."""
    parts = [f"[{COLORS[verdict]}]{number} {verdict}[/]" for verdict, number in count(findings).items()]
    return f"{len(findings)} claims: " + ", ".join(parts)
