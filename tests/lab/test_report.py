"""One page, complete and self-contained."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
from dataclasses import replace
from functools import lru_cache
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from lab_toy import toy_study

from torchtangent.lab import recipes, report
from torchtangent.lab.claims import show
from torchtangent.lab.recipes import registry
from torchtangent.lab.results import Record, elapsed, find_runs, read_json, write_json
from torchtangent.lab.runner import reproduce
from torchtangent.lab.study import Aim, Arrays, Study, Table


class Outline(HTMLParser):
    """The tags of a page, with their attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._pieces: list[str] = []
        self.feed(page)
        self.text = "".join(self._pieces)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self._pieces.append(data)


outline = lru_cache(Outline)
"""The same page is looked at by several tests."""


def spoken(text: str) -> str:
    """Text with the underscores of subscripts gone, as in the page."""
    return Outline(str(report.maths(text))).text


@pytest.fixture(scope="module")
def text(page: Path) -> str:
    return page.read_text()


def test_the_page_says_everything(text: str, all_runs: Path) -> None:
    words = re.sub(r"\s+", " ", outline(text).text)
    for run in find_runs(all_runs):
        for finding in run.read_claims():
            said = finding.reason or finding.verdict
            for piece in (finding.id, finding.statement, finding.rule, said, show(finding.published)):
                assert spoken(piece) in words
        for entry in registry()[run.study].entries:
            assert spoken(entry.paper) in words
            assert f"torchtangent reproduce {run.study} --scale {run.scale} --only {entry.slug}" in words
    for word in ("python", "torch", "device", "commit"):
        assert word in words


def test_the_page_shows_every_plot(text: str) -> None:
    plots = [attributes for tag, attributes in outline(text).tags if attributes.get("class") == "plot"]
    panels = [panel for study in registry().values() for entry in study.entries for panel in entry.panels]
    assert [plot["aria-label"] for plot in plots] == [panel.alt for panel in panels]


def test_the_page_needs_nothing_else(text: str) -> None:
    for tag, attributes in outline(text).tags:
        assert tag not in ("iframe", "object", "embed")
        for name in ("src", "href", "xlink:href", "data"):
            value = attributes.get(name) or ""
            assert value.startswith(("#", "data:")) or not value, (tag, name, value[:80])
    assert not re.search(r"url\(\s*['\"]?(?!#)", text)
    assert "@import" not in text


def test_the_page_lets_only_its_own_script_run(text: str) -> None:
    (script,) = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    assert f"script-src 'sha256-{digest}';" in policy
    assert "default-src 'none'" in policy


def test_headings_are_in_order(text: str) -> None:
    levels = [int(tag[1]) for tag, _ in outline(text).tags if re.fullmatch(r"h\d", tag)]
    assert levels.count(1) == 1 == levels[0]
    assert all(below - above <= 1 for above, below in pairwise(levels))


def test_the_contents_lead_to_every_entry_with_its_verdicts(text: str) -> None:
    contents = text.partition("<nav")[2].partition("</nav>")[0]
    for study in registry().values():
        for entry in study.entries:
            ((link, marks),) = re.findall(
                rf'<a href="#({study.key}-{re.escape(entry.slug)})">(.*?)</a>', contents, re.S
            )
            assert f'<article class="entry" id="{link}">' in text
            assert sum(map(int, re.findall(r"[✓✗○] (\d+)", marks))) == len(study.claims_of(entry))


def test_the_ledger_is_an_appendix_that_works_without_a_script(text: str) -> None:
    main = text.partition("<main>")[2]
    before, ledger = main.partition('id="ledger"')[::2]
    assert before.count('<article class="entry"') == main.count('<article class="entry"')
    assert '<form id="filter" hidden>' in ledger
    claims = [claim for study in registry().values() for claim in study.claims]
    assert ledger.count('<tr class="claim">') == len(claims)
    assert len(re.findall(r'data-verdict="(?:held|failed|untested)"', ledger)) == len(claims)


def test_identifiers_are_unique_and_links_lead_somewhere(text: str) -> None:
    tags = outline(text).tags
    ids = [attributes["id"] for _, attributes in tags if attributes.get("id")]
    assert len(ids) == len(set(ids))
    links = [attributes["href"] or "" for tag, attributes in tags if tag == "a"]
    assert links
    assert {link[1:] for link in links} <= set(ids)


def sums(arrays: Arrays) -> list[tuple[str, str, float | None]]:
    """A table's rows: one of each part of the toy."""
    return [("five", "5", arrays.get("numbers/x", [None])[0]), ("sum", "tiny", arrays.get("total/total"))]


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Study:
    """The toy, its second entry with a table over both parts."""
    study = toy_study()
    table = Table("Sums_", ("what", "paper", "ours"), sums)
    second = replace(study.entries[1], parts=("numbers", "total"), tables=(table,))
    aim = Aim("paper", 1.5, "Both", ("numbers", "total"))
    study = replace(study, entries=(study.entries[0], second), aims=(aim,))
    monkeypatch.setattr(recipes, "registry", lambda: {study.key: study})
    return study


