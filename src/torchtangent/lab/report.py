"""Results → one HTML page that needs nothing else: no network, no script to be read, light and dark."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import cast

import jinja2
from markupsafe import Markup, escape

from torchtangent.lab import recipes, style
from torchtangent.lab.claims import UNTESTED, VERDICTS, Verdict, count, digits, short, show
from torchtangent.lab.judging import Key, part_keys, verdicts
from torchtangent.lab.ledger import LARGEST_FIRST, Line, Standing, count_reasons, stand, summarize
from torchtangent.lab.results import Run, elapsed, find_runs, replace_file
from torchtangent.lab.rules import number
from torchtangent.lab.study import Aim, Entry, Scale, Study, plain
from torchtangent.lab.view import Making, View, views

MARKS: dict[Verdict, str] = {"held": "✓", "did not hold": "✗", UNTESTED: "○"}
SLUGS: dict[Verdict, str] = {"held": "held", "did not hold": "failed", UNTESTED: "untested"}


@dataclass(frozen=True)
class Section:
    """An entry with everything the page says about it; views, of which there may be none, and findings have the largest
    scale first.
    """

    entry: Entry
    anchor: str
    standings: Sequence[Standing]
    views: Sequence[View]

    @property
    def reasons(self) -> str:
        """Why claims of it have no verdict."""
        return count_reasons(standing.reason for standing in self.standings)


@dataclass(frozen=True)
class AtScale:
    """A study at one scale: how all its arrays were made, and how long that should have taken."""

    scale: str
    made: Making
    aims: Sequence[tuple[Aim, float, bool]]  # the aim, the seconds there are, whether all its parts are there


@dataclass(frozen=True)
class Chapter:
    """A study at all its scales, the largest first."""

    study: Study
    line: Line
    sections: Sequence[Section]
    scales: Sequence[AtScale]


def _at_scale(study: Study, run: Run, keys: Mapping[str, Key]) -> AtScale:
    there = {part.name: record for part in study.parts if (record := run.record(part.name))}
    aims = [
        (aim, elapsed([there[part] for part in aim.parts if part in there]), set(aim.parts) <= set(there))
        for aim in study.aims
        if aim.scale == run.scale
    ]
    return AtScale(run.scale, Making.of(there.values(), keys), aims)


def _chapter(study: Study, runs: Sequence[Run]) -> Chapter:
    """Everything of a study's runs, of which there is one for each scale."""
    keys = {run: part_keys(study, study.configuration(cast(Scale, run.scale))) for run in runs}
    standings = stand(study, [finding for run in runs for finding in verdicts(study, run)])
    wanted = [(study, entry, run, keys[run]) for entry in study.entries for run in runs]
    drawn: dict[str, list[View]] = {entry.id: [] for entry in study.entries}
    for (_, entry, *_), view in zip(wanted, views(wanted), strict=True):
        drawn[entry.id] += [view] if view else []
    sections = []
    for entry in study.entries:
        mine = [standing for standing in standings if standing.claim.id == entry.id]
        sections.append(Section(entry, f"{study.key}-{entry.slug}", mine, drawn[entry.id]))
    scales = [_at_scale(study, run, keys[run]) for run in runs]
    return Chapter(study, Line(study.key, standings), sections, scales)


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
    runs = [run for root in roots for run in find_runs(root) if run.study in recipes.registry()]
    if not runs:
        raise FileNotFoundError(f"no results in {', '.join(map(str, roots))}: run `torchtangent reproduce` first")
    chapters = {}
    for key, study in recipes.registry().items():
        if mine := _chosen(run for run in runs if run.study == key):
            told(study)
            chapters[key] = _chapter(study, mine)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("torchtangent.lab"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(show=show, seconds=show_seconds, number=number, tally=count, maths=maths, plain=plain)
    environment.filters.update(short=short, day=_day, hashed=_hashed, called=recipes.called)
    page = environment.get_template("report.html").render(
        chapters=chapters,
        absent=[key for key in recipes.registry() if key not in chapters],
        lines=summarize({key: chapter.line.standings for key, chapter in chapters.items()}),
        verdicts=VERDICTS,
        marks=MARKS,
        slugs=SLUGS,
        digits=digits,
    )
    return style.share_glyphs(page)


def write(roots: Sequence[Path], out: Path, told: Callable[[Study], object] = lambda study: None) -> None:
    """Build the page and write it, in the place of the one that is there."""
    page = build(roots, told).encode()
    replace_file(out, lambda file: file.write(page))


def _day(finished: str) -> str:
    """The day on which the last of some parts was finished."""
    return finished.rpartition(" to ")[2][:10]


def _hashed(script: str) -> str:
    """How a page's policy names the one script that it lets run."""
    return f"sha256-{b64encode(sha256(script.encode()).digest()).decode()}"


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
