"""Results → one HTML page that needs nothing else: no network, no scripts, light and dark."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import jinja2
from markupsafe import Markup, escape

from torchtangent.lab import style
from torchtangent.lab.claims import VERDICTS, Verdict, count, digits, show
from torchtangent.lab.judging import verdicts
from torchtangent.lab.ledger import LARGEST_FIRST, UNTESTED, Line, Standing, stand, summarize
from torchtangent.lab.recipes import registry
from torchtangent.lab.results import Record, Run, elapsed, find_runs, replace_file
from torchtangent.lab.rules import number
from torchtangent.lab.study import Aim, Entry, Study, plain
from torchtangent.lab.view import View, distinct, views

MARKS: dict[Verdict, str] = {"held": "✓", "did not hold": "✗", "not tested at this scale": "○"}
SLUGS: dict[Verdict, str] = {"held": "held", "did not hold": "failed", "not tested at this scale": "untested"}


@dataclass(frozen=True)
class Section:
    """An entry with everything the page says about it; views and findings have the largest scale first."""

    entry: Entry
    anchor: str
    standings: Sequence[Standing]
    views: Sequence[View]


@dataclass(frozen=True)
class Making:
    """How a study's arrays at one scale were made."""

    scale: str
    records: Sequence[Record]
    aims: Sequence[tuple[Aim, float, bool]]  # the aim, the seconds there are, whether all its parts are there
    provenance: Sequence[tuple[str, str]]
    data: Mapping[str, str]

    @property
    def seconds(self) -> float:
        """How long all parts took together."""
        return elapsed(self.records)

    def all(self, field: str) -> str:
        """The values that a field of the provenance took over the parts."""
        return ", ".join(value for key, value in self.provenance if key == field)


@dataclass(frozen=True)
class Chapter:
    """A study at all its scales, the largest first."""

    study: Study
    line: Line
    sections: Sequence[Section]
    missing: Sequence[Entry]
    makings: Sequence[Making]

    @property
    def scales(self) -> list[str]:
        """Where it was run."""
        return [making.scale for making in self.makings]

    def groups(self, *, tested: bool) -> list[tuple[str, list[Standing]]]:
        """The claims with a verdict, or those without one, entry by entry."""
        standings = [standing for standing in self.line.standings if bool(standing.tested) == tested]
        return [(key, list(group)) for key, group in groupby(standings, key=lambda item: item.claim.id)]

    def has(self, id: str) -> bool:
        """Whether there is a section for an entry."""
        return any(section.entry.id == id for section in self.sections)


def _making(study: Study, run: Run) -> Making:
    records = [record for part in study.parts if (record := run.record(part.name))]
    there = {record.part: record for record in records}
    aims = [aim for aim in study.aims if aim.scale == run.scale]
    return Making(
        scale=run.scale,
        records=records,
        aims=[
            (aim, elapsed([there[p] for p in aim.parts if p in there]), set(aim.parts) <= set(there)) for aim in aims
        ],
        provenance=distinct(record.provenance for record in records),
        data={name: value for record in records for name, value in record.data.items()},
    )


def _chapter(study: Study, runs: Sequence[Run]) -> Chapter:
    """Everything of a study's runs, of which there is one for each scale."""
    standings = stand(study, [finding for run in runs for finding in verdicts(study, run)])
    wanted = [(study, entry, run) for entry in study.entries for run in runs]
    drawn: dict[str, list[View]] = {}
    for (_, entry, _), view in zip(wanted, views(wanted), strict=True):
        drawn.setdefault(entry.id, []).extend([view] if view else [])
    sections = []
    for entry in study.entries:
        if seen := drawn.get(entry.id):
            mine = [standing for standing in standings if standing.claim.id == entry.id]
            sections.append(Section(entry, f"{study.key}-{entry.slug}", mine, seen))
    shown = {section.entry.id for section in sections}
    return Chapter(
        study=study,
        line=Line(study.key, standings),
        sections=sections,
        missing=[entry for entry in study.entries if entry.id not in shown],
        makings=[_making(study, run) for run in runs],
    )


def _chosen(runs: Iterable[Run]) -> list[Run]:
    """One run for each scale, the largest first: where there are several, the one with the most parts."""
    best: dict[str, Run] = {}
    for run in runs:
        if run.scale not in best or _size(run) > _size(best[run.scale]):
            best[run.scale] = run
    return [best[scale] for scale in LARGEST_FIRST if scale in best]


def _size(run: Run) -> int:
    return len(list((run.folder / "parts").glob("*.json")))


def build(roots: Sequence[Path], told: Callable[[Study], object] = lambda study: None) -> str:
    """The page for every run below these folders.

    Args:
        roots: The folders.
        told: Called with each study before its plots are drawn, which takes a while.

    Raises:
        FileNotFoundError: There is none.
    """
    runs = [run for root in roots for run in find_runs(root) if run.study in registry()]
    if not runs:
        raise FileNotFoundError(f"no results in {', '.join(map(str, roots))}: run `torchtangent reproduce` first")
    found = {key: _chosen(run for run in runs if run.study == key) for key in registry()}
    chapters = {}
    for key, mine in found.items():
        if mine:
            told(registry()[key])
            chapters[key] = _chapter(registry()[key], mine)
    lines = summarize(
        {key: chapters[key].line.standings if key in chapters else stand(registry()[key], []) for key in found}
    )
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("torchtangent.lab"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(show=show, seconds=show_seconds, number=number, tally=count, maths=maths, plain=plain)
    page = environment.get_template("report.html").render(
        chapters=list(chapters.values()),
        lines=lines,
        counts=count(standing.verdict for standing in lines[-1].standings),
        verdicts=VERDICTS,
        untested=UNTESTED,
        marks=MARKS,
        slugs=SLUGS,
        digits=digits,
    )
    return style.share_glyphs(page)


def write(roots: Sequence[Path], out: Path, told: Callable[[Study], object] = lambda study: None) -> None:
    """Build the page and write it, in the place of the one that is there."""
    page = build(roots, told).encode()
    replace_file(out, lambda file: file.write(page))


def maths(text: str) -> Markup:
    """Escaped text in which p_c, λ_j, F_approx and ‖f‖²_K have real subscripts, and code between backticks none.

    >>> maths("F_approx < some_name"), maths("‖f‖²_K"), maths("as `a_b`")
    (Markup('F<sub>approx</sub> &lt; some_name'), Markup('‖f‖²<sub>K</sub>'), Markup('as <code>a_b</code>'))
    """
    pieces = re.split(r"`([^`]+)`", str(escape(text)))
    pieces[::2] = [re.sub(r"((?<!\w)[^\W\d_]|[‖²\u0302])_(\w+)", r"\1<sub>\2</sub>", piece) for piece in pieces[::2]]
    pieces[1::2] = [f"<code>{piece}</code>" for piece in pieces[1::2]]
    return Markup("".join(pieces))


def show_seconds(seconds: float | None) -> str:
    """A duration for a reader.

    >>> show_seconds(0.004), show_seconds(2.51), show_seconds(75.0), show_seconds(7300.0)
    ('< 0.1 s', '2.5 s', '75 s', '2.0 h')
    """
    if seconds is None:
        return "–"
    if seconds < 0.1:
        return "< 0.1 s"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 600:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