def spaced(page: str) -> str:
    """The words of a page."""
    return re.sub(r"\s+", " ", Outline(page).text)


def test_a_claim_shows_every_scale_and_counts_at_the_largest(toy: Study, tmp_path: Path) -> None:
    reproduce(toy, "smoke", tmp_path)
    reproduce(toy, "paper", tmp_path)
    page = report.build([tmp_path])
    headings = re.findall(r'<th scope="col">(At [^<]*)</th>', page)
    assert headings == 3 * ["At paper scale", "At smoke scale"]  # the ledger, then each entry
    cells = re.findall(r'<td class="found" data-label="([^"]*)">(.*?)</td>', page, flags=re.DOTALL)
    shown = [(label, "held" if "✓" in cell else "failed" if "✗" in cell else cell) for label, cell in cells[:6]]
    assert [verdict for label, verdict in shown[:4]] == ["held", "held", "failed", "failed"]
    assert [label for label, _ in shown] == 3 * ["paper scale", "smoke scale"]
    assert "needs the paper scale" in shown[5][1]
    assert "needs the paper scale" not in shown[4][1]
    assert re.findall(r"<dd><a [^>]*>(\d+)</a></dd></div>", page) == ["1", "2", "0"]
    assert spaced(page).count("The same at smoke scale") == 2


def test_the_first_page_counts_verdicts_by_study(toy: Study, tmp_path: Path) -> None:
    reproduce(toy, "smoke", tmp_path)
    header = report.build([tmp_path]).partition("</header>")[0]
    (row,) = re.findall(r'<tr>\s*(<th scope="row">.*?)</tr>', header, flags=re.DOTALL)
    cells = re.findall(r">([^<>]+)<", re.sub(r"\s*\n\s*", "", row))
    assert cells == ["A toy", "toy2000", "1", "1", "1", "0", "needs the paper scale: 1"]


def test_an_entry_that_was_not_run_has_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipes, "registry", lambda: {"toy2000": toy_study()})
    reproduce(toy_study(), "smoke", tmp_path, only=["Fig1"])
    page = report.build([tmp_path])
    assert page.count('<article class="entry"') == 1
    assert '<a href="#toy2000-TY-Tab1-2" class="unrun">' in page
    assert '<li id="toy2000-TY-Tab1-2">' in page


def test_arrays_of_an_earlier_version_of_the_code_are_said_to_be(toy: Study, tmp_path: Path) -> None:
    outcome = reproduce(toy, "smoke", tmp_path)
    assert "earlier version" not in spaced(report.build([tmp_path]))
    for part, said in {"total": "1 of them made", "numbers": "Made"}.items():
        path = outcome.run.folder / "parts" / f"{part}.json"
        write_json(path, read_json(path) | {"code": "another"})
        page = report.build([tmp_path])
        entry = page.partition('id="toy2000-TY-Tab1-2"')[2].partition("</article>")[0]
        assert f"{said} by an earlier version of the recipe's code, with the same configuration." in spaced(entry)
        assert "Make it again: torchtangent reproduce toy2000 --scale smoke --only TY-Tab1-2" in spaced(entry)
    assert outline(page).text.count("earlier version") == 3  # of the study and of each entry
    assert re.findall(r"<td>(earlier|as now)</td>", page) == ["earlier", "earlier"]


def test_the_command_names_what_the_arrays_were_made_with(toy: Study, tmp_path: Path) -> None:
    path = reproduce(toy, "smoke", tmp_path).run.folder / "parts" / "numbers.json"
    record = read_json(path)
    device = {"provenance": record["provenance"] | {"device": "cuda: X"}}
    write_json(path, record | device | {"data": {"a.bin": "md5 0"}})
    assert "--scale smoke --only TY-Fig1 --device cuda --data DIR" in spaced(report.build([tmp_path]))


def test_words_of_the_page_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipes, "registry", lambda: {"toy2000": toy_study()})
    reproduce(toy_study(), "smoke", tmp_path, only=["Fig1"])
    words = spaced(report.build([tmp_path]))
    assert "TY-Tab1–2 Sum (not run: 1, needs the paper scale: 1) Run one of them with" in words
    assert ": 1 part in" in words


def test_indices_are_sorted_in_sentences_other_lists_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = toy_study()
    config = {"numbers": {"seed": 0, "count": 5, "indices": [1, 15, 10], "widths": [784, 1000, 30]}, "total": {}}
    first = replace(study.entries[0], setup="On {numbers[indices]} and {numbers[widths]}.")
    study = replace(study, entries=(first, study.entries[1]), configuration=lambda scale: config)
    monkeypatch.setattr(recipes, "registry", lambda: {study.key: study})
    reproduce(study, "smoke", tmp_path)
    assert "On 1, 10, 15 and 784, 1000, 30." in spaced(report.build([tmp_path]))


