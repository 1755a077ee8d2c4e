"""One page, complete and self-contained."""

from __future__ import annotations

import re
import shutil
from functools import lru_cache
from html.parser import HTMLParser
from pathlib import Path

import pytest

from torchtangent.lab import report
from torchtangent.lab.claims import show
from torchtangent.lab.recipes import registry
from torchtangent.lab.results import find_runs


class Outline(HTMLParser):
    """The tags of a page, with their attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


outline = lru_cache(Outline)
"""The same page is looked at by several tests."""


def spoken(text: str) -> str:
    """Text with the underscores of subscripts gone, as in the page."""
    return Outline(report.maths(text)).text


@pytest.fixture(scope="module")
def text(page: Path) -> str:
    return page.read_text()


def test_the_page_says_everything(text: str, all_runs: Path) -> None:
    words = re.sub(r"\s+", " ", outline(text).text)
    for run in find_runs(all_runs):
        for finding in run.read_claims():
            for piece in (finding.id, finding.statement, finding.rule, finding.verdict, show(finding.published)):
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
        assert tag not in ("script", "iframe", "object", "embed")
        for name in ("src", "href", "xlink:href", "data"):
            value = attributes.get(name) or ""
            assert value.startswith(("#", "data:")) or not value, (tag, name, value[:80])
    assert not re.search(r"url\(\s*['\"]?(?!#)", text)
    assert "@import" not in text


def test_identifiers_are_unique_and_links_lead_somewhere(text: str) -> None:
    tags = outline(text).tags
    # Glyph outlines ("DejaVuSans-41") repeat from plot to plot, each time the same.
    ids = [attributes["id"] for _, attributes in tags if attributes.get("id")]
    ids = [identifier for identifier in ids if identifier and not identifier.startswith("DejaVu")]
    assert len(ids) == len(set(ids))
    links = [attributes["href"] or "" for tag, attributes in tags if tag == "a"]
    assert links
    assert {link[1:] for link in links} <= set(ids)


def test_no_results_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="torchtangent reproduce"):
        report.build([tmp_path])


def test_an_unfinished_run_says_what_is_missing(all_runs: Path, tmp_path: Path) -> None:
    shutil.copytree(all_runs / "george2023", tmp_path / "george2023")
    (tmp_path / "george2023" / "test" / "manifest.json").unlink()
    words = Outline(report.build([tmp_path])).text
    assert "Not run here" in words
    assert "What is run here" not in words
