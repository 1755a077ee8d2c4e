"""Results → one HTML page that needs nothing else: no network, no scripts, light and dark."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from torchtangent.lab import style
from torchtangent.lab.claims import VERDICTS, Finding, Verdict, count, show
from torchtangent.lab.recipes import registry
from torchtangent.lab.results import Run, find_runs
from torchtangent.lab.rules import number
from torchtangent.lab.study import Entry, Study, plain

MARKS: dict[Verdict, str] = {"held": "✓", "did not hold": "✗", "not tested at this scale": "○"}
SLUGS: dict[Verdict, str] = {"held": "held", "did not hold": "failed", "not tested at this scale": "untested"}


@dataclass(frozen=True)
class Section:
    """An entry with everything the page says about it."""

    entry: Entry
    anchor: str
    setup: str
    caption: str
    findings: Sequence[Finding]
    plots: Sequence[str]
    seconds: float
    command: str
    config: str


@dataclass(frozen=True)
class Chapter:
    """A study at one scale."""

    study: Study
    scale: str
    sections: Sequence[Section]
    missing: Sequence[Entry]
    findings: Sequence[Finding]
    provenance: Sequence[tuple[str, str]]
    data: Mapping[str, str]
    durations: Mapping[str, float]

    @property
    def counts(self) -> dict[Verdict, int]:
        """How many claims got each verdict."""
        return count(self.findings)

    @property
    def groups(self) -> list[tuple[str, list[Finding]]]:
        """The findings, entry by entry."""
        return [(key, list(group)) for key, group in groupby(self.findings, key=lambda finding: finding.id)]

    @property
    def seconds(self) -> float:
        """How long its parts took together, each counted once."""
        return sum(self.durations.values())


def _section(study: Study, entry: Entry, run: Run, config: Mapping[str, Any]) -> Section:
    """Draw an entry from its arrays."""
    arrays = run.load(entry.parts)
    anchor = f"{study.key}-{run.scale}-{entry.slug}"
    readable = {part: {key: _readable(value) for key, value in values.items()} for part, values in config.items()}
    plots = []
    with style.applied():
        for i, panel in enumerate(entry.panels):
            plots.append(style.to_svg(panel.draw(arrays), f"{anchor}-{i}", panel.alt))
    records = [record for part in entry.parts if (record := run.record(part))]
    return Section(
        entry=entry,
        anchor=anchor,
        setup=entry.setup.format_map(readable),
        caption=entry.caption.format_map(readable),
        findings=[finding for finding in run.read_claims() if finding.id == entry.id],
        plots=plots,
        seconds=sum(record.seconds for record in records),
        command=f"torchtangent reproduce {study.key} --scale {run.scale} --only {entry.slug}",
        config=json.dumps({part: config[part] for part in entry.parts}, indent=2, ensure_ascii=False),
    )


def _readable(value: Any) -> Any:
    """A configuration's value inside a sentence."""
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else value


def _chapter(study: Study, run: Run) -> Chapter:
    """Everything of one run that is whole."""
    manifest = run.manifest() or {"entries": [], "missing": [entry.id for entry in study.entries]}
    config = json.loads((run.folder / "config.json").read_text())
    sections = [_section(study, entry, run, config) for entry in study.entries if entry.id in manifest["entries"]]
    records = [record for part in study.parts if (record := run.record(part.name))]
    return Chapter(
        study=study,
        scale=run.scale,
        sections=sections,
        missing=[entry for entry in study.entries if entry.id in manifest["missing"]],
        findings=run.read_claims(),
        provenance=_distinct(record.provenance for record in records),
        data={name: value for record in records for name, value in record.data.items()},
        durations={record.part: record.seconds for record in records},
    )


def _distinct(records: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Every provenance field with the values it took over the parts."""
    values: dict[str, dict[str, None]] = {}
    for record in records:
        for key, value in record.items():
            values.setdefault(key, {})[str(value) if value is not None else "not a git checkout"] = None
    times = sorted(values.pop("finished", {}))
    rows = [(key, ", ".join(found)) for key, found in values.items()]
    return rows + ([("finished", " to ".join(dict.fromkeys((times[0], times[-1]))))] if times else [])


def build(roots: Sequence[Path]) -> str:
    """The page for every run below these folders.

    Raises:
        FileNotFoundError: There is none.
    """
    runs = [run for root in roots for run in find_runs(root) if run.study in registry()]
    if not runs:
        raise FileNotFoundError(f"no results in {', '.join(map(str, roots))}: run `torchtangent reproduce` first")
    chapters = [_chapter(registry()[run.study], run) for run in runs]
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("torchtangent.lab"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(show=show, seconds=show_seconds, number=number, tally=count, maths=maths, plain=plain)
    return environment.get_template("report.html").render(
        chapters=chapters,
        counts=count(finding for chapter in chapters for finding in chapter.findings),
        verdicts=VERDICTS,
        marks=MARKS,
        slugs=SLUGS,
    )


def write(roots: Sequence[Path], out: Path) -> None:
    """Build the page and write it."""
    page = build(roots)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page, encoding="utf-8")


def maths(text: str) -> Markup:
    """Escaped text in which `p_c`, `λ_j`, `F_approx` and `‖f‖²_K` have real subscripts.

    >>> maths("F_approx < some_name"), maths("‖f‖²_K")
    (Markup('F<sub>approx</sub> &lt; some_name'), Markup('‖f‖²<sub>K</sub>'))
    """
    return Markup(re.sub(r"((?<!\w)[^\W\d_]|[‖²\u0302])_(\w+)", r"\1<sub>\2</sub>", str(escape(text))))


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