def test_backticks_are_code() -> None:
    assert str(report.maths("As `tt.a_b` < `c`, x_i.")) == (
        "As <code>tt.a_b</code> &lt; <code>c</code>, x<sub>i</sub>."
    )


def test_tables_have_headings_for_rows_and_columns(toy: Study, tmp_path: Path) -> None:
    reproduce(toy, "smoke", tmp_path)
    page = report.build([tmp_path])
    (table,) = re.findall(r'<table class="data">(.*?)</table>', page, flags=re.DOTALL)
    assert "<caption>Sums_" in table
    assert re.findall(r'<th scope="col">([^<]*)</th>', table) == ["what", "paper", "ours"]
    assert re.findall(r'<th scope="row">([^<]*)</th>', table) == ["five", "sum"]
    assert re.findall(r"<td>([^<]*)</td>", table)[::2] == ["5", "tiny"]
    assert "–" not in table


def test_a_table_shows_what_is_there_and_names_what_is_missing(toy: Study, tmp_path: Path) -> None:
    outcome = reproduce(toy, "smoke", tmp_path)
    (outcome.run.folder / "parts" / "total.json").unlink()
    page = report.build([tmp_path])
    assert "Parts that are missing: total." in spaced(page)
    (table,) = re.findall(r'<table class="data">(.*?)</table>', page, flags=re.DOTALL)
    assert "<td>tiny</td><td>–</td>" in table
    assert "<td>5</td><td>–</td>" not in table


def test_time_in_which_parts_ran_side_by_side_counts_once() -> None:
    def record(seconds: float, finished: str, device: str = "cuda: X, shared by up to 2 parts") -> Record:
        provenance = {"finished": f"2026-11-16 {finished} UTC", "device": device}
        return Record("part", "", "", "", seconds, {}, provenance, {})

    first, beside = record(60.0, "00:02:00"), record(40.0, "00:02:10")
    inside, later = record(10.0, "00:01:30"), record(5.0, "23:59:59")
    assert elapsed([]) == 0
    assert elapsed([later, beside, first, inside]) == 60 + 10 + 5
    alone, old = record(7.0, "00:01:40", "cuda: X"), record(8.0, "00:02")
    assert elapsed([first, alone, old]) == 60 + 7 + 8


def test_seconds_stand_beside_what_was_aimed_for(toy: Study, tmp_path: Path) -> None:
    reproduce(toy, "smoke", tmp_path)
    assert "aimed for" not in spaced(report.build([tmp_path]))
    reproduce(toy, "paper", tmp_path, only=["Fig1"])
    page = report.build([tmp_path])
    assert re.search(r"Both: \S.* min of the 1\.5 min aimed for, parts of it still missing\.", spaced(page))
    (parts, _) = re.findall(r'<table class="data parts">(.*?)</table>', page, flags=re.DOTALL)
    assert re.findall(r'<th scope="row">([^<]*)</th>', parts) == ["numbers", "all"]


def test_of_two_runs_at_one_scale_the_fuller_is_shown(toy: Study, tmp_path: Path) -> None:
    reproduce(toy, "smoke", tmp_path / "a", only=["Fig1"])
    reproduce(toy, "smoke", tmp_path / "b")
    for roots in (["a", "b"], ["b", "a"]):
        page = report.build([tmp_path / root for root in roots])
        assert page.count('<article class="entry"') == 2


def test_no_results_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="torchtangent reproduce"):
        report.build([tmp_path])


def test_an_unfinished_run_says_what_is_missing(all_runs: Path, tmp_path: Path) -> None:
    shutil.copytree(all_runs / "george2023", tmp_path / "george2023")
    for path in (tmp_path / "george2023" / "test" / "parts").glob("*.json"):
        path.unlink()
    words = Outline(report.build([tmp_path])).text
    assert "Not run here" in words
    assert "What is run here" not in words


def test_learned_eigenfunctions_share_one_frame_that_holds_them(all_runs: Path) -> None:
    """The panels of OJ-Fig2 have the same axes, begin near the first index, and no curve leaves them."""
    entry = registry()["ortiz2021"].find("OJ-Fig2")
    arrays = next(run for run in find_runs(all_runs) if run.study == "ortiz2021").load(entry.parts)
    worst = {name: np.zeros_like(arrays[name]) for name in arrays if name.endswith("ResNet18/network_test")}
    assert worst
    parts = {part: {} for part in entry.parts}
    for name in arrays:
        part, _, key = name.partition("/")
        parts[part][key] = worst.get(name, arrays[name])
    frames = set()
    for panel in entry.panels:
        (axes,) = panel.draw(Arrays(parts)).axes
        (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
        frames.add((left, right, low, high))
        for line in axes.lines[:2]:
            assert left < line.get_xdata().min() < 1.5 * left
            assert line.get_xdata().max() < right
            assert low < line.get_ydata().min()
            assert line.get_ydata().max() < high
    assert len(frames) == 1
